# SPDX-License-Identifier: Apache-2.0
"""Files behind https URLs: from public addresses only, once looked at, in bounded time and size, telling nothing."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import pathlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sparkpair.api import fetch
from sparkpair.api.errors import ApiError
from sparkpair.api.fetch import Fetcher, is_public, target_of
from sparkpair.chat.media import MediaRef
from sparkpair.media.errors import MediaError
from sparkpair.media.limits import MediaLimits
from sparkpair.media.prepared import prepare

from tests.engine.api.conftest import Serve
from tests.engine.media.files import clip, encoded, picture

HOST = "pictures.example"
PUBLIC, OTHER_PUBLIC = "93.184.216.34", "2606:2800:220:1::1"
DATA = encoded(picture(100, 100))
LIMITS = MediaLimits()
Answer = bytes | Callable[[asyncio.StreamWriter], object]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A certificate of HOST that is its own authority, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("certificate") / "both.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


class Web:
    """One server that stands for the whole web: what it answers by path, what it was asked, and where that went."""

    def __init__(self, certificate: pathlib.Path) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[bytes] = []
        self.connected: list[tuple[str, str]] = []
        self.names: dict[str, Sequence[str]] = {HOST: [PUBLIC]}
        self.resolved: list[str] = []
        self._server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._server.load_cert_chain(certificate)
        self._client = ssl.create_default_context(cafile=certificate)
        self.fetcher = Fetcher(self.resolve, self.connect)

    async def resolve(self, host: str) -> Sequence[str]:
        self.resolved.append(host)
        if host not in self.names:
            raise OSError
        return self.names[host]

    async def connect(self, address: str, host: str) -> fetch.Streams:
        self.connected.append((address, host))
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self._client, server_hostname=host)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            answer = self.answers[self.asked[-1].split()[1].decode()]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
                writer.close()
            else:
                answer(writer)
                await reader.read()
                writer.close()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=self._server)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def get(self, path: str = "/a.png", kind: str = "picture", most: int = 10**6) -> bytes:
        return await self.fetcher.fetch(f"https://{HOST}{path}", kind, most)


@pytest.fixture
async def web(certificate: pathlib.Path) -> AsyncIterator[Web]:
    made = Web(certificate)
    async with made.open():
        yield made


def answer(
    body: bytes = DATA, *lines: str, status: str = "200 OK", kind: str = "image/png", sized: bool = True
) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *lines]
    head += [f"Content-Length: {len(body)}"] if sized else []
    return "\r\n".join([*head, "", ""]).encode() + body


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://pictures.example/a.png", "only https"),
        ("ftp://pictures.example/a.png", "only https"),
        ("file:///etc/passwd", "only https"),
        ("//pictures.example/a.png", "only https"),
        ("a.png", "only https"),
        ("https://pictures.example:8443/a.png", "port 443"),
        ("https://pictures.example:x/a.png", "malformed"),
        ("https://me@pictures.example/a.png", "no user"),
        ("https://me:pw@127.0.0.1/a.png", "no user"),
        ("https://pictures.example/a.png#x", "no fragment"),
        ("https://pictures.example/a.png#", "no fragment"),
        ("https://%31%32%37.0.0.1/", "no escapes in its host"),
        ("https:///a.png", "no escapes in its host"),
        ("https://pictures.example\\@127.0.0.1/", "backslash"),
        ("https://pictures.example/a b", "blanks"),
        ("https://pictures.example/a\tb", "blanks"),
        ("https://pictures.example/a\r\nX: y", "blanks"),
        ("https://pictures.example/\u2003", "blanks"),
        ("https://pictures.example/ä", "not ASCII"),
        ("https://[::1/", "malformed"),
        ("https://" + "a" * 64 + ".example/", "no valid name"),
        ("https://localhost/", "not a public one"),
        ("https://x.LOCALHOST./", "not a public one"),
        ("https://metadata.google.internal/", "not a public one"),
        ("https://spark.local/", "not a public one"),
        ("https://pictures.example/" + "a" * 4096, "at most 4096"),
    ],
)
def test_a_url_that_breaks_a_rule_is_refused_before_anything_is_asked(url: str, reason: str) -> None:
    with pytest.raises(MediaError, match=reason):
        target_of(url)


def test_names_of_other_scripts_are_asked_for_in_their_ascii_form() -> None:
    assert target_of("https://bücher.example/a?b=c&d") == ("xn--bcher-kva.example", "/a?b=c&d")
    assert target_of("https://PICTURES.example:443") == (HOST, "/")


CLOSED = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "192.0.2.1",
    "192.0.0.8", "198.18.0.1", "203.0.113.5", "224.0.1.1", "240.0.0.1", "255.255.255.255", "168.63.129.16", "::1", "::",
    "fe80::1", "fc00::1", "fec0::1", "ff02::1", "::ffff:93.184.216.34", "::ffff:127.0.0.1", "2002:7f00:1::",
    "2001:0:7f00::1", "64:ff9b::7f00:1", "2001:db8::1", "100::1",
]  # fmt: skip


@pytest.mark.parametrize("address", CLOSED)
async def test_no_address_that_is_not_public_is_connected_to(web: Web, address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    literal = f"[{address}]" if ":" in address else address
    with pytest.raises(MediaError, match="not a public one"):
        web.fetcher.check(f"https://{literal}/")
    for addresses in ([address], [PUBLIC, address]):
        web.names[HOST] = addresses
        with pytest.raises(MediaError, match="not a public one") as told:
            await web.get()
        assert address not in str(told.value)
    assert web.connected == []


@pytest.mark.parametrize("host", ["127.1", "0177.0.0.1", "0x7f000001", "2130706433", "127.0.0.0x1", "1.2.3.4.5"])
async def test_other_spellings_of_an_address_are_no_names(web: Web, host: str) -> None:
    with pytest.raises(MediaError, match=r"no valid name|not a public one"):
        await web.fetcher.fetch(f"https://{host}/", "picture", 1000)
    assert (web.resolved, web.connected) == ([], [])


async def test_a_file_comes_from_the_address_that_was_looked_at(web: Web) -> None:
    web.names[HOST] = [OTHER_PUBLIC, PUBLIC]
    web.answers["/a.png?x=1"] = answer()
    assert await web.get("/a.png?x=1") == DATA
    assert (web.resolved, web.connected) == ([HOST], [(OTHER_PUBLIC, HOST)])
    asked = web.asked[0].decode()
    assert asked.startswith(f"GET /a.png?x=1 HTTP/1.1\r\nHost: {HOST}\r\n")
    assert "Accept-Encoding: identity" in asked


async def test_every_way_of_sending_a_body_is_read(web: Web) -> None:
    half = len(DATA) // 2
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (DATA[:half], DATA[half:])) + b"0\r\n\r\n"
    web.answers = {
        "/chunked": answer(b"", "Transfer-Encoding: chunked", sized=False) + chunks,
        "/unsized": answer(sized=False),
        "/interim": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + answer(),
    }
    for path in web.answers:
        assert await web.get(path) == DATA, path
    web.answers["/clip"] = answer(CLIP := clip(4, 2), kind="Video/MP4; codecs=x")
    assert await web.get("/clip", "clip") == CLIP


async def test_redirects_are_looked_at_like_any_url_and_are_few(web: Web) -> None:
    def to(where: str) -> bytes:
        return answer(b"", f"Location: {where}", status="302 Found")

    web.names |= {"inside.example": ["10.0.0.1"]}
    web.answers = {
        "/1": to("/2"), "/2": to(f"https://{HOST}/3"), "/3": to("a.png"), "/a.png": answer(), "/loop": to("/loop"),
        "/inside": to("https://inside.example/"), "/plain": to(f"http://{HOST}/a.png"), "/port": to(":443/"),
        "/metadata": to("https://169.254.169.254/latest/"), "/none": answer(b"", status="302 Found"),
    }  # fmt: skip
    assert await web.get("/1") == DATA
    assert web.resolved == [HOST] * 4
    for path, reason in (
        ("/loop", "redirects more than 3 times"),
        ("/inside", "not a public one"),
        ("/plain", "only https"),
        ("/metadata", "not a public one"),
        ("/none", "status 302"),
    ):
        with pytest.raises(MediaError, match=reason):
            await web.get(path)
    assert {address for address, _ in web.connected} == {PUBLIC}


async def test_an_answer_that_is_not_the_file_is_refused_and_not_repeated(web: Web) -> None:
    web.answers = {
        "/missing": answer(b"secret", status="404 secret"),
        "/html": answer(b"secret", kind="text/html"),
        "/svg": answer(b"secret", kind="image/svg+xml"),
        "/nothing": answer(b"secret", kind=""),
        "/gzip": answer(b"secret", "Content-Encoding: gzip"),
        "/large": answer(b"x" * 2000),
        "/larger": answer(b"x" * 2000, sized=False),
        "/lies": answer(b"", "Content-Length: 99999999999", sized=False),
        "/early": answer(b"x", "Content-Length: 900", sized=False),
        "/noise": b"secret\r\n\r\n",
        "/head": b"HTTP/1.1 200 OK\r\n" + b"X: secret\r\n" * 10_000,
        "/silent": b"",
        "/upgrade": answer(b"", "Upgrade: x", status="101 Switching"),
    }
    reasons = {
        "/missing": "status 404", "/html": "not declared", "/svg": "not declared", "/nothing": "not declared",
        "/gzip": "compressed", "/large": "larger than the 1000", "/larger": "larger than the 1000",
        "/lies": "larger than the 1000", "/early": "too early", "/noise": "does not answer as it should",
        "/head": "too much before", "/silent": "too early", "/upgrade": "too early|does not answer",
    }  # fmt: skip
    for path, reason in reasons.items():
        with pytest.raises(MediaError, match=reason) as told:
            await web.get(path, most=1000)
        assert "secret" not in str(told.value)
    with pytest.raises(MediaError, match="not declared"):
        await web.get("/large", "clip")


async def test_a_certificate_has_to_be_of_the_name_and_from_an_authority(web: Web, certificate: pathlib.Path) -> None:
    web.names |= {"other.example": [PUBLIC]}
    with pytest.raises(MediaError, match="certificate is not valid"):
        await web.fetcher.fetch("https://other.example/", "picture", 1000)
    with pytest.raises(MediaError, match="unknown"):
        await web.fetcher.fetch("https://nowhere.example/", "picture", 1000)
    web._client = ssl.create_default_context()
    with pytest.raises(MediaError, match="certificate is not valid"):
        await web.get()
    assert web.asked == []


@pytest.mark.parametrize("stuck", ["name", "head", "body"])
async def test_time_is_limited_as_a_whole_wherever_it_is_lost(
    web: Web, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    monkeypatch.setitem(fetch.SECONDS, "picture", 0.2)
    if stuck == "name":

        async def never(host: str) -> Sequence[str]:
            await asyncio.Event().wait()
            return []

        web.fetcher = Fetcher(never, web.connect)
    begun = b"HTTP/1.1 200 OK\r\nContent-" if stuck == "head" else answer(b"x", "Content-Length: 9", sized=False)
    web.answers["/a.png"] = lambda writer: writer.write(begun)
    ref = MediaRef("picture", f"https://{HOST}/a.png", "messages[0].content[1]")
    with pytest.raises(ApiError, match=r"messages\[0\]\.content\[1\]: the URL's server takes longer than 0\.2 s"):
        await web.fetcher.budget([ref]).fetch(ref, LIMITS)


async def test_the_files_of_a_request_share_their_bytes(web: Web) -> None:
    web.answers["/a.png"] = answer()
    refs = [MediaRef("picture", f"https://{HOST}/a.png", f"messages[0].content[{number}]") for number in range(3)]
    budget = web.fetcher.budget(refs)
    limits = MediaLimits(picture_bytes_together=2 * len(DATA))
    assert [await budget.fetch(ref, limits) for ref in refs[:2]] == [DATA, DATA]
    with pytest.raises(ApiError, match=r"content\[2\]: the URL's file is larger than the 0 bytes"):
        await budget.fetch(refs[2], limits)


async def test_requests_name_urls_where_that_is_turned_on(
    web: Web, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.answers["/a.png"] = answer()
    monkeypatch.setattr("sparkpair.api.serving.Fetcher", lambda: web.fetcher)
    part = {"type": "image_url", "image_url": {"url": f"https://{HOST}/a.png"}}
    async with serve(vision=True, vision_urls=True) as server:
        assert (await server.chat(messages=[{"role": "user", "content": [part]}])).status_code == 200
        (found,) = server.engine.last.media
        assert found.digest == prepare("picture", DATA, LIMITS).digest
        part["image_url"] = {"url": "https://127.0.0.1/a.png"}
        told = (await server.chat(messages=[{"role": "user", "content": [part]}])).json()["error"]["message"]
        assert told == "messages[0].content[0]: the URL's host is not a public one"
