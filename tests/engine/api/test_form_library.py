# SPDX-License-Identifier: Apache-2.0
"""How forms get ready: before the first is asked for, once for all who ask, and for nobody's harm who leaves."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sparkpair.api import app
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.grammar import forms, library
from sparkpair.grammar.form import Kind, schema_form
from starlette.responses import Response

from tests.engine.api.conftest import Serve
from tests.engine.api.raw import chat_body, request

OVER = "<|observation|>"


async def test_client_that_leaves_while_its_form_is_compiled_takes_no_part_of_the_engine(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    compile_really = forms.Forms.compile

    def held(self: forms.Forms, kind: Kind, text: str) -> forms.Compiled:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(60)
        return compile_really(self, kind, text)

    monkeypatch.setattr(forms.Forms, "compile", held)
    noticed = asyncio.Event()
    answer_nobody = app._answer_nobody

    async def noted(*arguments: Any) -> Response:
        noticed.set()
        return await answer_nobody(*arguments)

    monkeypatch.setattr(app, "_answer_nobody", noted)
    async with serve() as server:
        server.says("</think>", "yes", OVER)
        for path in ("/v1/chat/completions", "/v1/completions"):
            for event in (begun, noticed, may_end):
                event.clear()
            _, writer = await server.connect()
            fields = {"guided_choice": ["yes", path]}
            writer.write(request(path, chat_body(prompt="x", **fields)))
            await begun.wait()
            writer.close()
            await asyncio.wait_for(noticed.wait(), 20)
            may_end.set()
            # The form is there for those who stay.
            assert (await server.chat(**fields)).json()["choices"][0]["message"]["content"] == "yes"
        assert len(server.engine.replies) == 2


async def test_server_that_has_warmed_up_starts_nothing_more_for_its_first_form(
    text_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    nursery, load = library._Nursery, library._load
    monkeypatch.setattr(library, "_Nursery", lambda *arguments: began.append("nursery") or nursery(*arguments))
    monkeypatch.setattr(library, "_load", lambda checkpoint: began.append("compiler") or load(checkpoint))
    kept = library.FormLibrary(text_directory, CheckpointText.load(text_directory), 3)
    try:
        kept.warm_up()
        kept.warm_up()
        async with asyncio.timeout(60):
            while len(began) < 2:
                await asyncio.sleep(0)
        assert (await kept.find(schema_form({"type": "integer"}))).compiled.size
        assert sorted(began) == ["compiler", "nursery"]
    finally:
        kept.close()
    kept.warm_up()
    assert kept._nursery is None


async def test_form_that_many_ask_for_is_compiled_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_really = forms.Forms.compile

    def counted(self: forms.Forms, kind: Kind, text: str) -> forms.Compiled:
        compiled.append(text)
        return compile_really(self, kind, text)

    monkeypatch.setattr(forms.Forms, "compile", counted)
    async with serve() as server:
        server.says("</think>", "yes", OVER)
        choices = [["yes", "no"], ["no", "yes"]]
        replies = await asyncio.gather(*(server.chat(guided_choice=choices[index % 2]) for index in range(12)))
        replies.append(await server.chat(guided_choice=choices[0]))
    assert {reply.json()["choices"][0]["message"]["content"] for reply in replies} == {"yes"}
    assert sorted(compiled) == ['["no", "yes"]', '["yes", "no"]']


async def test_without_the_compilers_library_forms_are_refused_by_its_name_and_everything_else_is_answered(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    async with serve() as server:
        server.says("</think>", "yes", OVER)
        refused = await server.chat(guided_choice=["yes", "no"])
        assert refused.status_code == 503
        assert "xgrammar is not installed" in refused.json()["error"]["message"]
        assert (await server.chat()).json()["choices"][0]["message"]["content"] == "yes"
