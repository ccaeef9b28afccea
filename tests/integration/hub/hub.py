# SPDX-License-Identifier: Apache-2.0
"""A hub on loopback that the real huggingface_hub downloads from: LFS and plain files, tokens, and faults on demand."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_PIECE = 64 * 1024


def git_hash(data: bytes) -> str:
    """The name that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    """A repository at one commit. Files that end in .safetensors are LFS files."""

    files: dict[str, bytes]
    commit: str = COMMIT
    token: str = ""
    gated: bool = False

    def blob(self, path: str) -> str:
        data = self.files[path]
        return hashlib.sha256(data).hexdigest() if path.endswith(".safetensors") else git_hash(data)


@dataclass
class Hub:
    """What the server has, what it shall do wrong, and what it was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    # After so many bytes of a file the connection is cut, for as long as the file is in here.
    cut: dict[str, int] = field(default_factory=dict)
    # Files whose body is another one than announced.
    wrong: dict[str, bytes] = field(default_factory=dict)
    # Set while a file's body may be sent; a test that wants a slow hub clears it after `held_after` bytes.
    flowing: threading.Event = field(default_factory=threading.Event)
    held_after: int = 0
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    endpoint: str = ""

    def downloads(self) -> list[str]:
        """The files whose bodies were asked for, in order."""
        return [path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Authorization", "")))
        words = path.strip("/").split("/")
        api = words[:2] == ["api", "models"]
        words = words[2:] if api else words
        name, verb, revision, rest = "/".join(words[:2]), words[2], words[3], "/".join(words[4:])
        found = self.hub.repositories.get(name)
        if found is None:
            return self._refuse(401, "RepoNotFound")
        if revision not in (found.commit, "main"):
            return self._refuse(404, "RevisionNotFound")
        # The list of a gated repository is public, its files are not.
        if found.token and (verb == "resolve" or not found.gated):
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if given and given not in (found.token, "terms-not-accepted"):
                return self._refuse(401, "")
            if given != found.token:
                return self._refuse(403 if given else 401, "GatedRepo")
        if api:
            return self._list(found, verb, body)
        if rest not in found.files:
            return self._refuse(404, "EntryNotFound")
        return self._file(found, rest, body)

    def _list(self, found: Repository, verb: str, body: bool) -> None:
        if verb == "tree":
            entries = [
                {
                    "type": "file",
                    "path": path,
                    "size": len(data),
                    "oid": git_hash(data),
                    **({"lfs": self._lfs(found, path)} if path.endswith(".safetensors") else {}),
                }
                for path, data in found.files.items()
            ]
            return self._send(200, json.dumps(entries).encode(), body)
        siblings = [
            {
                "rfilename": path,
                "size": len(data),
                "blobId": git_hash(data),
                **({"lfs": self._lfs(found, path)} if path.endswith(".safetensors") else {}),
            }
            for path, data in found.files.items()
        ]
        return self._send(200, json.dumps({"sha": found.commit, "siblings": siblings}).encode(), body)

    def _lfs(self, found: Repository, path: str) -> dict[str, Any]:
        return {"oid": found.blob(path), "sha256": found.blob(path), "size": len(found.files[path]), "pointerSize": 130}

    def _file(self, found: Repository, path: str, body: bool) -> None:
        data = found.files[path]
        begin = 0
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes="):
            begin = int(asked[6:].split("-")[0])
        self.send_response(206 if begin else 200)
        headers = {
            "ETag": f'"{found.blob(path)}"',
            "X-Repo-Commit": found.commit,
            "Accept-Ranges": "bytes",
            "Content-Length": str(len(data) - begin),
        }
        if path.endswith(".safetensors"):
            headers |= {"X-Linked-Etag": f'"{found.blob(path)}"', "X-Linked-Size": str(len(data))}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if not body:
            return
        data = self.hub.wrong.get(path, data)
        end = min(len(data), self.hub.cut.get(path, len(data)))
        at = begin
        while at < end:
            if at >= self.hub.held_after:
                self.hub.flowing.wait(60)
            piece = data[at : min(at + _PIECE, end)]
            try:
                self.wfile.write(piece)
            except OSError:
                self.close_connection = True
                return
            at += len(piece)
            self.hub.sent[path] = self.hub.sent.get(path, 0) + len(piece)
        if end < len(data):
            self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", self.command == "GET", {"X-Error-Code": code} if code else {})

    def _send(self, status: int, text: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        own = {"Content-Type": "application/json", "Content-Length": str(len(text))}
        for name, value in {**own, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(text)


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve a hub on a free port of loopback until the end."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    hub.flowing.set()
    try:
        yield hub
    finally:
        hub.flowing.set()
        server.shutdown()
        server.server_close()
        thread.join()
