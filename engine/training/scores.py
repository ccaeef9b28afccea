# SPDX-License-Identifier: Apache-2.0
"""Scores of skills: held-out cases, what was replied to each, a table, figures, and failures to be read."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from training.cases import Case, Said, held_out
from training.mixture import SKILLS

# The least share of right replies in every skill.
WANTED = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What was replied to a case in one mode.

    `doubtful`: it is not the wanted reply, token for token. Where it was not looked at further, `right` is None.
    """

    case: Case
    mode: str
    right: bool | None
    said: Said | None
    doubtful: bool = True


def cases_of(skills: Sequence[str], count: int, seed: int) -> list[Case]:
    """So many held-out cases of each skill; the same every time."""
    return [case for skill in skills for case in itertools.islice(held_out(SKILLS[skill], seed), count)]


def chosen_skills(names: str | None) -> list[str]:
    """The skills of a list with commas, or all. Raises ValueError naming one that there is not."""
    wanted = names.split(",") if names else list(SKILLS)
    for name in wanted:
        if name not in SKILLS:
            raise ValueError(f"{name} is no skill; there are {', '.join(SKILLS)}")
    return wanted


def score(results: Iterable[Result]) -> float:
    """The share of right replies. Of those that were not looked at, as many are right as of the doubtful ones."""
    found = list(results)
    doubtful = [result.right for result in found if result.doubtful and result.right is not None]
    likely = sum(doubtful) / max(1, len(doubtful))
    return sum(likely if result.right is None else result.right for result in found) / max(1, len(found))


def figures(results: Sequence[Result]) -> dict[str, dict[str, dict[str, float]]]:
    """By skill and mode: the number of cases, of right replies, of wanted ones token for token, and the score."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for result in results:
        found.setdefault(result.case.skill, {}).setdefault(result.mode, {})
    for skill, modes in found.items():
        for mode in modes:
            some = [result for result in results if result.case.skill == skill and result.mode == mode]
            modes[mode] = {
                "cases": len(some),
                "right": sum(result.right is True for result in some),
                "as_wanted": sum(not result.doubtful for result in some),
                "share": round(score(some), 4),
            }
    return found


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """The figures as a Markdown table, one row a skill."""
    modes = list(dict.fromkeys(mode for modes in found.values() for mode in modes))
    lines = [f"| skill | cases | {' | '.join(modes)} |", f"| --- | ---: |{' ---: |' * len(modes)}"]
    for skill, by_mode in found.items():
        cases = max(round(part["cases"]) for part in by_mode.values())
        shares = [f"{100 * by_mode[mode]['share']:.1f} %" if mode in by_mode else "" for mode in modes]
        lines.append(f"| {skill} | {cases} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


def good_enough(found: dict[str, dict[str, dict[str, float]]]) -> bool:
    """Whether every skill has the wanted share in every mode."""
    return all(part["share"] >= WANTED for modes in found.values() for part in modes.values())


def write_failures(path: pathlib.Path, results: Iterable[Result]) -> None:
    """What was asked, wanted and said of every failure, a line of JSON each."""
    with path.open("w", encoding="utf-8") as file:
        for result in results:
            if result.right is not True:
                file.write(json.dumps(_failure(result), default=_shown) + "\n")


def _failure(result: Result) -> dict[str, Any]:
    case = result.case
    asked = {"skill": case.skill, "mode": result.mode, "thinking": case.thinking, "effort": case.effort}
    told = {"messages": case.messages, "tools": [tool["function"]["name"] for tool in case.tools]}
    form = {"schema": case.schema} if case.schema is not None else {}
    said = None if result.said is None else dataclasses.asdict(result.said)
    return asked | told | form | {"wanted": dataclasses.asdict(case.wanted), "said": said}


def _shown(shown: Any) -> str:
    frame = shown.frames[0]
    return f"a {shown.kind} of {len(shown.frames)} frames, {frame.shape[1]} x {frame.shape[0]} pixels"
