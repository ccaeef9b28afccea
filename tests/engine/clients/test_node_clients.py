# SPDX-License-Identifier: Apache-2.0
"""The JavaScript clients get what they look for. They are installed by their lock file beside the environment, once."""

from __future__ import annotations

import pytest

from tests.engine.clients.programs.run import run_node

pytestmark = pytest.mark.usefixtures("node_clients")


@pytest.mark.parametrize("program", ["openai_client", "ai_sdk"])
def test_client_gets_what_it_looks_for(program: str, known_url: str, busy_url: str) -> None:
    run_node(program, known_url, busy_url)
