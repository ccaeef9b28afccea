# SPDX-License-Identifier: Apache-2.0
"""The official clients, one a dialect, against two real ranks: what the replies say and how they end is known nowhere.

What further clients and older versions do with the same dialects is tested where the replies are known.
"""

from __future__ import annotations

import pytest

from tests.engine.clients.programs.run import run_python
from tests.engine.pair.ranks import World

pytestmark = pytest.mark.pair


@pytest.mark.parametrize("program", ["openai_client", "anthropic_client"])
def test_official_client_gets_the_same_reply_streamed_and_not(program: str, pair: World) -> None:
    run_python(program, pair.url)
