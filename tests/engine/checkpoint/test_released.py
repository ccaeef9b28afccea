# SPDX-License-Identifier: Apache-2.0
"""The released checkpoints, as far as shapes go: what they hold, what a rank of two holds, and what loading costs."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from sparkpair import serve
from sparkpair.cache.pool import token_bytes
from sparkpair.checkpoint.forms import WeightForms
from sparkpair.checkpoint.miniature import write_miniature
from sparkpair.checkpoint.names import is_backbone, is_mtp, is_vision
from sparkpair.checkpoint.rank_weights import Layout, rank_bytes
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.cli import main
from sparkpair.memory import DrafterNeed, PoolPlan, PoolSettings, plan_memory
from sparkpair.model.config import load_text_config
from sparkpair.model.tower_source import TowerSource
from sparkpair.model.vision_config import load_tower_config

from tests.engine.checkpoint.released import write_released

PACKED = WeightForms(experts="packed")


@pytest.fixture(scope="module")
def exl3(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("released") / "exl3"
    write_released(directory, "exl3")
    return directory


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("released") / "bf16"
    write_released(directory, "bf16")
    return directory


@pytest.fixture(scope="module")
def opened(exl3: pathlib.Path) -> Checkpoint:
    return Checkpoint(exl3)


def stored(checkpoint: Checkpoint, world: int, wanted: Callable[[str], bool]) -> int:
    config = load_text_config(checkpoint.directory)
    return rank_bytes(checkpoint, config, Layout(world, 0, torch.bfloat16, PACKED), wanted).stored


def read_characters() -> int:
    """Bytes this process has read from files so far."""
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("store", ["exl3", "bf16"])
def test_info_counts_the_published_parameters_without_reading_data(
    store: str, exl3: pathlib.Path, bf16: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = {"exl3": exl3, "bf16": bf16}[store]
    before = read_characters()
    assert main(["info", str(directory), "--json"]) == 0
    assert read_characters() - before < 250e6
    found = json.loads(capsys.readouterr().out)
    assert found["layers"] == {"kda": 34, "dsa": 11, "dense": 3, "moe": 42, "mtp": 1}
    assert found["parameters_backbone"] / 1e9 == pytest.approx(313.327, abs=5e-4)
    assert found["parameters_mtp"] == 7_432_592_416
    assert found["parameters_vision"] / 1e6 == pytest.approx(563.6, abs=0.05)
    assert found["parameters"] / 1e9 == pytest.approx(321.323, abs=5e-4)
    size = sum(path.stat().st_size for path in directory.glob("*.safetensors")) / 1e9
    assert size == pytest.approx({"exl3": 175.62, "bf16": 642.6}[store], abs=0.06)


def test_a_rank_of_two_reads_the_derived_bytes(opened: Checkpoint) -> None:
    config = load_text_config(opened.directory)

    def text(name: str) -> bool:
        return is_backbone(config, name) or is_mtp(config, name)

    def outer(name: str) -> bool:
        return name in ("lm_head.weight", "model.language_model.embed_tokens.weight")

    def routed(name: str) -> bool:
        return ".experts." in name

    assert stored(opened, 2, routed) / 1e9 == pytest.approx(78.29, abs=5e-3)
    assert stored(opened, 2, lambda name: routed(name) and is_backbone(config, name)) / 1e9 == pytest.approx(
        76.47, abs=5e-3
    )
    dense = stored(opened, 2, lambda name: text(name) and not routed(name) and not outer(name))
    assert dense / 2e9 == pytest.approx(4.092, abs=2e-3)
    without = stored(opened, 2, lambda name: is_backbone(config, name) and not routed(name) and not outer(name))
    assert without / 2e9 == pytest.approx(3.974, abs=2e-3)
    assert stored(opened, 2, outer) / 1e9 == pytest.approx(1.903, abs=5e-4)
    assert stored(opened, 2, text) / 1e9 == pytest.approx(88.38, abs=1e-2)
    assert stored(opened, 2, is_vision) / 2**30 == pytest.approx(1.05, abs=5e-3)


# Settings of the published start; a block drafter with a window of 2048 tokens, of which a rank has 4 of 8 heads.
PUBLISHED = PoolSettings(parallel=4, window_rows=32, form="fp8", cache_bytes=12_800 * 2**20, cache_entries=8)
DRAFTER = DrafterNeed(per_stream=2176 * 10_240, per_entry=2048 * 10_240)


@pytest.mark.parametrize(
    ("changed", "tokens"),
    [
        ({}, 2_922_496),
        ({"cache_entries": 16}, 2_809_856),
        ({"cache_entries": 32}, 2_582_528),
    ],
)
def test_the_published_pools_follow_from_the_settings(opened: Checkpoint, changed: dict[str, int], tokens: int) -> None:
    config = load_text_config(opened.directory)
    plan = plan_memory(
        opened,
        config,
        Layout(2, 0, torch.bfloat16, WeightForms(dense="q4", experts="packed")),
        dataclasses.replace(PUBLISHED, **changed),
        chunk_rows=1024,
        available=1000 * 2**30,
        reserve_gib=14.5,
        drafter=DRAFTER,
    )
    assert plan.pool(1_048_576) == PoolPlan(tokens, changed.get("cache_entries", 8))
    assert dataclasses.replace(plan, cache_bytes=0).pool(1_048_576).tokens == 1_048_576


def test_rows_take_the_bytes_of_their_form(opened: Checkpoint) -> None:
    config = load_text_config(opened.directory)
    assert token_bytes(config, "fp8", 11) == 6204
    assert token_bytes(config, "bf16", 11) == 11_968


@pytest.mark.parametrize("rank", [0, 1])
def test_the_memory_plan_of_two_ranks(opened: Checkpoint, rank: int) -> None:
    config = load_text_config(opened.directory)
    plans = {}
    for dense in ("bf16", "fp8", "q4"):
        plans[dense] = plan_memory(
            opened,
            config,
            Layout(2, rank, torch.bfloat16, WeightForms(dense=dense, experts="packed")),
            PUBLISHED,
            chunk_rows=1024,
            available=119 * 2**30,
            reserve_gib=14.5,
            drafter=DRAFTER,
        )
    # Without the MTP layer; routers and a few others are held in fp32.
    assert plans["bf16"].weights / 1e9 == pytest.approx(76.47 + 2 * 3.974 + 1.903, abs=0.12)
    # The figures of a running request, of a kept prompt and of a token, of which the published pool is made.
    assert plans["bf16"].stream_bytes == 145_113_088
    assert plans["bf16"].entry_bytes == 95_625_216
    assert plans["bf16"].row_bytes == 6204
    assert plans["bf16"].per_token == 6748
    # Dense weights without embedding, indexer and absorbed maps shrink to about half and to under a third.
    saved = [(plans["bf16"].weights - plans[dense].weights) / 1e9 for dense in ("fp8", "q4")]
    assert 3.5 < saved[0] < 4.2
    assert 5.0 < saved[1] < 6.2


@pytest.mark.parametrize(
    ("store", "free_gib", "arguments", "code", "lines"),
    [
        (
            "exl3",
            119,
            ["--experts", "packed", "--dense", "q4", "--kv", "fp8", "--memory-reserve-gib", "14.5"],
            0,
            r"startup estimate \d+\.\d\d GiB within 104\.50 GiB: window 1048576 tokens, 4 requests at once\n"
            r"weights (7[5-9]|8\d)\.\d\d GiB; .*\n.*\n.*\n",
        ),
        (
            "bf16",
            119,
            ["--memory-reserve-gib", "14.5"],
            3,
            r"startup estimate \d+\.\d\d GiB within 104\.50 GiB: window 1048576 tokens, 4 requests at once\n"
            r"largest fitting prompt-plus-reply window: 0 tokens\n",
        ),
    ],
    ids=["exl3 on a Spark", "bf16 on a Spark"],
)
def test_the_plan_of_the_released_forms_for_two_ranks_in_the_deployments_words(
    store: str,
    free_gib: int,
    arguments: list[str],
    code: int,
    lines: str,
    exl3: pathlib.Path,
    bf16: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "mem_available", lambda: free_gib * 2**30)
    directory = {"exl3": exl3, "bf16": bf16}[store]
    before = read_characters()
    assert main(["plan", str(directory), "--tp", "2", "--parallel", "4", *arguments]) == code
    assert read_characters() - before < 250e6
    assert re.fullmatch(lines, capsys.readouterr().out)


def test_pictures_are_in_the_memory_plan_of_the_rank_that_looks_at_them(opened: Checkpoint) -> None:
    config = load_text_config(opened.directory)
    tower = TowerSource(opened, config, load_tower_config(opened.directory, config))
    need = tower.need(torch.bfloat16)
    assert need.held / 2**30 == pytest.approx(1.05, abs=5e-3)
    assert 1.5 < need.workspace / 2**30 < 2.6
    plans = [
        plan_memory(
            opened,
            config,
            Layout(2, 0, torch.bfloat16, PACKED),
            PUBLISHED,
            chunk_rows=1024,
            available=119 * 2**30,
            reserve_gib=14.5,
            tower=asked,
        )
        for asked in (None, need)
    ]
    assert plans[1].fixed - plans[0].fixed == need.held + need.workspace
    assert plans[1].stored_weights - plans[0].stored_weights == need.stored == need.held


LOADER = """
import pathlib, sys, threading
import torch
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank

def status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def watch():
    while not done.is_set():
        peaks.append(status("RssAnon"))

torch.set_num_threads(1)
directory = pathlib.Path(sys.argv[1])
config, checkpoint = load_text_config(directory), Checkpoint(directory)
weights = RankWeights(checkpoint, config, world=6, rank=1, dtype=torch.float32, device=torch.device("cpu"))
before, whole_before = status("RssAnon"), status("VmRSS")
peaks, done = [before], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
model = Glm5NextRank(config, weights, SoloGroup())
done.set()
watcher.join()
print(weights.bytes_read, weights.bytes_held, max(peaks) - before, status("VmHWM") - whole_before)
"""


def test_loading_a_rank_needs_little_more_than_what_it_holds(tmp_path: pathlib.Path) -> None:
    wide = {"intermediate_size": 65_536, "num_hidden_layers": 4, "num_nextn_predict_layers": 0}
    write_miniature(tmp_path / "m", seed=1, overrides={"text_config": wide})
    whole = sum(path.stat().st_size for path in (tmp_path / "m").glob("*.safetensors"))
    result = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path / "m")], capture_output=True, text=True, check=True
    )
    read, held, own, with_files = (int(word) for word in result.stdout.split())
    assert whole > 300e6
    assert read < whole / 5
    # Beside what is held, one tensor's part in two forms at a time: a sixth of 256 x 65536 weights.
    assert held * 0.9 < own < held + 2 * 4 * 256 * 65_536 / 6 + 16 * 2**20
    # The files are mapped; pages that were touched count until the system takes them back, whole files never do.
    assert with_files < own + 0.6 * whole
