# SPDX-License-Identifier: Apache-2.0
"""The server's start: what a person can fix is one sentence, and readiness means that connections are
accepted.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from sparkpair.api.app import create_app
from sparkpair.api.options import ApiOptions
from sparkpair.api.server import bind, serve_http
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.checkpoint.miniature_text import write_tokenizer
from sparkpair.errors import UserError

from tests.engine.api.scripted import ScriptedEngine


async def test_ready_means_that_connections_are_accepted(text_directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    app = create_app(ScriptedEngine(), ApiOptions(model_dir=text_directory, model_name="m"))
    ready, stop = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(serve_http(app, "127.0.0.1", port, on_ready=ready.set, stop=stop))
    await ready.wait()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    stop.set()
    await task


async def test_taken_port_is_named(text_directory: Path) -> None:
    app = create_app(ScriptedEngine(), ApiOptions(model_dir=text_directory, model_name="m"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: something else on this machine listens"):
            await serve_http(app, "127.0.0.1", port, on_ready=lambda: None, stop=asyncio.Event())


@pytest.mark.parametrize(
    ("host", "message"), [("no.such.host.invalid", "no such address"), ("192.0.2.1", "cannot listen")]
)
def test_address_of_another_machine_is_named(host: str, message: str) -> None:
    with pytest.raises(UserError, match=f"--host {host}.*{message}"):
        bind(host, 0)


def test_name_with_several_addresses_listens_on_all_of_them() -> None:
    sockets = bind("", 0)
    try:
        assert {sock.family for sock in sockets} >= {socket.AF_INET}
    finally:
        for sock in sockets:
            sock.close()


def test_missing_tokenizer_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        create_app(ScriptedEngine(), ApiOptions(model_dir=tmp_path, model_name="m"))


def test_checkpoint_defaults_are_read(tmp_path: Path) -> None:
    layout = write_tokenizer(tmp_path, 1536)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 1536}}))
    text = CheckpointText.load(tmp_path)
    turns = {layout.special_ids[marker] for marker in ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")}
    assert text.vocab_size == 1536
    assert text.stop_ids == turns | set(layout.eos_ids)
    assert (text.sampling.temperature, text.sampling.top_p, text.sampling.top_k) == (1.0, 0.95, 0)


def test_checkpoint_without_generation_defaults_has_the_released_ones(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 1536)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 7}}))
    text = CheckpointText.load(tmp_path)
    assert 7 in text.stop_ids
    assert (text.sampling.temperature, text.sampling.top_p) == (1.0, 0.95)
    assert text.vocab_size == text.tokenizer.size


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read as JSON"), ("[]", "expected a JSON object"), ('{"top_p": "high"}', "top_p is 'high'")],
)
def test_broken_generation_defaults_are_named(tmp_path: Path, content: str, message: str) -> None:
    write_tokenizer(tmp_path, 1536)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(UserError, match=rf"generation_config\.json.*{message}"):
        CheckpointText.load(tmp_path)
