# SPDX-License-Identifier: Apache-2.0
"""What the probe sees of a host: sockets and their owners, directories, names, engine, endpoint, remembered ports."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _host, _ready, _sockets


def test_the_kernels_list_of_sockets_is_read_in_both_families() -> None:
    header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    listening = "   0: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n"
    connected = "   1: 0100007F:22B8 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n"
    six = "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 99 1 0\n"
    assert _sockets.parse_listening(header + listening + connected) == [
        {"address": "127.0.0.1", "port": 8888, "uid": 0, "inode": 4711}
    ]
    assert _sockets.parse_listening(header + six) == [{"address": "::", "port": 8080, "uid": 0, "inode": 99}]


def entry(port: int, ranks: dict[int, int]) -> dict[str, object]:
    return next(found for found in _sockets.listening(ranks) if found["port"] == port)


def test_a_listening_socket_is_told_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = entry(server.getsockname()[1], {})
    assert (found["pid"], found["address"], found["rank"]) == (os.getpid(), "127.0.0.1", None)
    assert "py" in str(found["command"])


def test_a_socket_of_a_ranks_child_belongs_to_the_rank() -> None:
    source = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert entry(port, {3: os.getpid()})["rank"] == 3
        assert entry(port, {3: child.pid})["rank"] == 3
        assert entry(port, {})["rank"] is None
        child.communicate("\n")


@pytest.mark.parametrize(
    ("words", "of_the_same_user", "rank"),
    [("--port 8888", True, 3), ("--port 8889", True, None), ("--port 8888", False, None)],
)
def test_a_socket_whose_owner_cannot_be_seen_is_that_ranks_which_was_told_its_port(
    tmp_path: Path, words: str, of_the_same_user: bool, rank: int | None
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "cmdline").write_text("\0".join(["tensorfold", "serve", *words.split(), ""]))
    uid = (tmp_path / "4711").stat().st_uid + (0 if of_the_same_user else 1)
    line = f"0: 00000000:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {uid} 0 99 1 0"
    (tmp_path / "net" / "tcp").write_text(f"header\n{line}\n")
    (found,) = _sockets.listening({3: 4711}, proc=str(tmp_path))
    assert (found["pid"], found["rank"]) == (None, rank)


def test_own_addresses_are_told_from_others() -> None:
    assert _sockets.is_local("127.0.0.1")
    assert not _sockets.is_local("192.0.2.77")


def test_a_directory_that_is_missing_is_judged_by_where_it_would_be_created(tmp_path: Path) -> None:
    seen = _host.directory(str(tmp_path / "a" / "b"))
    assert (seen["exists"], seen["writable"], seen["nearest"]) == (False, True, str(tmp_path))
    assert seen["free_bytes"] > 0


def test_a_file_in_the_way_of_a_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    seen = _host.directory(str(tmp_path / "file" / "b"))
    assert (seen["writable"], seen["nearest_is_directory"]) == (False, False)
    assert seen["nearest"] == str(tmp_path / "file")


def test_a_dangling_link_is_not_taken_for_a_free_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert not _host.directory(str(tmp_path / "link"))["writable"]


def test_the_hosts_file_tells_what_the_own_name_leads_to(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1\tspark-1.example spark-1 # me\n# 192.0.2.9 spark-1\n")
    assert _host.hosts_file_addresses("spark-1", str(hosts)) == ["127.0.1.1"]
    assert _host.hosts_file_addresses("spark-2", str(hosts)) == []
    assert _host.hosts_file_addresses("spark-1", str(tmp_path / "none")) == []


def test_memory_is_read_in_bytes(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\n")
    assert _host.memory(str(meminfo)) == {"total_bytes": 2 << 20, "available_bytes": 1 << 20}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import sys; sys.exit('error: broken')", "exit code 1: error: broken"),
        ("print('hello')", "not the expected JSON: 'hello'"),
        ("print('[]')", "not the expected JSON"),
        ("import sys; sys.exit(3)", "exit code 3: it said nothing"),
    ],
)
def test_an_engine_that_does_not_answer_says_why(source: str, words: str) -> None:
    assert words in _host.engine([sys.executable, "-c", source], {})["error"]


def test_an_engine_that_is_not_there_says_so() -> None:
    assert _host.engine(["/nowhere/sparkpair"], {})["error"] == "No such file or directory"


def test_an_engine_is_asked_in_the_environment_of_a_rank() -> None:
    source = "import json, os; print(json.dumps({'version': os.environ['V'], 'code_digest': 'd'}))"
    assert _host.engine([sys.executable, "-c", source], {"V": "9"}) == {"version": "9", "code_digest": "d", "error": ""}


class Api(http.server.BaseHTTPRequestHandler):
    """Ready, with a health document; or not, when the server says so."""

    def do_GET(self) -> None:
        key = getattr(self.server, "key", None)
        if key and self.headers["Authorization"] != f"Bearer {key}":
            self.send_error(401)
            return
        self.send_response(200 if self.path in getattr(self.server, "answers", ()) else 503)
        self.end_headers()
        self.wfile.write(b'{"ok": true, "step": 5}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_endpoint_is_ready_when_it_lists_its_models(
    api: http.server.ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A proxy of the environment must not come between a host and its own rank.
    monkeypatch.setenv("http_proxy", "http://192.0.2.9:1")
    api.answers = ("/v1/models", "/health")  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{api.server_port}"
    assert _host.endpoint(url, "/v1/models", "/health")["health"] == {"ok": True, "step": 5}
    api.answers = ("/health",)  # type: ignore[attr-defined]
    seen = _host.endpoint(url, "/v1/models", "/health")
    assert (seen["ready"], seen["health"]) == (False, None)
    assert "503" in seen["error"]


def test_an_endpoint_with_keys_is_ready_for_who_has_one(api: http.server.ThreadingHTTPServer) -> None:
    api.answers, api.key = ("/v1/models", "/health"), "sk-1"  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{api.server_port}"
    assert _host.endpoint(url, "/v1/models", "/health", "sk-1")["ready"]
    assert "401" in _host.endpoint(url, "/v1/models", "/health")["error"]
    assert (_ready.is_ready(f"{url}/v1/models", "sk-1"), _ready.is_ready(f"{url}/v1/models")) == (True, False)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": "x"}', '{"port": null}'])
def test_a_damaged_memory_of_ports_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(text)
    assert _host.remembered_ports(str(path)) == {}


def test_remembered_ports_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    path.write_text(json.dumps({"port": 1, "master_port": 2, "other": 3}))
    assert _host.remembered_ports(str(path)) == {"port": 1, "master_port": 2}
