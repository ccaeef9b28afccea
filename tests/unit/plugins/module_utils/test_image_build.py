# SPDX-License-Identifier: Apache-2.0
"""How an engine's image is built is written down completely, and its hash covers what it is made of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _image,
    _image_build,
    _image_wanted,
    _tensorfold_releases,
)

SERIES: dict[str, Any] = {
    "engine": "tensorfold",
    "version": "v0.6.0",
    "base": "nvcr.io/nvidia/pytorch:26.07-py3",
    "source": {"repository": "https://example.org/TensorFold.git", "ref": "v0.6.0"},
    "package": "tensorfold",
    "extras": "av==18.1.0 xgrammar>=0.2.8,<0.3",
    "pip": ["--upgrade"],
    "environment": {"HF_HOME": "/root/.cache/huggingface"},
    "workdir": "/workspace",
    "hashed": ["extras", "source", "version", "base"],
    "patches": [{"file": "0001-a.patch", "strip": 0}, {"file": "0002-b.patch", "strip": 1}],
}


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    for patch in SERIES["patches"]:
        (tmp_path / patch["file"]).write_text(patch["file"])
    return tmp_path


def test_the_engine_is_installed_before_the_patches_so_that_a_patch_costs_no_new_installation() -> None:
    assert _image_build.dockerfile(SERIES, "ae8d1c789b47").splitlines() == [
        "FROM nvcr.io/nvidia/pytorch:26.07-py3",
        "COPY source /opt/sparkpair-build/source",
        "RUN python3 -m pip install --no-cache-dir --upgrade /opt/sparkpair-build/source av==18.1.0 "
        "'xgrammar>=0.2.8,<0.3'",
        "COPY patches /opt/sparkpair-build/patches",
        "COPY apply_patches.py /opt/sparkpair-build/",
        "RUN python3 /opt/sparkpair-build/apply_patches.py /opt/sparkpair-build/patches/series.json tensorfold",
        "RUN python3 -c 'import tensorfold'",
        'ENV HF_HOME="/root/.cache/huggingface"',
        "WORKDIR /workspace",
        "LABEL tf.patches=ae8d1c789b47",
    ]


def test_a_wheel_is_installed_by_its_name() -> None:
    text = _image_build.dockerfile({**SERIES, "source": {"wheel": "toy-1.0-py3-none-any.whl"}}, "x")
    assert "/opt/sparkpair-build/source/toy-1.0-py3-none-any.whl av==18.1.0" in text


@pytest.mark.parametrize(
    "change",
    [
        lambda series: series.update(extras="av==18.2.0"),
        lambda series: series.update(version="v0.6.1"),
        lambda series: series.update(base="other"),
        lambda series: series["source"].update(ref="v0.6.1"),
        lambda series: series.update(source={"wheel": "x.whl"}),
        lambda series: series["patches"].reverse(),
    ],
)
def test_whatever_counts_makes_another_hash(patches: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    series = copy.deepcopy(SERIES)
    change(series)
    assert _image_build.wanted_hash(series, str(patches)) != _image_build.wanted_hash(SERIES, str(patches))


def test_a_published_recipe_counts_its_patches_and_extras_only(patches: Path) -> None:
    series = {**SERIES, "hashed": ["extras"]}
    expected = _image.inputs_hash([b"0001-a.patch", b"0002-b.patch"], SERIES["extras"])
    assert _image_build.wanted_hash(series, str(patches)) == expected
    assert _image_build.wanted_hash({**series, "base": "other"}, str(patches)) == expected


def test_a_patch_that_is_listed_and_not_there_is_named(patches: Path) -> None:
    (patches / "0002-b.patch").unlink()
    with pytest.raises(_image_build.BuildError, match=r"0002-b\.patch is listed and not there"):
        _image_build.wanted_hash(SERIES, str(patches))


def test_a_build_that_fails_for_another_reason_shows_its_last_lines() -> None:
    assert _image_build.failure_of("a\n\nb\nc\nd\ne\nf\n", "x") == "the build failed: b | c | d | e | f"


def test_the_series_of_tensorfold_has_every_release_with_its_published_hash_and_no_other() -> None:
    place = Path(_image_wanted.PATCHES) / "tensorfold" / _tensorfold_releases.ENGINE_VERSION
    series = yaml.safe_load((place / "series.yml").read_text())
    assert {name: each["hash"] for name, each in series["upstream"]["releases"].items()} == {
        name: each.patches for name, each in _tensorfold_releases.RELEASES.items()
    }
    for name, each in _tensorfold_releases.RELEASES.items():
        assert _image_build.wanted_hash(series, str(place), name) == each.patches


def test_patches_of_a_release_that_are_not_where_they_are_looked_for_are_told_with_what_else_there_is(
    tmp_path: Path,
) -> None:
    upstream = {"repository": f"file://{tmp_path}/nowhere", "directory": "patches", "strip": 0}
    series = {**SERIES, "upstream": {**upstream, "releases": {"v1.4": {"ref": "v1.4", "hash": "5e01f1bb74d8"}}}}
    with pytest.raises(_image_build.BuildError) as caught:
        _image_build.fetch_upstream(series, "v1.4", str(tmp_path / "patches"))
    told = str(caught.value)
    assert told.startswith("the patches of release v1.4 are looked for at v1.4, and v1.4 of file://")
    assert told.endswith("series.yml if they are elsewhere; the published image can still be pulled by its digest")
