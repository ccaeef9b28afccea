# SPDX-License-Identifier: Apache-2.0
"""One turn of real agent programs: the model calls their shell, they run the command and send the result.

Not among them is aider, which asks for edits in text and calls no functions. What it talks with, LiteLLM, is tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sparkpair.chat.tokenizer import TextTokenizer

from tests.engine.api.background import Background
from tests.engine.clients.programs.run import is_installed, run_agent
from tests.engine.clients.scenarios import ScenarioEngine

pytestmark = pytest.mark.skipif(
    not is_installed("agents"),
    reason="they are large; to install them: python -m tests.engine.clients.programs.run",
)

TASK = "scenario:agent"
ANSWER = "It is 4 degrees."


@pytest.fixture(scope="module")
def url(text_directory: Path, tokenizer: TextTokenizer) -> Iterator[str]:
    """A server with a window for the long prompts of agents, which takes their model names for its own."""
    server = Background(text_directory, ScenarioEngine(tokenizer, 1_000_000), aliases=("*",))
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def test_codex(url: str, tmp_path: Path) -> None:
    settings = {
        "model": "m",
        "model_provider": "spark",
        "model_providers.spark.name": "spark",
        "model_providers.spark.base_url": f"{url}/v1",
        "model_providers.spark.wire_api": "responses",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]
    command = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *options, TASK]
    printed = run_agent(command, tmp_path, {})
    assert (tmp_path / "out.txt").read_text() == "spark42\n"
    assert ANSWER in printed


def test_claude_code(url: str, tmp_path: Path) -> None:
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "any",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }
    printed = run_agent(["claude", "-p", TASK, "--model", "m", "--dangerously-skip-permissions"], tmp_path, environment)
    assert (tmp_path / "out.txt").read_text() == "spark42\n"
    assert ANSWER in printed


def test_opencode(url: str, tmp_path: Path) -> None:
    """It has the AI SDK in it. What it would like from the network, a list of models, an update and a package for its
    settings, it can do without: the list and the update are turned off, and where packages come from nobody listens.
    """
    settings = {
        "model": "spark/m",
        "permission": "allow",
        "autoupdate": False,
        "provider": {
            "spark": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{url}/v1", "apiKey": "any"},
                "models": {"m": {"tool_call": True}},
            }
        },
    }
    environment = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "npm_config_registry": "http://127.0.0.1:9/",
    }
    printed = run_agent(["opencode", "run", TASK], tmp_path, environment)
    assert (tmp_path / "out.txt").read_text() == "spark42\n"
    assert ANSWER in printed
