# SPDX-License-Identifier: Apache-2.0
"""Fetches pictures and clips from https URLs, without becoming a way into the network that the server stands in.

A name is resolved once, all its addresses have to be public, and the connection goes to the address that was looked at;
a redirect is another URL for which all of this begins anew. Time and size are limited as a whole. What is said of a
failure tells nothing of what was found there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import httptools

from sparkpair.api.errors import ApiError, invalid
from sparkpair.chat.media import MediaRef
from sparkpair.media.errors import MediaError
from sparkpair.media.limits import MediaLimits

LONGEST_URL = 4096
LONGEST_HEAD = 64 * 1024
MOST_REDIRECTS = 3
HTTPS_PORT = 443
REDIRECTS = (301, 302, 303, 307, 308)
READ_BYTES = 64 * 1024

TYPES = {
    "picture": ("image/jpeg", "image/png", "image/webp"),
    "clip": ("video/mp4", "video/webm", "video/quicktime", "video/x-matroska"),
}
SECONDS = {"picture": 10.0, "clip": 20.0}
SECONDS_TOGETHER = {"picture": 30.0, "clip": 120.0}

_LOCAL_NAMES = ("localhost", "localhost.localdomain", "metadata", "metadata.google.internal", "instance-data")
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".localdomain")

# What counts as global by its registration, and still leads into a machine's own surroundings.
_CLOSED = tuple(
    ipaddress.ip_network(network)
    for network in ("192.0.0.0/24", "168.63.129.16/32", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str], Awaitable[Sequence[str]]]
Connect = Callable[[str, str], Awaitable[Streams]]


class Target(NamedTuple):
    """Where to ask: the host's name in ASCII, and path and query."""

    host: str
    path: str


def target_of(url: str) -> Target:
    """A URL taken apart. Raises MediaError saying which rule it breaks."""
    if len(url) > LONGEST_URL:
        raise MediaError(f"the URL has {len(url)} characters; at most {LONGEST_URL} are allowed")
    if any(character <= " " or character in "\\\x7f" or character.isspace() for character in url):
        raise MediaError("the URL has blanks, control characters or a backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise MediaError("the URL is malformed") from None
    if parts.scheme != "https":
        raise MediaError("only https URLs and data URLs are read")
    if port not in (None, HTTPS_PORT):
        raise MediaError("only port 443 is allowed in a URL")
    if "@" in parts.netloc or "#" in url or "%" in parts.netloc or not parts.hostname:
        raise MediaError("the URL may have no user, no fragment, and no escapes in its host")
    try:
        host = parts.hostname.rstrip(".").encode("idna").decode("ascii").lower()
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        path.encode("ascii")
    except UnicodeError:
        raise MediaError("the URL's host is no valid name, or its path is not ASCII") from None
    if host in _LOCAL_NAMES or host.endswith(_LOCAL_SUFFIXES) or not host:
        raise MediaError("the URL's host is not a public one")
    return Target(host, path)


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet."""
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address.is_site_local):
        return False
    closed = any(address.version == network.version and address in network for network in _CLOSED)
    return address.is_global and not (closed or address.is_multicast or address.is_reserved or address.is_unspecified)


async def _resolve(host: str) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, HTTPS_PORT, type=1)
    return [str(entry[4][0]) for entry in found]


async def _connect(address: str, host: str) -> Streams:
    return await asyncio.open_connection(
        address, HTTPS_PORT, ssl=ssl.create_default_context(), server_hostname=host, limit=READ_BYTES
    )


class Fetcher:
    """Fetches. `resolve` gives all addresses of a name; `connect` opens a checked TLS connection to one of them."""

    def __init__(self, resolve: Resolve = _resolve, connect: Connect = _connect) -> None:
        self._resolve = resolve
        self._connect = connect

    def check(self, url: str) -> None:
        """Raise MediaError for what can be refused without the network."""
        self._literal(target_of(url).host)

    def budget(self, media: Sequence[MediaRef]) -> FetchBudget:
        """The time and bytes that one request has for all it names."""
        return FetchBudget(self, media)

    async def fetch(self, url: str, kind: str, most_bytes: int) -> bytes:
        """The bytes behind a URL. Raises MediaError."""
        for _ in range(MOST_REDIRECTS + 1):
            target = target_of(url)
            reader, writer = await self._open(target.host)
            try:
                found = await _Exchange(kind, most_bytes).run(reader, writer, target)
            except (OSError, ssl.SSLError, httptools.HttpParserError):
                raise MediaError("the URL's server does not answer as it should") from None
            finally:
                writer.close()
                with contextlib.suppress(OSError, ssl.SSLError):
                    writer.transport.abort()
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found.location)
        raise MediaError(f"the URL redirects more than {MOST_REDIRECTS} times")

    async def _open(self, host: str) -> Streams:
        for address in await self._public_addresses(host):
            try:
                return await self._connect(address, host)
            except (OSError, ssl.SSLError):
                continue
        raise MediaError("no connection to the URL's host, or its certificate is not valid")

    async def _public_addresses(self, host: str) -> Sequence[str]:
        literal = self._literal(host)
        if literal is not None:
            return [literal]
        try:
            found = await self._resolve(host)
        except OSError:
            raise MediaError("the URL's host is unknown") from None
        addresses = list(dict.fromkeys(found))
        try:
            public = all(is_public(ipaddress.ip_address(address)) for address in addresses)
        except ValueError:
            public = False
        if not addresses or not public:
            raise MediaError("the URL's host is not a public one")
        return addresses

    @staticmethod
    def _literal(host: str) -> str | None:
        """The address that a host is written as; None for a name. Raises MediaError when it is not public."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            # Shortened and octal forms are no names either, whatever a resolver makes of them.
            if host.rpartition(".")[2].isdigit() or host.rpartition(".")[2].startswith("0x"):
                raise MediaError("the URL's host is no valid name") from None
            return None
        if not is_public(address):
            raise MediaError("the URL's host is not a public one")
        return str(address)


class FetchBudget:
    """What is left for one request."""

    def __init__(self, fetcher: Fetcher, media: Sequence[MediaRef]) -> None:
        self._fetcher = fetcher
        self._clock = asyncio.get_running_loop().time
        self._seconds = dict(SECONDS_TOGETHER)
        self._bytes: dict[str, int] = {"picture": 0, "clip": 0}

    async def fetch(self, ref: MediaRef, limits: MediaLimits) -> bytes:
        """The bytes of one. Raises ApiError 400."""
        most, together = (
            (limits.picture_bytes, limits.picture_bytes_together)
            if ref.kind == "picture"
            else (limits.clip_bytes, limits.clip_bytes_together)
        )
        seconds = max(0.0, min(SECONDS[ref.kind], self._seconds[ref.kind]))
        started = self._clock()
        try:
            async with asyncio.timeout(seconds):
                data = await self._fetcher.fetch(ref.url, ref.kind, min(most, together - self._bytes[ref.kind]))
        except TimeoutError:
            raise _refused(ref, f"the URL's server takes longer than {seconds:g} s") from None
        except MediaError as error:
            raise _refused(ref, str(error)) from None
        self._seconds[ref.kind] -= self._clock() - started
        self._bytes[ref.kind] += len(data)
        return data


def _refused(ref: MediaRef, reason: str) -> ApiError:
    return invalid(f"{ref.where}: {reason}", "messages")


class _Redirect(NamedTuple):
    location: str


class _Exchange:
    """One question and its answer, as the parser reports it."""

    def __init__(self, kind: str, most_bytes: int) -> None:
        self._kind = kind
        self._most = most_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._head_done = False
        self._done = False

    async def run(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target
    ) -> bytes | _Redirect:
        """Ask, and read the answer to its end. Raises MediaError, or HttpParserError for what is no answer."""
        host = f"[{target.host}]" if ":" in target.host else target.host
        accepted = ", ".join(TYPES[self._kind])
        writer.write(
            f"GET {target.path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sparkpair\r\nAccept: {accepted}\r\n"
            "Accept-Encoding: identity\r\nConnection: close\r\n\r\n".encode("ascii")
        )
        await writer.drain()
        head_bytes = 0
        while not self._done:
            data = await reader.read(READ_BYTES)
            if not data:
                break
            self._parser.feed_data(data)
            if self._head_done:
                if self._parser.get_status_code() in REDIRECTS and "location" in self._headers:
                    return _Redirect(self._headers["location"])
                self._check()
                continue
            head_bytes += len(data)
            if head_bytes > LONGEST_HEAD:
                raise MediaError("the URL's server sends too much before the file")
        sized = "content-length" in self._headers or "transfer-encoding" in self._headers
        if not self._head_done or (not self._done and sized):
            raise MediaError("the URL's server ends its answer too early")
        return b"".join(self._body)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or one more of the same name."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        """An interim answer is followed by the real one."""
        if self._parser.get_status_code() < 200:
            self._headers.clear()
        else:
            self._head_done = True

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._size += len(body)
        if self._size <= self._most:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The end, as the answer itself declares it."""
        self._done = self._head_done

    def _check(self) -> None:
        if self._parser.get_status_code() != 200:
            raise MediaError(f"the URL's server answers with status {self._parser.get_status_code()}")
        declared = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        if declared not in TYPES[self._kind]:
            raise MediaError(f"the URL's file is not declared as one of {', '.join(TYPES[self._kind])}")
        if self._headers.get("content-encoding", "identity").lower() != "identity":
            raise MediaError("the URL's file is sent compressed")
        length = self._headers.get("content-length", "0")
        if self._size > self._most or not length.isdigit() or int(length) > self._most:
            raise MediaError(f"the URL's file is larger than the {self._most} bytes that are allowed")
