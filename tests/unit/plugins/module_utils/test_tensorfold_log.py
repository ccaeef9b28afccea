# SPDX-License-Identifier: Apache-2.0
"""What a rank's log says, and what follows from a failed start: one refit, one retry, then without the split."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _tensorfold_log as log
from ansible_collections.sparkpair.serving.plugins.module_utils._anchors import parse_anchors

from tests.unit.plugins.module_utils.tensorfold import one, plan

NCCL = {"nccl_failure": True}
FITTING = {"fitting_window_tokens": 524288}


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("startup estimate 88.09 GiB within 95.50 GiB: native window 1048576", "estimate_gib", 88.09),
        ("startup estimate 88.09 GiB within 95.50 GiB: native window 1048576", "budget_gib", 95.5),
        ("largest fitting prompt-plus-reply window: 524288 tokens", "fitting_window_tokens", 524288),
        ("largest fitting prompt-plus-reply window: 524,288 tokens", "fitting_window_tokens", 524288),
        ("[rank1] NCCL error 2: unhandled system error", "nccl_failure", True),
        ("2026-10-08 loading layer 12 of 45", "loading", "2026-10-08 loading layer 12 of 45"),
        ("rank 1 ready in 131.5 s", "ready_s", 131.5),
        ("serving GLM-5.3-Flash-EXL3 at http://0.0.0.0:8888", "serving_url", "http://0.0.0.0:8888"),
        ("tensorfold serve: error: --parallel 9", "errors", ["tensorfold serve: error: --parallel 9"]),
        ("torch.OutOfMemoryError: CUDA", "errors", ["torch.OutOfMemoryError: CUDA"]),
        ("NCCL INFO Using network IB", "transport", "ib"),
        ("NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0", "transport", "ib"),
        ("NCCL INFO Using network Socket", "transport", "socket"),
    ],
)
def test_an_anchor_is_read(line: str, key: str, value: Any) -> None:
    assert log.read(["something else", line, ""])[key] == value
    assert log.read(["something else"])[key] in (None, False, [])


def test_both_engines_logs_are_read_into_the_same_keys() -> None:
    assert set(parse_anchors([])) <= set(log.read([]))


def test_one_channel_over_sockets_counts_whatever_comes_after_it() -> None:
    lines = ["Using network IB", "Channel 01 via NET/Socket/0", "Channel 02 via NET/IB/0"]
    assert log.read(lines)["transport"] == "socket"


def history(settings: dict[str, Any], *failures: tuple[dict[int, dict[str, Any]], tuple[int, ...]]) -> list[str]:
    """The actions after each of several failed launches."""
    tried, actions = log.Attempts(), []
    for logs, exited in failures:
        decision = log.after_failure(settings, tried, logs, exited)
        actions.append(decision.action)
        tried = decision.attempts
        if decision.action == log.STOP:
            break
    return actions


WINDOW = ({0: FITTING, 1: {}}, (0,))
SPLIT = ({0: {}, 1: NCCL}, (1,))
OTHER = ({0: {}, 1: {}}, (1,))


@pytest.mark.parametrize(
    ("values", "failures", "actions"),
    [
        ({}, [OTHER], [log.STOP]),
        ({}, [WINDOW, WINDOW], [log.REFIT, log.STOP]),
        ({}, [SPLIT, SPLIT, SPLIT], [log.AGAIN, log.WITHOUT_SPLIT, log.STOP]),
        ({}, [WINDOW, SPLIT, SPLIT, SPLIT], [log.REFIT, log.AGAIN, log.WITHOUT_SPLIT, log.STOP]),
        ({"split": False}, [SPLIT], [log.STOP]),
        ({"release": "v1.5"}, [SPLIT], [log.STOP]),
        ({"release": "v1.3.2"}, [WINDOW, WINDOW], [log.REFIT, log.STOP]),
        # A window is named, but it is the worker that ended: nothing says that another window would help.
        ({}, [({0: FITTING, 1: {}}, (1,))], [log.STOP]),
        # A failure in the log of a rank that still runs is not yet a failed start.
        ({}, [({0: {}, 1: NCCL}, ())], [log.STOP]),
    ],
)
def test_a_start_is_repeated_as_often_as_something_can_come_of_it(
    values: dict[str, Any], failures: list[Any], actions: list[str]
) -> None:
    assert history(one(**values), *failures) == actions


def test_a_refit_asks_for_the_named_window_and_leaves_the_wanted_contract_alone() -> None:
    document = plan()["ranks"][0]
    decision = log.after_failure(one(), log.Attempts(), {0: FITTING}, [0])
    assert decision.attempts.window == 524288
    assert log.amended(document, decision)["argv"] == [*document["argv"], "--context", "524288"]
    assert "524288" not in document["argv"]


def test_a_start_without_the_split_turns_both_of_its_variables_off() -> None:
    document = plan()["ranks"][0]
    again = log.after_failure(one(), log.Attempts(), {1: NCCL}, [1])
    assert log.amended(document, again) == document
    without = log.after_failure(one(), again.attempts, {1: NCCL}, [1])
    env = log.amended(document, without)["env"]
    assert (env["TF_GLM_HC_SPLIT"], env["TF_GLM_PREFILL_OVERLAP"]) == ("0", "0")
    assert "sparkpair_split: false makes that permanent" in without.words


def test_a_stop_says_what_was_tried() -> None:
    tried = log.after_failure(one(), log.Attempts(), {0: FITTING}, [0]).attempts
    stopped = log.after_failure(one(), tried, {0: {"fitting_window_tokens": 4096}}, [0])
    assert "after 2 launches" in stopped.words
    assert "4096 tokens" in stopped.words
