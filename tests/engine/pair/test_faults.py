# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, disagree or cannot start: all end within seconds, with a code and a line that names the cause."""

from __future__ import annotations

import json
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
from openai import APIError, OpenAI
from sparkpair.checkpoint.miniature import write_miniature

from tests.engine.pair.ranks import LOOPBACK, Rank, running

pytestmark = pytest.mark.pair


@pytest.mark.parametrize(("world", "victim"), [(2, 0), (2, 1), (3, 1), (3, 2)])
def test_a_killed_rank_ends_the_others_by_name_long_before_it_counts_as_late(
    miniature: pathlib.Path, world: int, victim: int
) -> None:
    with running(miniature, world) as ranks:
        ranks.start_all()
        ranks.crash(victim)
        for rank, process in ranks.ranks.items():
            if rank == victim:
                continue
            assert process.exit_code() == 4
            assert process.wait_for("fatal: ").startswith(f"fatal: rank {victim} ")


def test_a_rank_killed_during_a_reply_ends_the_stream_with_an_error_event(miniature: pathlib.Path) -> None:
    with running(miniature, 2) as ranks:
        ranks.start_all()
        with OpenAI(base_url=f"{ranks.url}/v1", api_key="unused", max_retries=0) as client:
            stream = client.completions.create(
                model="miniature", prompt="On", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
            )
            next(stream)
            ranks.crash(1)
            with pytest.raises(APIError, match=r"rank 1 on .* left"):
                list(stream)
        assert ranks.ranks[0].exit_code() == 4
        assert ranks.ranks[0].wait_for("fatal: ").startswith("fatal: rank 1 ")


def test_a_stopped_server_ends_every_rank_cleanly_and_frees_its_ports(miniature: pathlib.Path) -> None:
    with running(miniature, 2) as ranks:
        ranks.start_all()
        ranks.stop(0)
        assert [ranks.ranks[rank].exit_code() for rank in (0, 1)] == [0, 0]
        for port in (ranks.port, ranks.master_port):
            with pytest.raises(ConnectionRefusedError), socket.create_connection((LOOPBACK, port)):
                pass


def test_a_follower_asked_to_stop_says_so_before_it_goes(miniature: pathlib.Path) -> None:
    with running(miniature, 2) as ranks:
        ranks.start_all()
        ranks.stop(1)
        assert ranks.ranks[1].exit_code() == 0
        assert ranks.ranks[0].exit_code() == 4
        assert "left: it was asked to stop" in ranks.ranks[0].wait_for("fatal: rank 1 ")


def test_a_rank_that_waits_for_the_others_stops_cleanly(miniature: pathlib.Path) -> None:
    with running(miniature, 2) as ranks:
        ranks.start(0).wait_for("waiting for 1 other rank")
        ranks.stop(0)
        assert ranks.ranks[0].exit_code() == 0


def test_ranks_with_different_checkpoints_refuse_by_name(miniature: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write_miniature(tmp_path / "other", seed=2, overrides={})
    with running(miniature, 2) as ranks:
        ranks.start(1, model=tmp_path / "other")
        ranks.start(0)
        for rank in (0, 1):
            assert ranks.ranks[rank].exit_code() == 4
            assert "rank 1 on" in ranks.ranks[rank].wait_for("disagrees with rank 0 about the checkpoint's files")


def test_ranks_with_different_windows_refuse_by_name(miniature: pathlib.Path) -> None:
    with running(miniature, 2) as ranks:
        ranks.start(1, "--context", "4096")
        ranks.start(0)
        line = ranks.ranks[1].wait_for("fatal: ")
        assert "about --context: rank 0 has 8192, rank 1 has 4096" in line
        assert ranks.ranks[0].exit_code() == 4


def test_a_rank_that_never_comes_is_named(miniature: pathlib.Path) -> None:
    with running(miniature, 2, "--join-timeout", "1") as ranks:
        ranks.start(0)
        assert ranks.ranks[0].exit_code() == 4
        assert "fatal: rank 1 did not join within 1 s" in ranks.ranks[0].log


@pytest.mark.parametrize("flag", ["--port", "--master-port"])
def test_a_taken_port_is_refused_before_weights_are_loaded(miniature: pathlib.Path, flag: str) -> None:
    with running(miniature, 2) as ranks, socket.create_server((LOOPBACK, 0)) as other:
        ranks.start(0, flag, str(other.getsockname()[1]))
        assert ranks.ranks[0].exit_code() == 2
        assert ranks.ranks[0].wait_for("error: ").count(flag) == 1
        assert "loading weights" not in ranks.ranks[0].log


def test_a_window_that_does_not_fit_names_the_largest_that_does(tmp_path: pathlib.Path) -> None:
    # With rows as wide as this the window needs 10.5 GiB, and all that is beside it 1.9.
    wide = tmp_path / "wide"
    write_miniature(wide, seed=1, overrides={"text_config": {"kv_lora_rank": 1024}})
    available = next(
        int(line.split()[1]) for line in pathlib.Path("/proc/meminfo").read_text().splitlines() if "MemAvail" in line
    )
    with running(wide, 1) as ranks:
        # It finds 5 GiB, and gibibytes may come and go meanwhile.
        reserve = max(0.0, available / 2**20 - 5.0)
        rank = ranks.start(0, "--context", "1048576", "--memory-reserve-gib", f"{reserve:.2f}")
        assert rank.exit_code() == 3
        window = int(rank.wait_for("largest fitting prompt-plus-reply window: ").split()[-2])
        assert 0 < window < 1048576
        assert "loading weights" not in rank.log


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda model: (model / "config.json").unlink(), "there is no config.json in it"),
        (lambda model: (model / "model-00002-of-00002.safetensors").unlink(), "weight files are missing"),
        (
            lambda model: (model / "model-00002-of-00002.safetensors").write_bytes(b"x" * 1000),
            "is truncated or not a safetensors file",
        ),
        (lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda model: (model / "chat_template.jinja").unlink(), "chat_template.jinja"),
        (lambda model: (model / "config.json").write_text(json.dumps({"model_type": "llama"})), "serves glm5_next"),
    ],
    ids=["no configuration", "missing file", "truncated file", "no tokenizer", "no template", "another model"],
)
def test_a_damaged_checkpoint_is_one_line_with_the_path_and_no_trace(
    miniature: pathlib.Path, tmp_path: pathlib.Path, damage: object, reason: str
) -> None:
    model = pathlib.Path(shutil.copytree(miniature, tmp_path / "damaged"))
    damage(model)  # type: ignore[operator]
    with running(model, 1) as ranks:
        rank = ranks.start(0)
        assert rank.exit_code() == 2
        line = rank.wait_for("error: ")
        assert reason in line
        assert str(model) in line
        assert "Traceback" not in rank.log
        assert "loading weights" not in rank.log


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--tp", "9"], "--tp 9"),
        (["--rank", "2"], "--rank 2: with --tp 1 ranks are numbered 0 to 0"),
        (["--tp", "2"], "--tp 2 needs --master"),
        (["--tp", "two"], "argument --tp: invalid int value: 'two'"),
        (["--port", "70000"], "--port 70000"),
        (["--context", "-1"], "--context -1"),
        (["--context", "2000000"], "--context 2000000: the model's window is 1048576"),
        (["--parallel", "9"], "--parallel 9: between 1 and 8"),
        (["--parallel", "8", "--window", "4"], "--window 4: at least one row for each of the 8 requests"),
        (["--copy-max", "16"], "--copy-max 16: between 0 and 15"),
        (["--name", " "], "--name is empty"),
        (["--device", "tpu"], "--device tpu: cpu, cuda, or one GPU as cuda:0"),
        (["--peer-timeout", "0"], "--peer-timeout 0"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_wrong_argument_is_refused_by_flag(miniature: pathlib.Path, arguments: list[str], reason: str) -> None:
    rank = Rank([str(miniature), *arguments, "--check-args"])
    try:
        assert rank.exit_code() == 2
        assert rank.wait_for("error: ").removeprefix("error: ").startswith(reason)
        assert len(rank.lines) == 1
    finally:
        rank.close()


def test_good_arguments_are_confirmed_without_serving(miniature: pathlib.Path) -> None:
    rank = Rank([str(miniature), "--tp", "2", "--rank", "1", "--master", LOOPBACK, "--check-args"])
    try:
        assert rank.exit_code() == 0
        assert rank.lines == ["arguments ok"]
    finally:
        rank.close()


def test_arguments_are_checked_without_torch(miniature: pathlib.Path) -> None:
    serve = ["serve", str(miniature), "--tp", "2", "--master", LOOPBACK, "--drafter", "mtp", "--check-args"]
    command = [sys.executable, "-X", "importtime", "-m", "sparkpair", *serve]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines()}
    assert "sparkpair.checked" in imported
    assert "torch" not in imported
