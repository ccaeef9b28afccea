# SPDX-License-Identifier: Apache-2.0
"""What the log of a rank of TensorFold says, and what follows when a start fails: refit, retry, degrade or give up.

Pure functions. Private to the collection, may change at any time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._tensorfold_releases import at_least

_NUMBER = r"(\d[\d,_]*)"
_ESTIMATE = re.compile(r"startup estimate ([\d.]+) GiB within ([\d.]+) GiB")
_FITTING = re.compile(rf"largest fitting prompt-plus-reply window: {_NUMBER} tokens")
_ERROR = re.compile(r"^(?:[\w.]*(?:Error|Exception)|error|tensorfold serve: error): ")
_NCCL_FAILURE = re.compile(r"NCCL error 2: unhandled system error")
_LOADING = re.compile(r"\bloading\b")
_SERVING = re.compile(r"\bserving (\S+).* at (https?://\S+)")
_READY = re.compile(r"\brank (\d+) ready in ([\d.]+)")
# NCCL names the transport once when it begins, and again for every channel.
_IB = re.compile(r"NET/IB\b|Using network IB\b")
_SOCKET = re.compile(r"NET/Socket\b|Using network Socket\b")

# Refit, the same start, and one without the split connection: no fourth reason to start again exists.
MOST_ATTEMPTS = 4
REFIT, AGAIN, WITHOUT_SPLIT, STOP = "refit", "again", "without split", "stop"
SPLIT_VARIABLES = ("TF_GLM_HC_SPLIT", "TF_GLM_PREFILL_OVERLAP")


def read(lines: Iterable[str]) -> dict[str, Any]:
    """Return what the lines of one run say; of what is said twice the last counts.

    Keys as of `_anchors.parse_anchors` (`window_tokens`, `parallel` and `fatals` are never said here; `errors` are the
    lines that begin as Python's or the program's own errors do), `nccl_failure`, and `transport`: `ib` or `socket` as
    NCCL chose, None before it says. A channel over sockets decides, for it slows all of them.
    """
    found: dict[str, Any] = {
        "estimate_gib": None,
        "budget_gib": None,
        "window_tokens": None,
        "parallel": None,
        "fitting_window_tokens": None,
        "loading": None,
        "ready_s": None,
        "served_name": None,
        "serving_url": None,
        "errors": [],
        "fatals": [],
        "nccl_failure": False,
        "transport": None,
    }
    for line in lines:
        if match := _ESTIMATE.search(line):
            found.update(estimate_gib=float(match[1]), budget_gib=float(match[2]))
        if match := _FITTING.search(line):
            found.update(fitting_window_tokens=int(re.sub(r"\D", "", match[1])))
        if _ERROR.search(line):
            found["errors"].append(line)
        if _NCCL_FAILURE.search(line):
            found.update(nccl_failure=True)
        if match := _READY.search(line):
            found.update(ready_s=float(match[2].rstrip(".")))
        elif match := _SERVING.search(line):
            found.update(served_name=match[1], serving_url=match[2])
        elif _LOADING.search(line):
            found.update(loading=line.strip())
        if _SOCKET.search(line):
            found.update(transport="socket")
        elif _IB.search(line) and found["transport"] is None:
            found.update(transport="ib")
    return found


@dataclass(frozen=True)
class Attempts:
    """What was tried for one start: how many launches, and which of the remedies are used up.

    `window` is the one in tokens that a refit has chosen, None before.
    """

    launches: int = 1
    window: int | None = None
    repeated: bool = False
    split: bool = True


@dataclass(frozen=True)
class Decision:
    """What to do after a failed launch: one of REFIT, AGAIN, WITHOUT_SPLIT and STOP, why, and the attempts so far."""

    action: str
    words: str
    attempts: Attempts

    def as_data(self) -> dict[str, Any]:
        """Return the decision as plain data."""
        return asdict(self)


def decision_of(data: Mapping[str, Any]) -> Decision:
    """Return a decision that was plain data."""
    return Decision(data["action"], data["words"], attempts_of(data))


def attempts_of(data: Mapping[str, Any] | None) -> Attempts:
    """Return what was tried by a decision that is plain data; without one the first launch."""
    return Attempts(**data["attempts"]) if data else Attempts()


def after_failure(
    settings: Mapping[str, Any], tried: Attempts, logs: Mapping[int, Mapping[str, Any]], exited: Sequence[int]
) -> Decision:
    """Return what follows when a rank has ended before the API answered.

    `logs` holds by rank what `read` found, `exited` the ranks that have ended. The window is refitted once, to the one
    that rank 0 names. A split connection that failed is tried once more and then left out, by releases that retry at
    all. Anything else stops.
    """
    window = logs.get(0, {}).get("fitting_window_tokens")
    if 0 in exited and window and tried.window is None and tried.launches < _most(settings):
        words = f"the window does not fit; starting once more with {window} tokens, which does, this time only"
        return Decision(REFIT, words, replace(tried, launches=tried.launches + 1, window=window))
    failed = sorted(rank for rank, log in logs.items() if log.get("nccl_failure"))
    retries = at_least(settings["release"], "v1.6") and settings["split"] and tried.split
    if exited and failed and retries and tried.launches < _most(settings):
        where = f"rank {failed[0]} could not open its NCCL connection"
        if not tried.repeated:
            done = replace(tried, launches=tried.launches + 1, repeated=True)
            return Decision(AGAIN, f"{where}; starting once more as it is", done)
        done = replace(tried, launches=tried.launches + 1, split=False)
        remedy = "starting without the split connection; sparkpair_split: false makes that permanent"
        return Decision(WITHOUT_SPLIT, f"{where} again; {remedy}", done)
    return Decision(STOP, _why_stopped(tried, window, failed), tried)


def amended(document: Mapping[str, Any], decision: Decision) -> dict[str, Any]:
    """Return the document to launch after a decision. The document that was asked for stays the one to compare with."""
    result = dict(document)
    if decision.attempts.window is not None:
        result["argv"] = [*document["argv"], "--context", str(decision.attempts.window)]
    if not decision.attempts.split:
        result["env"] = {**document["env"], **dict.fromkeys(SPLIT_VARIABLES, "0")}
    return result


def _most(settings: Mapping[str, Any]) -> int:
    return MOST_ATTEMPTS if at_least(settings["release"], "v1.6") else 2


def _why_stopped(tried: Attempts, window: int | None, failed: Sequence[int]) -> str:
    launches = f"after {tried.launches} launch{'es' if tried.launches > 1 else ''}"
    if window and tried.window is not None:
        return f"stopping {launches}: the window that was said to fit did not, and now {window} tokens are said to"
    if failed:
        return f"stopping {launches}: rank {failed[0]} could not open its NCCL connection, and no retry is left"
    return f"stopping {launches}: nothing in the logs says that another launch would end differently"
