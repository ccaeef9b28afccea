# SPDX-License-Identifier: Apache-2.0
"""The official Python clients and the frameworks on top of them get what they look for."""

from __future__ import annotations

import pytest

from tests.engine.clients.programs.run import older_openai, run_python


@pytest.mark.parametrize("program", ["openai_client", "anthropic_client", "langchain_client", "litellm_client"])
def test_client_gets_what_it_looks_for(program: str, known_url: str, busy_url: str) -> None:
    run_python(program, known_url, busy_url)


def test_older_openai_client_gets_what_it_looks_for(known_url: str, busy_url: str) -> None:
    run_python("openai_client", known_url, busy_url, path=older_openai())
