# SPDX-License-Identifier: Apache-2.0
"""Starts that ended well are kept so that one can go back, and what was made is listed once."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.sparkpair.serving.plugins.module_utils import _image, _records


def keep(place: Path, *pairs: str) -> list[str]:
    """Keep starts one after the other and return the pairs of the records, the newest first."""
    for number, pair in enumerate(pairs, len(_records.starts(str(place)))):
        _records.write_start(str(place), f"20261130-{number:06d}", {"pair": pair})
    return [record["pair"] for record in _records.starts(str(place))]


def test_the_same_pair_again_takes_the_place_of_its_record(tmp_path: Path) -> None:
    assert keep(tmp_path, "a", "b", "b") == ["b", "a"]
    earlier = _records.before_last(_records.starts(str(tmp_path)))
    assert earlier is not None
    assert earlier["pair"] == "a"


def test_there_is_nothing_to_go_back_to_before_a_second_pair(tmp_path: Path) -> None:
    assert _records.before_last(_records.starts(str(tmp_path))) is None
    keep(tmp_path, "a", "a")
    assert _records.before_last(_records.starts(str(tmp_path))) is None


def test_only_the_newest_records_stay_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    keep(tmp_path, *(str(number) for number in range(_records.KEPT + 3)))
    assert len(list((tmp_path / "starts").iterdir())) == _records.KEPT
    (tmp_path / "starts" / "20991231-000000.json").write_text("{")
    assert _records.starts(str(tmp_path))[0]["pair"] == str(_records.KEPT + 2)


def test_what_was_made_is_listed_once(tmp_path: Path) -> None:
    thing = {"kind": "directory", "name": "/srv/kernels/a1"}
    assert _records.add_made(str(tmp_path), [thing])
    assert not _records.add_made(str(tmp_path), [thing])
    assert _records.made(str(tmp_path)) == [thing]


def test_a_kept_image_has_a_tag_of_its_own_whatever_its_name() -> None:
    assert _image.kept_name("engine:1", "0123456789abcdef") == "engine:kept-0123456789ab"
    assert _image.kept_name("host:5000/engine", "0123456789abcdef") == "host:5000/engine:kept-0123456789ab"
