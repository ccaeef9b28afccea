# SPDX-License-Identifier: Apache-2.0
"""What the engine's tests share: the text side of a miniature checkpoint, and clients outside the environment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sparkpair.chat.template import ChatTemplate
from sparkpair.chat.tokenizer import TextTokenizer
from sparkpair.checkpoint.miniature_text import write_tokenizer

from tests.engine.clients.programs.run import install


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real ranks come first: they take longest, and short ones fill what is left of a second worker's time.

    Naming their directory first is not enough, because pytest takes it for a part of the whole that is named next.
    """
    items.sort(key=lambda item: item.path.parent.name != "pair")


@pytest.fixture(scope="session")
def text_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tokenizer, template and generation defaults for 1536 ids."""
    directory = tmp_path_factory.mktemp("miniature-text")
    write_tokenizer(directory, 1536)
    return directory


@pytest.fixture(scope="session")
def tokenizer(text_directory: Path) -> TextTokenizer:
    return TextTokenizer.load(text_directory)


@pytest.fixture(scope="session")
def template(text_directory: Path, tokenizer: TextTokenizer) -> ChatTemplate:
    return ChatTemplate.load(text_directory, tokenizer)


@pytest.fixture(scope="session")
def node_clients() -> None:
    """The JavaScript clients, installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node 20 with npm is not installed")
    install("node")
