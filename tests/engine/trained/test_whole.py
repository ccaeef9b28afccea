# SPDX-License-Identifier: Apache-2.0
"""The whole training by one command: what it does next follows from what lies there."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest
from training import experts, state
from training.whole import Whole


@pytest.fixture
def whole(tmp_path: pathlib.Path) -> Whole:
    plans = {"model": 12.0, "finished": 5.0, "drafter": 3.0}
    return Whole(tmp_path, tmp_path / "target", ["--tokens", "64"], ["--device", "cpu"], ["--size", "tiny"], plans)


def trained(directory: pathlib.Path, minutes: float) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / state.PROGRESS).write_text(json.dumps(dataclasses.asdict(state.Progress(minutes))))


def test_a_plan_is_fulfilled_in_runs_of_what_is_left(whole: Whole) -> None:
    step = whole.next_step(7.0)
    assert step is not None
    assert (step.module, step.minutes) == ("training", 7.0)
    assert step.arguments == [
        str(whole.work / "model"), "--minutes", "7.0000", "--plan", "12", "--tokens", "64", "--device", "cpu",
        "--size", "tiny",
    ]  # fmt: skip
    trained(whole.work / "model", 7.001)
    step = whole.next_step(7.0)
    assert step is not None
    assert step.minutes == pytest.approx(4.999)


def test_one_step_follows_the_other_until_the_checkpoint_is_there(whole: Whole) -> None:
    def module() -> str:
        step = whole.next_step(7.0)
        return f"{step.module} {pathlib.Path(step.arguments[0]).name}" if step else "nothing"

    trained(whole.work / "model", 12.0)
    assert module() == "training.quantise model"
    trained(whole.work / "finished", 0.0)
    (whole.work / "finished" / experts.EXPERTS).touch()
    assert module() == "training finished"
    trained(whole.work / "finished", 5.0)
    assert module() == "training.drafter finished"
    trained(whole.work / "finished" / "drafter", 3.0)
    assert module() == "training.draft_export finished"
    (whole.work / "draft").mkdir()
    assert module() == "training.export finished"
    whole.target.mkdir()
    assert module() == "nothing"
