# SPDX-License-Identifier: Apache-2.0
"""Hostile requests over raw sockets: each ends as documented, the server goes on, and its memory stays flat."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from tests.engine.api.conftest import Serve
from tests.engine.api.raw import Answer, chat_body, read_answer, request
from tests.engine.api.test_malformed import BODIES, CHAT_FIELDS, COMPLETION_FIELDS, HI, check

CHAT = "/v1/chat/completions"
SOON_S = 20
LIMIT = 1_000_000

CLOSED = 0
"""In place of a status: the connection is closed without an answer."""


class Case(NamedTuple):
    """What is sent on one connection, and the statuses of what comes back, the last of which may be CLOSED."""

    sent: bytes
    statuses: tuple[int, ...]
    half_closed: bool = False


def get(path: bytes, headers: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET " + path + b" " + version + b"\r\n" + headers + b"\r\n"


def post(body: bytes, **headers: str) -> bytes:
    return request(CHAT, body, headers={name.replace("_", "-"): value for name, value in headers.items()})


OK = get(b"/health")
DEEP = b"[" * 5000 + b"]" * 5000
CHUNKED = {"Transfer-Encoding": "chunked"}


def chunked(payload: bytes) -> bytes:
    return request(CHAT, headers=CHUNKED) + payload


TRANSPORT: dict[str, Case] = {
    # request lines
    "empty line first": Case(b"\r\n" + OK, (200,)),
    "bare line feeds": Case(b"GET /health HTTP/1.1\n\n", (400, CLOSED)),
    "lower-case method": Case(b"get /health HTTP/1.1\r\n\r\n", (400, CLOSED)),
    "unknown method": Case(b"BREW /health HTTP/1.1\r\n\r\n", (400, CLOSED)),
    "method of another protocol": Case(b"DESCRIBE /health HTTP/1.1\r\n\r\n", (400, CLOSED)),
    "no version": Case(b"GET /health\r\n\r\n", (200, CLOSED)),
    "two blanks": Case(b"GET  /health HTTP/1.1\r\n\r\n", (200,)),
    "tab for a blank": Case(b"GET\t/health HTTP/1.1\r\n\r\n", (400, CLOSED)),
    "version 0.9": Case(b"GET /health HTTP/0.9\r\n\r\n", (200, CLOSED)),
    "version 3": Case(b"GET /health HTTP/3.0\r\n\r\n", (400, CLOSED)),
    "null in the path": Case(b"GET /hea\x00lth HTTP/1.1\r\n\r\n", (400, CLOSED)),
    "encoded null": Case(get(b"/health%00"), (404,)),
    "encoded slashes": Case(get(b"/v1%2f%2fmodels"), (200,)),
    "path upwards": Case(get(b"/../../../etc/passwd"), (404,)),
    "encoded path upwards": Case(get(b"/%2e%2e/%2e%2e/etc/passwd"), (404,)),
    "broken escape": Case(get(b"/%zz"), (404,)),
    "long path": Case(get(b"/" + b"a" * 30_000), (404,)),
    "endless path": Case(get(b"/" + b"a" * 80_000), (400, CLOSED)),
    "many slashes": Case(get(b"/" * 20_000 + b"health"), (200,)),
    "long query": Case(get(b"/health?" + b"a=b&" * 8000), (200,)),
    "fragment": Case(get(b"/health#x"), (200,)),
    "absolute form": Case(get(b"http://elsewhere:99/health"), (200,)),
    "absolute form of a file": Case(get(b"file:///etc/passwd"), (400, CLOSED)),
    "userinfo": Case(get(b"http://a:b@c/health"), (200,)),
    "no path but a query": Case(get(b"?x"), (400, CLOSED)),
    "model of many bytes": Case(get(b"/v1/models/" + b"%f0%9f%91%8b" * 500), (404,)),
    "model of markup": Case(get(b"/v1/models/%3Cscript%3E"), (404,)),
    "model with a line end": Case(get(b"/v1/models/a%0d%0aSet-Cookie:%20x"), (404,)),
    "template in the path": Case(get(b"/v1/models/%7B%7B7*7%7D%7D"), (404,)),
    # headers
    "no colon": Case(get(b"/health", b"Header\r\n"), (400, CLOSED)),
    "blank before the colon": Case(get(b"/health", b"Header : x\r\n"), (400, CLOSED)),
    "no name": Case(get(b"/health", b": x\r\n"), (400, CLOSED)),
    "folded header": Case(get(b"/health", b"A: b\r\n c\r\n"), (400, CLOSED)),
    "null in a value": Case(get(b"/health", b"A: b\x00c\r\n"), (400, CLOSED)),
    "carriage return in a value": Case(get(b"/health", b"A: b\rc\r\n"), (400, CLOSED)),
    "latin-1 in a value": Case(get(b"/health", b"A: \xe9\xff\r\n"), (200,)),
    "non-ascii name": Case(get(b"/health", b"\xc3\xa9: x\r\n"), (400, CLOSED)),
    "no host": Case(get(b"/health"), (200,)),
    "two hosts": Case(get(b"/health", b"Host: a\r\nHost: b\r\n"), (200,)),
    "thousand headers": Case(get(b"/health", b"".join(b"A%d: b\r\n" % n for n in range(1000))), (200,)),
    "too many headers": Case(get(b"/health", b"".join(b"A%d: b\r\n" % n for n in range(10_000))), (400, CLOSED)),
    "value of many bytes": Case(get(b"/health", b"A: " + b"b" * 60_000 + b"\r\n"), (200,)),
    "request id with a line end": Case(get(b"/health", b"X-Request-Id: a b\tc\r\n"), (200,)),
    "request id of many bytes": Case(get(b"/health", b"X-Request-Id: " + b"a" * 5000 + b"\r\n"), (200,)),
    "forwarded for nonsense": Case(get(b"/health", b"X-Forwarded-For: ,,;;\xff\r\nX-Forwarded-Proto: x\r\n"), (200,)),
    "origin of nonsense": Case(get(b"/health", b"Origin: \xff\xfe\r\n"), (200,)),
    "authorization of nonsense": Case(get(b"/health", b"Authorization: Bearer \xff\xfe\r\n"), (200,)),
    "expectation of nonsense": Case(post(chat_body(n=2), Expect="magic"), (400,)),
    "range": Case(get(b"/v1/models", b"Range: bytes=0-1\r\n"), (200,)),
    "method override": Case(get(b"/v1/models", b"X-HTTP-Method-Override: DELETE\r\n"), (200,)),
    # lengths
    "length and chunks": Case(post(chat_body(), Content_Length="3", Transfer_Encoding="chunked"), (400, CLOSED)),
    "two lengths": Case(post(chat_body(), Content_Length="3\r\nContent-Length: 4"), (400, CLOSED)),
    "two equal lengths": Case(post(b"{}", Content_Length="2\r\nContent-Length: 2"), (400, CLOSED)),
    "list of lengths": Case(post(b"{}", Content_Length="2, 2"), (400, CLOSED)),
    "negative length": Case(post(b"{}", Content_Length="-2"), (400, CLOSED)),
    "signed length": Case(post(b"{}", Content_Length="+2"), (400, CLOSED)),
    "hexadecimal length": Case(post(b"{}", Content_Length="0x2"), (400, CLOSED)),
    "length with a fraction": Case(post(b"{}", Content_Length="2.0"), (400, CLOSED)),
    "length of words": Case(post(b"{}", Content_Length="two"), (400, CLOSED)),
    "length past every integer": Case(post(b"{}", Content_Length="9" * 30), (400, CLOSED)),
    "length of the limit and one": Case(post(b"", Content_Length=str(LIMIT + 1)), (413,)),
    "length of an exabyte": Case(post(b"", Content_Length=str(2**60)), (413,)),
    "length in a get": Case(get(b"/health", b"Content-Length: 5\r\n") + b"hello" + OK, (200, 200)),
    "chunks in a get": Case(
        get(b"/health", b"Transfer-Encoding: chunked\r\n") + b"1\r\nx\r\n0\r\n\r\n" + OK, (200, 200)
    ),
    "another coding": Case(post(b"{}", Transfer_Encoding="gzip", Content_Length=""), (400, CLOSED)),
    "chunked and another": Case(request(CHAT, headers={"Transfer-Encoding": "chunked, gzip"}), (400, CLOSED)),
    "chunked twice": Case(request(CHAT, headers={"Transfer-Encoding": "chunked, chunked"}) + b"0\r\n\r\n", (400,)),
    "coding with a blank": Case(request(CHAT, headers={"Transfer-Encoding": " chunked"}) + b"0\r\n\r\n", (400,)),
    "coding of nonsense": Case(request(CHAT, headers={"Transfer-Encoding": "xchunked"}), (400, CLOSED)),
    # chunks
    "chunk of no number": Case(chunked(b"zz\r\n{}\r\n0\r\n\r\n"), (400, CLOSED)),
    "chunk of a negative size": Case(chunked(b"-2\r\n{}\r\n0\r\n\r\n"), (400, CLOSED)),
    "chunk past every integer": Case(chunked(b"f" * 40 + b"\r\n{}"), (400, CLOSED)),
    "chunk longer than said": Case(chunked(b"2\r\n{}{}\r\n0\r\n\r\n"), (400, CLOSED)),
    "chunk extension": Case(chunked(b"2;a=b\r\n{}\r\n0\r\n\r\n"), (400,)),
    "trailer": Case(chunked(b"2\r\n{}\r\n0\r\nChecksum: 5\r\n\r\n") + OK, (400, 200)),
    "length as a trailer": Case(chunked(b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n") + OK, (400, CLOSED)),
    "chunks of one byte": Case(
        chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"messages":5}')) + b"0\r\n\r\n", (400,)
    ),
    "only the last chunk": Case(chunked(b"0\r\n\r\n"), (400,)),
    "chunks over the limit": Case(chunked((b"%x\r\n" % 300_000 + b" " * 300_000 + b"\r\n") * 4 + b"0\r\n\r\n"), (413,)),
    # connections
    "nothing, half closed": Case(b"", (CLOSED,), half_closed=True),
    "half a head, half closed": Case(b"GET /hea", (CLOSED,), half_closed=True),
    "half a body, half closed": Case(post(b"{", Content_Length="100"), (CLOSED,), half_closed=True),
    "half a chunk, half closed": Case(chunked(b"ff\r\n{"), (CLOSED,), half_closed=True),
    "garbage": Case(bytes(range(256)) * 10, (400, CLOSED)),
    "tls": Case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500, (400, CLOSED)),
    "ssh": Case(b"SSH-2.0-OpenSSH_9.2\r\n", (400, CLOSED)),
    "smtp": Case(b"EHLO x\r\n\r\n", (400, CLOSED)),
    "http/2": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, CLOSED)),
    "proxy protocol": Case(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + OK, (400, CLOSED)),
    "connect": Case(b"CONNECT example:443 HTTP/1.1\r\n\r\n", (400, CLOSED)),
    "trace": Case(b"TRACE /health HTTP/1.1\r\n\r\n", (405,)),
    "websocket": Case(get(b"/health", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"), (200,)),
    "requests ahead": Case(OK * 20, (200,) * 20),
    "refusals ahead": Case(post(b"{") * 5 + OK, (400,) * 5 + (200,)),
    "request in a body": Case(post(OK * 100) + OK, (400, 200)),
    "request behind a close": Case(get(b"/health", b"Connection: close\r\n") + OK, (200, CLOSED)),
    "request behind a malformed one": Case(post(b"{}", Content_Length="x") + OK, (400, CLOSED)),
    "version 1.0 and ahead": Case(get(b"/health", version=b"HTTP/1.0") + OK, (200, CLOSED)),
    # bodies
    "body of the wrong type": Case(post(b"a=b", Content_Type="application/x-www-form-urlencoded"), (400,)),
    "body of form data": Case(post(b"--x\r\n\r\n--x--", Content_Type="multipart/form-data; boundary=x"), (400,)),
    "compressed body": Case(post(b"\x1f\x8b\x08\x00", Content_Encoding="gzip"), (400,)),
    "another charset": Case(post(chat_body(n=2), Content_Type="application/json; charset=utf-16"), (400,)),
    "body of blanks": Case(post(b" " * 500_000), (400,)),
    "body of nulls": Case(post(b"\x00" * 5000), (400,)),
    "body over the limit": Case(post(b" " * (LIMIT + 1)) + OK, (413, 200)),
    "body to no route": Case(request("/v1/none", b"x" * 500_000) + OK, (404, 200)),
    "body to a route that is read": Case(request("/v1/models", b"x" * 500_000) + OK, (405, 200)),
    "deep messages": Case(post(b'{"messages":' + DEEP + b"}"), (400,)),
    "deep unknown field": Case(post(b'{"messages":5,"x":' + DEEP + b"}"), (400,)),
    "many keys": Case(post(b"{" + b",".join(b'"k%d":1' % n for n in range(50_000)) + b"}"), (400,)),
    "same key again": Case(post(b"{" + b'"n":1,' * 20_000 + b'"n":2}'), (400,)),
    "long key": Case(post(b'{"' + b"k" * 500_000 + b'":1}'), (400,)),
    "long number": Case(post(b'{"messages":5,"seed":' + b"9" * 4000 + b"}"), (400,)),
    "number past every float": Case(post(b'{"messages":[],"temperature":1e400}'), (400,)),
    "many messages": Case(post(json.dumps({"messages": [5] * 100_000}).encode()), (400,)),
    "prompt past the window": Case(post(chat_body(messages=[{"role": "user", "content": "a b " * 50_000}])), (400,)),
    "schema bomb": Case(post(b'{"messages":[],"x":{"$ref":"#"}}'), (400,)),
    "attributes of python": Case(post(b'{"messages":[],"__class__":{"__init__":1}}'), (400,)),
    "tokens of nothing": Case(request("/detokenize", b'{"tokens":[[]]}'), (400,)),
    "tokens past every integer": Case(request("/detokenize", b'{"tokens":[1e30]}'), (400,)),
    "text to tokens of nothing": Case(request("/tokenize", b'{"prompt":{}}'), (400,)),
}  # fmt: skip

FIELDS = {
    **{f"chat {fields!r:.60}": post(json.dumps({"messages": HI, **fields}).encode()) for fields, _ in CHAT_FIELDS},
    **{f"completion {b!r:.60}": request("/v1/completions", json.dumps(b).encode()) for b, _ in COMPLETION_FIELDS},
    **{f"body: {name}": request(CHAT, body) for name, body in BODIES.items()},
}  # fmt: skip
CASES = {**TRANSPORT, **{name: Case(sent, (400,)) for name, sent in FIELDS.items()}}
OF_LIMIT = frozenset({"length of the limit and one", "chunks over the limit", "body over the limit"})
"""Cases that mean a server that reads no more."""

M_MMAP_THRESHOLD = -3  # of malloc.h
WARM_UP = 4
ROUNDS = 12
"""How often everything is sent. The first rounds fill caches, thread stacks and the allocator's arenas."""


def test_corpus_is_large_enough() -> None:
    assert len(TRANSPORT) >= 100
    assert len(CASES) >= 250
    assert len(CASES) * (ROUNDS - WARM_UP) >= 2000


async def answer_of(reader: asyncio.StreamReader) -> Answer | None:
    """The next answer, None when the connection was closed instead."""
    try:
        return await asyncio.wait_for(read_answer(reader), SOON_S)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def play(connect: Connect, name: str, case: Case) -> None:
    """Send one case and check every answer."""
    reader, writer = await connect()
    writer.write(case.sent)
    if case.half_closed:
        writer.write_eof()
    for status in case.statuses:
        answer = await answer_of(reader)
        assert (answer.status if answer else CLOSED) == status, (name, answer)
        if answer and status != 200:
            check(answer.status, answer.json(), status)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def give_large_memory_back() -> None:
    """Have the allocator return what is large as soon as it is freed: by default it comes to keep the bodies that
    threads had in hand, some more with every thread, which looks like a leak and is none.
    """
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 64 * 1024) == 1


def resident_bytes() -> int:
    """Memory of this process, without what the allocator only keeps for later: that comes and goes with threads."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_every_hostile_request_ends_as_documented_and_memory_stays_flat(serve: Serve) -> None:
    give_large_memory_back()
    async with serve(max_body_bytes=LIMIT, keepalive_s=0) as server:
        measured = []
        for _ in range(ROUNDS):
            for name, case in CASES.items():
                await play(server.connect, name, case)
            measured.append(resident_bytes())
        assert server.engine.replies == []
        server.says("</think>", "Yes.", "<|user|>")
        assert (await server.chat()).json()["choices"][0]["message"]["content"] == "Yes."
    assert measured[-1] - measured[WARM_UP - 1] < 12 * 2**20, measured
