# SPDX-License-Identifier: Apache-2.0
"""Every client that the API is tested with, against two real ranks."""

from __future__ import annotations

import pytest

from tests.engine.clients.programs.run import older_openai, run_node, run_python
from tests.engine.pair.ranks import World

pytestmark = pytest.mark.pair


@pytest.mark.parametrize("program", ["openai_client", "anthropic_client", "langchain_client", "litellm_client"])
def test_python_client_gets_the_same_reply_streamed_and_not(program: str, pair: World) -> None:
    run_python(program, pair.url)


def test_older_openai_client_gets_the_same_reply_streamed_and_not(pair: World) -> None:
    run_python("openai_client", pair.url, path=older_openai())


@pytest.mark.usefixtures("node_clients")
@pytest.mark.parametrize("program", ["openai_client", "ai_sdk"])
def test_node_client_gets_the_same_reply_streamed_and_not(program: str, pair: World) -> None:
    run_node(program, pair.url)
