# SPDX-License-Identifier: Apache-2.0
"""The operator's page in a real browser: what it shows, that it chats, and that nothing it is told becomes markup."""

from __future__ import annotations

import asyncio
import base64
import pathlib
from typing import Any

import pytest
from sparkpair.api.keys import KeyRing
from sparkpair.media.limits import MediaLimits
from sparkpair.media.prepared import prepare

from tests.engine.api.browser import Browser, browser
from tests.engine.api.conftest import MODEL, Serve, Server
from tests.engine.api.scripted import HOLD
from tests.engine.media.files import encoded, picture

__all__ = ["browser"]

THOUGHT, ANSWER = "Let me see.", "<img src=x onerror=alert(1)> & <b>Oslo</b> ď삼👋"
PHONE = {"width": 390, "height": 844}


async def test_page_is_one_file_that_may_only_talk_to_its_server(server: Server) -> None:
    response = await server.http.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert (await server.http.head("/")).status_code == 200
    for word in ("http://", "https://", "//cdn", "@import", "url("):
        assert word not in response.text.replace("http://www.w3.org/2000/svg", "")


async def test_page_can_be_turned_off(serve: Serve) -> None:
    async with serve(page=False) as server:
        assert (await server.http.get("/")).json()["error"]["code"] == "unknown_url"
    async with serve(page=False, keys=KeyRing(["k"])) as server:
        assert (await server.http.get("/")).status_code == 401


async def test_streams_are_listed_without_their_content(server: Server) -> None:
    server.engine.script = [server.ids("one two"), HOLD]
    assert (await server.http.get("/streams")).json() == {"streams": [], "generated_tokens": 22}
    asking = asyncio.create_task(server.chat())
    reply = await server.engine.submitted()
    tokens = len(server.ids("one two"))
    listed: dict[str, Any] = {"streams": []}
    while not any(stream["completion_tokens"] for stream in listed["streams"]):
        listed = (await server.http.get("/v1/streams")).json()
    (stream,) = listed["streams"]
    assert set(stream) == {"id", "state", "age_s", "prompt_tokens", "completion_tokens"}
    assert (stream["state"], stream["completion_tokens"]) == ("writing", tokens)
    assert stream["prompt_tokens"] == len(server.engine.last.prompt_ids)
    assert listed["generated_tokens"] == 22 + tokens
    reply.cancel()
    await asking


async def test_page_shows_how_the_server_is(serve: Serve, browser: Browser) -> None:
    async with serve([HOLD]) as server:

        def look() -> None:
            browser.open(server.url)
            browser.wait_for_text("#state", "ready")
            assert browser.find("#model").text == MODEL
            assert "2 ranks" in browser.find("#about").text
            assert "0 of 1" in browser.find("#lanes").text
            assert browser.texts("#ranks tr") == ["0 57 0", "1 57 0"]
            assert "2" in browser.find("#queue").text
            assert not browser.find("#locked").is_displayed()
            assert browser.find("#nostreams").is_displayed()

        await asyncio.to_thread(look)
        asking = asyncio.create_task(server.chat())
        reply = await server.engine.submitted()
        await asyncio.to_thread(browser.wait_for_text, "#state", "busy")
        row = await asyncio.to_thread(browser.wait_for_text, "#streams tr", "waiting")
        assert str(len(server.engine.last.prompt_ids)) in row.split()
        reply.cancel()
        await asking
        assert browser.complaints() == []


async def test_page_says_when_the_engine_or_the_server_is_gone(serve: Serve, browser: Browser) -> None:
    async with serve(engine={"error": "rank 1 left: <i>it was killed</i>"}) as server:
        await asyncio.to_thread(browser.open, server.url)
        told = await asyncio.to_thread(browser.wait_for_text, "#trouble", "The engine has failed")
        assert "rank 1 left: <i>it was killed</i>" in told
    await asyncio.to_thread(browser.wait_for_text, "#trouble", "does not answer")
    browser.complaints()


async def test_chat_streams_keeps_its_turns_and_shows_text_as_text(server: Server, browser: Browser) -> None:
    server.says(THOUGHT, "</think>", ANSWER, "<|user|>")

    def chat() -> None:
        browser.open(server.url)
        browser.wait_for_text("#state", "ready")
        browser.find("#text").send_keys("What is <b>Norway</b>?\n")
        browser.wait_for_text("#last", "tokens")
        assert browser.texts(".turn") == ["What is <b>Norway</b>?", f"Thinking\n{ANSWER}"]
        browser.find(".turn summary").click()
        browser.wait_for_text(".turn details div", THOUGHT)
        assert browser.js("return document.querySelectorAll('.turn img, .turn b').length") == 0
        browser.find("#effort").send_keys("off")
        browser.find("#text").send_keys("And\n")

    await asyncio.to_thread(chat)
    while len(server.engine.replies) < 2:
        await server.engine.submitted()
    said = server.ids("<|user|>", "What is <b>Norway</b>?", "<|assistant|>")
    prompt = server.engine.last.prompt_ids
    assert any(list(prompt[start : start + len(said)]) == said for start in range(len(prompt)))
    assert prompt[-2:] == tuple(server.ids("<think>", "</think>"))
    await asyncio.to_thread(browser.wait_for_text, ".turn:last-child", "Oslo")
    await asyncio.to_thread(browser.find("#fresh").click)
    assert browser.texts(".turn") == []
    assert browser.complaints() == []


async def test_reply_can_be_stopped_and_frees_the_engine(serve: Serve, browser: Browser) -> None:
    async with serve() as server:
        server.engine.script = [server.ids("</think>", "Once upon"), HOLD]
        await asyncio.to_thread(browser.open, server.url)
        await asyncio.to_thread(browser.wait_for_text, "#state", "ready")
        await asyncio.to_thread(browser.find("#text").send_keys, "Tell me a story\n")
        await asyncio.to_thread(browser.wait_for_text, ".turn:last-child", "Once upon")
        assert browser.find("#send").text == "Stop"
        await asyncio.to_thread(browser.find("#send").click)
        await asyncio.wait_for(server.engine.replies[0].cancelled.wait(), 10)
        await asyncio.to_thread(browser.wait_for_text, ".turn:last-child", "stopped")
        assert browser.find("#send").text == "Send"


async def test_refusal_is_shown_in_the_servers_words(server: Server, browser: Browser) -> None:
    server.engine.context_length = 10
    await asyncio.to_thread(browser.open, server.url)
    await asyncio.to_thread(browser.wait_for_text, "#state", "ready")
    await asyncio.to_thread(browser.find("#text").send_keys, "Hi\n")
    await asyncio.to_thread(browser.wait_for_text, ".turn:last-child", "maximum context length is 10 tokens")
    browser.complaints()


async def test_page_asks_for_a_key_and_uses_it(serve: Serve, browser: Browser) -> None:
    async with serve(keys=KeyRing(["sk-page"])) as server:
        server.says("</think>", "Yes.", "<|user|>")

        def unlock() -> None:
            browser.open(server.url)
            browser.wait_for_text("#locked", "This server wants a key")
            assert not browser.find("#chat").is_displayed()
            browser.find("#key").send_keys("wrong\n")
            browser.wait_for_text("#wrong", "does not know this key")
            browser.find("#key").clear()
            browser.find("#key").send_keys("sk-page\n")
            browser.wait_for_text("#state", "ready")
            assert not browser.find("#locked").is_displayed()
            browser.find("#text").send_keys("Hi\n")
            browser.wait_for_text(".turn:last-child", "Yes.")
            assert browser.js("return Object.values(localStorage).length") == 0

        await asyncio.to_thread(unlock)
        browser.complaints()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [{}, PHONE], ids=["desktop", "phone"])
async def test_page_fits_every_window_in_both_schemes(
    server: Server, browser: Browser, dark: bool, size: dict[str, int]
) -> None:
    def look() -> None:
        browser.open(server.url, dark=dark, **size)
        browser.wait_for_text("#state", "ready")
        width = size.get("width", 1280)
        assert browser.js("return document.documentElement.scrollWidth") <= width
        back, text = (
            sum(map(int, browser.js(f"return getComputedStyle(document.body).{which}.match(/\\d+/g)")))
            for which in ("backgroundColor", "color")
        )
        assert (back < text) is dark
        chat, cards = browser.find("#chat").rect, browser.find("#left").rect
        assert (chat["y"] > cards["y"]) is bool(size), "the chat is beside the figures, on a phone below them"
        if size:
            assert browser.find("#send").rect["height"] >= 40, "large enough for a finger"

    await asyncio.to_thread(look)
    assert browser.complaints() == []


# Makes an event that carries a file, as a drag or the clipboard does.
DELIVER = """
const [selector, kind, type, base64] = arguments, carrier = new DataTransfer();
const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
carrier.items.add(new File([bytes], "given", {type}));
const options = {bubbles: true, cancelable: true}, target = document.querySelector(selector);
target.dispatchEvent(kind === "paste" ? new ClipboardEvent(kind, {...options, clipboardData: carrier})
                                      : new DragEvent(kind, {...options, dataTransfer: carrier}));
"""


async def test_pictures_are_chosen_dropped_and_pasted_shown_and_sent(
    serve: Serve, browser: Browser, tmp_path: pathlib.Path
) -> None:
    chosen = [encoded(picture(120, 90, seed), "JPEG") for seed in (1, 2)]
    for number, data in enumerate(chosen):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    dropped, pasted = encoded(picture(80, 80, 3)), encoded(picture(64, 64, 4).convert("P"), "GIF")

    def deliver(selector: str, kind: str, type_: str, data: bytes) -> None:
        browser.driver.execute_script(DELIVER, selector, kind, type_, base64.b64encode(data).decode())

    async with serve(engine={"context_length": 100_000}, vision=True, keys=KeyRing(["sk-page"])) as server:
        server.says("</think>", "A cat.", "<|user|>")

        def show() -> None:
            browser.open(server.url)
            browser.find("#key").send_keys("sk-page\n")
            browser.wait_for_text("#state", "ready")
            assert browser.find("#attach").is_displayed()
            browser.find("#files").send_keys("\n".join(str(tmp_path / f"{number}.jpg") for number in range(2)))
            browser.wait_for_count("#waiting img", 2)
            browser.find("#waiting button").click()
            browser.wait_for_count("#waiting img", 1)
            deliver("#chat", "dragover", "image/png", dropped)
            assert "over" in (browser.find("#chat").get_attribute("class") or "")
            deliver("#chat", "drop", "image/png", dropped)
            browser.wait_for_count("#waiting img", 2)
            assert "over" not in (browser.find("#chat").get_attribute("class") or "")
            deliver("#text", "paste", "image/gif", pasted)
            browser.wait_for_count("#waiting img", 3)
            deliver("#chat", "drop", "application/pdf", b"%PDF")
            browser.wait_for_text("#last", "given is no picture")
            deliver("#chat", "drop", "image/bmp", b"BM no picture")
            browser.wait_for_text("#last", "given cannot be read as a picture")
            browser.find("#text").send_keys("What is it?\n")
            browser.wait_for_text(".turn:last-child", "A cat.")
            browser.wait_for_count("#waiting img", 0)
            browser.wait_for_count(".user .shown img", 3)
            assert browser.js("return [...document.querySelectorAll('#chat img')].every((one) => one.naturalWidth > 0)")
            browser.find("#text").send_keys("And now?\n")

        await asyncio.to_thread(show)
        while len(server.engine.replies) < 2:
            await server.engine.submitted()
        first, second = (reply.request for reply in server.engine.replies)
        wanted = [prepare("picture", data, MediaLimits()).digest for data in (chosen[1], dropped)]
        assert [part.digest for part in first.media][:2] == wanted
        assert len(first.media) == 3, "a GIF is drawn anew, as the server reads none"
        assert [part.digest for part in second.media] == [part.digest for part in first.media]
        await asyncio.to_thread(browser.wait_for_text, ".turn:last-child", "A cat.")
        assert browser.complaints() == []


async def test_a_refused_picture_is_told_of_and_one_without_vision_cannot_be_given(
    serve: Serve, browser: Browser, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "broken.png").write_bytes(encoded(picture(80, 80))[:200])

    def give(url: str) -> None:
        browser.open(url)
        browser.wait_for_text("#state", "ready")
        browser.find("#files").send_keys(str(tmp_path / "broken.png"))
        browser.wait_for_count("#waiting img", 1)
        browser.find("#send").click()
        browser.wait_for_text(".turn:last-child", "the picture is damaged")

    async with serve(vision=True) as server:
        await asyncio.to_thread(give, server.url)
        browser.complaints()
    async with serve() as server:
        await asyncio.to_thread(browser.open, server.url)
        await asyncio.to_thread(browser.wait_for_text, "#state", "ready")
        assert not browser.find("#attach").is_displayed()
