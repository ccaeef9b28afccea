# SPDX-License-Identifier: Apache-2.0
"""The trained miniature travels in the package and comes out whole, or not at all."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from sparkpair.checkpoint.manifest import MANIFEST_NAME, write_manifest
from sparkpair.checkpoint.miniature import write_miniature
from sparkpair.checkpoint.miniature_drafter import write_drafter

ENGINE = pathlib.Path(__file__).resolve().parents[2] / "engine"
SMALL = {"num_hidden_layers": 4, "vocab_size": 512, "n_routed_experts": 2, "num_nextn_predict_layers": 0}


def contents(directory: pathlib.Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A miniature with a drafter inside, under one manifest, as an export leaves it."""
    path = tmp_path_factory.mktemp("checkpoint") / "miniature"
    write_miniature(path, seed=1, overrides={"text_config": SMALL})
    write_drafter(path / "drafter", path, seed=1)
    (path / "drafter" / MANIFEST_NAME).unlink()
    write_manifest(path, None)
    return path


@pytest.fixture(scope="module")
def installed(checkpoint: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The contents of a wheel that was built with the checkpoint in it."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(
        ENGINE / "src", place / "engine" / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ENGINE / name, place / "engine" / name)
    own = place / "engine" / "src" / "sparkpair" / "data" / "miniature"
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(checkpoint, own)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(place), str(place / "engine")], check=True)
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "installed")
    return place / "installed"


def sparkpair(installed: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparkpair", "miniature", *arguments]
    return subprocess.run(command, env={"PYTHONPATH": str(installed)}, cwd="/", capture_output=True, text=True)


def test_the_wheel_carries_it_and_the_command_copies_it_out(
    installed: pathlib.Path, checkpoint: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = sparkpair(installed, str(tmp_path / "out"), "--trained")
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(tmp_path / "out") == contents(checkpoint)
    again = sparkpair(installed, str(tmp_path / "out"), "--trained")
    assert again.returncode == 2
    assert "is not empty" in again.stderr


def test_what_cannot_be_copied_is_said_and_nothing_is_left(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    place = tmp_path / "installed"
    shutil.copytree(installed, place)
    out = tmp_path / "out"
    own = place / "sparkpair" / "data" / "miniature"
    idle = sparkpair(place, str(out), "--trained", "--seed", "3", "--experts", "exl3")
    (own / "drafter" / "config.json").write_text("{}")
    damaged = sparkpair(place, str(out), "--trained")
    (own / MANIFEST_NAME).unlink()
    missing = sparkpair(place, str(out), "--trained")
    assert [done.returncode for done in (idle, damaged, missing)] == [2, 2, 2]
    assert idle.stderr == "error: --trained takes the weights as they are; leave out --seed, --experts\n"
    expected = f"error: {own}/drafter/config.json is not what manifest.json says. Install sparkpair again.\n"
    assert damaged.stderr == expected
    assert "this installation of sparkpair has no trained miniature" in missing.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["installed"]
