# SPDX-License-Identifier: Apache-2.0
"""Servers whose replies are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sparkpair.chat.tokenizer import TextTokenizer

from tests.engine.api.background import Background
from tests.engine.clients.scenarios import ScenarioEngine


@pytest.fixture(scope="session")
def known_url(text_directory: Path, tokenizer: TextTokenizer) -> Iterator[str]:
    """A server that says what the prompt asks for by name."""
    server = Background(text_directory, ScenarioEngine(tokenizer), vision=True)
    yield f"http://127.0.0.1:{server.port}"
    server.close()


@pytest.fixture(scope="session")
def busy_url(text_directory: Path, tokenizer: TextTokenizer) -> Iterator[str]:
    """A server that has its one request, which never ends, and takes no other."""
    server = Background(text_directory, ScenarioEngine(tokenizer), max_queued=0)
    url = f"http://127.0.0.1:{server.port}"
    body = {"stream": True, "messages": [{"role": "user", "content": "scenario:stuck"}]}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        yield url
    server.close()
