# SPDX-License-Identifier: Apache-2.0
"""Two and three ranks compute one rank's logits and pick the same greedy tokens."""

from __future__ import annotations

import json
import pathlib

import numpy
import pytest
from sparkpair.cli import main

pytestmark = pytest.mark.pair

# Longer than the indexer's selection, so that the DSA layers really choose.
IDS = numpy.random.default_rng(3).integers(0, 1400, 420).tolist()

# One token at a time costs an exchange between processes a token, so that form reads fewer.
STEPPED = 90


def logits(miniature: pathlib.Path, directory: pathlib.Path, *arguments: str) -> numpy.typing.NDArray[numpy.float32]:
    ids, output = directory / "ids.json", directory / "out.npz"
    wanted = IDS[:STEPPED] if "--step" in arguments else IDS
    ids.write_text(json.dumps(wanted))
    assert main(["logits", str(miniature), "--ids", str(ids), "-o", str(output), *arguments]) == 0
    with numpy.load(output) as found:
        assert found["ids"].tolist() == wanted
        result: numpy.typing.NDArray[numpy.float32] = found["logits"]
    return result


@pytest.fixture(scope="module")
def one_rank(miniature: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> numpy.typing.NDArray[numpy.float32]:
    return logits(miniature, tmp_path_factory.mktemp("logits"))


@pytest.mark.parametrize("arguments", [["--tp", "2"], ["--tp", "3"], ["--tp", "2", "--step"]], ids=" ".join)
def test_more_ranks_give_the_greedy_tokens_of_one(
    miniature: pathlib.Path,
    tmp_path: pathlib.Path,
    one_rank: numpy.typing.NDArray[numpy.float32],
    arguments: list[str],
) -> None:
    found = logits(miniature, tmp_path, *arguments)
    expected = one_rank[: len(found)]
    assert (found.argmax(1) == expected.argmax(1)).all()
    assert numpy.abs(found - expected).max() < 1e-3


@pytest.mark.parametrize("text", ["[1, 2", "[]", "[1, -1]", "[1536]", '{"ids": [1]}', "[true]"])
def test_ids_that_are_not_ids_are_refused_by_path(
    miniature: pathlib.Path, tmp_path: pathlib.Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(text)
    assert main(["logits", str(miniature), "--ids", str(ids), "-o", str(tmp_path / "o.npz")]) == 2
    assert str(ids) in capsys.readouterr().err
