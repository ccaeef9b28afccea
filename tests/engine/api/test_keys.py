# SPDX-License-Identifier: Apache-2.0
"""API keys: who gets in, what a rotation does, and that no key is ever seen again."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

import anthropic
import openai
import pytest
from sparkpair.api.arguments import add_arguments, http_settings
from sparkpair.api.keys import RECHECK_S, KeyRing, KeysUnavailable, parse_keys
from sparkpair.errors import UserError

from tests.engine.api.conftest import MODEL, Serve, Server
from tests.engine.api.raw import read_answer, request

KEY = "sk-alpha-1234567890"
OTHER = "sk-beta-0987654321"

REFUSED = {
    "error": {
        "message": "a valid API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        "type": "invalid_request_error", "param": None, "code": "invalid_api_key",
    }
}  # fmt: skip


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def write_keys(path: Path, content: str, mode: int = 0o600) -> Path:
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"}, {"authorization": f"bearer   {KEY}"}, {"Authorization": f"BEARER {KEY}"},
        {"x-api-key": KEY}, {"X-Api-Key": KEY}, {"Authorization": "Bearer none", "x-api-key": KEY},
        {"Authorization": f"Bearer {KEY}", "x-api-key": "none"},
    ],
)  # fmt: skip
async def test_either_header_lets_in(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(keys=KeyRing([KEY])) as server:
        assert (await server.http.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"Authorization": KEY}, {"Authorization": f"Basic {KEY}"}, {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {KEY}x"}, {"Authorization": f"Bearer {KEY[:-1]}"}, {"x-api-key": ""},
        {"x-api-key": KEY.upper()}, {"Authorization": f"Bearer {KEY} {KEY}"}, {"Cookie": KEY}, {"api-key": KEY},
    ],
)  # fmt: skip
async def test_anything_else_is_401(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(keys=KeyRing([KEY])) as server:
        for method, path in (
            ("GET", "/v1/models"), ("GET", "//v1///models/"), ("POST", "/v1/chat/completions"), ("GET", "/metrics"),
            ("POST", "/tokenize"), ("GET", "/none"), ("GET", "/health/x"), ("OPTIONS", "/v1/models"),
        ):  # fmt: skip
            response = await server.http.request(method, f"{server.url}{path}?api_key={KEY}", headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json() == REFUSED
        assert server.engine.replies == []


async def test_without_keys_any_header_is_ignored(server: Server) -> None:
    for headers in ({}, {"Authorization": "Bearer anything"}, {"x-api-key": "anything"}):
        assert (await server.http.get("/v1/models", headers=headers)).status_code == 200


async def test_health_is_open_but_bare(serve: Serve) -> None:
    async with serve(keys=KeyRing([KEY])) as server:
        for path in ("/health", "/v1/health/"):
            response = await server.http.get(path)
            assert (response.status_code, response.json()) == (200, {"status": "ok"})
        whole = await server.http.get("/health", headers={"x-api-key": KEY})
        assert whole.json()["context_length"] == 4096
    async with serve(engine={"error": "rank 1 left: secret host"}, keys=KeyRing([KEY])) as server:
        response = await server.http.get("/health")
        assert (response.status_code, response.json()) == (503, {"status": "failed"})


async def test_body_of_a_refused_request_never_becomes_the_next_request(serve: Serve) -> None:
    async with serve(keys=KeyRing([KEY])) as server:
        reader, writer = await server.connect()
        writer.write(request(body=request("/v1/models", method="GET", headers={"x-api-key": KEY}) * 2000))
        assert (await read_answer(reader)).status == 401
        writer.write(request("/v1/models", method="GET", headers={"x-api-key": KEY}))
        assert (await read_answer(reader)).json()["data"][0]["id"] == MODEL
        writer.close()


async def test_official_clients_see_an_authentication_error_and_get_in_with_a_key(serve: Serve) -> None:
    async with serve(keys=KeyRing([KEY])) as server:
        with pytest.raises(openai.AuthenticationError) as refused:
            await server.openai.models.list()
        assert refused.value.code == "invalid_api_key"
        assert (await server.openai.with_options(api_key=KEY).models.list()).data[0].id == MODEL
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
            assert (await client.models.list()).data[0].id == MODEL
        async with anthropic.AsyncAnthropic(base_url=server.url, auth_token=KEY, max_retries=0) as client:
            assert (await client.models.list()).data[0].id == MODEL


async def test_replies_are_counted_by_label_and_no_key_is_shown(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_keys(tmp_path / "keys", f"alice: {OTHER}\n")
    with caplog.at_level(logging.DEBUG):
        async with serve(keys=KeyRing([KEY], "sk-env-1", file)) as server:
            for key in (KEY, OTHER, OTHER, "wrong"):
                await server.http.get("/v1/models", headers={"x-api-key": key})
            text = (await server.http.get("/metrics", headers={"x-api-key": "sk-env-1"})).text
    for line in (
        'requests_total{key="alice",status="200"} 2.0', 'requests_total{key="cli-1",status="200"} 1.0',
        'requests_total{key="none",status="401"} 1.0',
    ):  # fmt: skip
        assert f"tensorfold:{line}" in text
    for key in (KEY, OTHER, "sk-env-1", "wrong"):
        assert key not in text
        assert key not in caplog.text


async def test_metrics_can_be_opened(serve: Serve) -> None:
    async with serve(keys=KeyRing([KEY]), open_metrics=True) as server:
        assert (await server.http.get("/metrics")).status_code == 200
        assert (await server.http.get("/v1/metrics/")).status_code == 200
        assert (await server.http.get("/v1/models")).status_code == 401


def test_file_holds_keys_labels_and_comments(tmp_path: Path) -> None:
    lines = ["# rotated in May", "", "k1", f"alice: {KEY}", "  bob:x:y  ", "#k3", "k4\r"]
    ring = KeyRing(file=write_keys(tmp_path / "keys", "\n".join(lines)))
    found = {key: ring.label_of([key.encode()]) for key in ("k1", KEY, "x:y", "k4", "k3", "alice", "# rotated in May")}
    assert found == {
        "k1": "file-1", KEY: "alice", "x:y": "bob", "k4": "file-4", "k3": None, "alice": None, "# rotated in May": None
    }  # fmt: skip


def test_sources_add_up() -> None:
    ring = KeyRing(["a", "b"], "c, d ,,")
    assert [ring.label_of([key]) for key in (b"a", b"b", b"c", b"d", b"", b"c, d")] == [
        "cli-1", "cli-2", "env-1", "env-2", None, None
    ]  # fmt: skip
    assert ring.required
    assert not KeyRing().required


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ("", 0o600, "has no key"), ("# nothing\n\n", 0o600, "has no key"), ("k", 0o640, "mode 0640, open to others"),
        ("k", 0o604, "mode 0604, open to others"), ("a b", 0o600, "line 1: a key"),
        ("ok\n\x00", 0o600, "line 2: a key"), ("k" * 513, 0o600, "line 1: a key"),
        ("a: x\na: y", 0o600, "line 2: a second key with the label a"), ("b c: x", 0o600, "line 1: a label"),
        ("a:", 0o600, "line 1: a key"), ("x" * 65 + ": k", 0o600, "line 1: a label"),
        ("schlüssel", 0o600, "line 1: a key"),
    ],
)  # fmt: skip
def test_unusable_file_ends_the_start_without_quoting_it(tmp_path: Path, content: str, mode: int, message: str) -> None:
    file = write_keys(tmp_path / "keys", content, mode)
    with pytest.raises(UserError, match=message) as refused:
        KeyRing(file=file)
    assert str(refused.value).startswith(f"--api-key-file {file}: ")


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        KeyRing(file=tmp_path / "none")
    with pytest.raises(UserError, match="Is a directory"):
        KeyRing(file=tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UserError, match="not a regular file"):
        KeyRing(file=tmp_path / "pipe")


def test_replaced_file_is_read_again(tmp_path: Path) -> None:
    clock = Clock()
    file = write_keys(tmp_path / "keys", "old")
    ring = KeyRing(file=file, clock=clock)
    write_keys(tmp_path / "new", "new").replace(file)
    assert ring.label_of([b"old"]) == "file-1", "it is looked at once a second at most"
    clock.now += RECHECK_S
    assert (ring.label_of([b"old"]), ring.label_of([b"new"])) == (None, "file-1")


@pytest.mark.parametrize("broken", ["empty", "malformed", "open to others", "removed"])
async def test_unusable_replacement_closes_the_protected_routes_until_it_is_mended(
    serve: Serve, tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    file = write_keys(tmp_path / "keys", OTHER)
    async with serve(keys=KeyRing([KEY], file=file, clock=clock)) as server:
        if broken == "removed":
            file.unlink()
        else:
            content = {"empty": "", "malformed": f"{OTHER} twice", "open to others": OTHER}[broken]
            write_keys(file, content, 0o644 if broken == "open to others" else 0o600)
        for _ in range(3):
            clock.now += RECHECK_S
            for key in (OTHER, KEY):
                response = await server.http.get("/v1/models", headers={"x-api-key": key})
                assert (response.status_code, response.headers["retry-after"]) == (503, "5")
                assert (await server.http.get("/health", headers={"x-api-key": key})).json() == {"status": "ok"}
        assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
        assert OTHER not in caplog.text
        write_keys(file, "mended")
        clock.now += RECHECK_S
        for key, status in (("mended", 200), (KEY, 200), (OTHER, 401)):
            assert (await server.http.get("/v1/models", headers={"x-api-key": key})).status_code == status


def test_every_digest_is_compared_on_every_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append(right)
        return left == right

    monkeypatch.setattr("sparkpair.api.keys.hmac.compare_digest", compare)
    ring = KeyRing(["a", "b"], "c")
    for candidate in (b"a", b"c", b"none"):
        compared.clear()
        ring.label_of([candidate])
        assert len(compared) == 3


def test_settings_do_not_show_keys_when_printed(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    settings = http_settings(parser.parse_args(["--api-key", KEY]))
    assert settings.api_keys == (KEY,)
    assert KEY not in repr(settings)
    assert KEY not in repr(vars(KeyRing([KEY])))


def test_malformed_keys_are_refused_without_quoting_them() -> None:
    for given, environment in ((["a b"], ""), ([""], ""), ([], "a b")):
        with pytest.raises(UserError, match="visible ASCII") as refused:
            KeyRing(given, environment)
        assert "a b" not in str(refused.value)


def test_unusable_file_accepts_nothing(tmp_path: Path) -> None:
    clock = Clock()
    file = write_keys(tmp_path / "keys", "k")
    ring = KeyRing(file=file, clock=clock)
    file.chmod(0o644)
    clock.now += RECHECK_S
    with pytest.raises(KeysUnavailable):
        ring.label_of([b"k"])


def test_label_is_what_the_file_says() -> None:
    assert set(parse_keys(b"a-b.c_1: k\nk2")) == {"a-b.c_1", "file-2"}
