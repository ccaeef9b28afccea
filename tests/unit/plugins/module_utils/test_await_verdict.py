# SPDX-License-Identifier: Apache-2.0
"""When a world of ranks is live or lost, and what a person is told."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _updates
from ansible_collections.sparkpair.serving.plugins.module_utils._anchors import parse_anchors
from ansible_collections.sparkpair.serving.plugins.module_utils._live import (
    LIVE,
    LOST,
    TIMED_OUT,
    Sighting,
    failure,
    fitting_window,
    judge,
    progress,
    remedies,
    timeout,
)

HOSTS = ("head", "worker", "third")


def running(rank: int, *lines: str, **changes: Any) -> Sighting:
    info = {
        "exists": True,
        "running": True,
        "state": "running",
        "rss_bytes": 2**29,
        "log": f"/state/rank{rank}/rank.log",
        "last_lines": list(lines),
        "anchors": parse_anchors(lines),
    }
    return Sighting(rank, HOSTS[rank], info=info, **changes)


def ended(rank: int, *lines: str, code: int | None = None, signal: int | None = None) -> Sighting:
    one = running(rank, *lines)
    state = f"ended with exit code {code}" if signal is None else f"ended by signal {signal}"
    one.info.update(running=False, state=state, exit_code=code, exit_signal=signal)
    return one


def test_the_world_is_live_when_rank_0_serves_and_all_run():
    assert judge([running(0, ready=True), running(1)]) == LIVE


def test_a_rank_that_nobody_has_seen_yet_does_not_hold_up_the_verdict():
    assert judge([running(0, ready=True)]) == LIVE


def test_while_rank_0_loads_there_is_no_verdict():
    assert judge([running(0), running(1)]) is None
    assert judge([running(1)]) is None
    assert judge([]) is None


@pytest.mark.parametrize(
    "lost",
    [ended(1, code=0), Sighting(1, "worker", trouble="no route"), Sighting(1, "worker", info={"exists": False})],
    ids=["ended", "unreachable", "never started"],
)
def test_one_lost_rank_loses_the_world_even_when_rank_0_serves(lost):
    assert judge([running(0, ready=True), lost]) == LOST


def test_a_loss_that_another_instance_saw_is_believed():
    assert judge([running(0), running(1, verdict=LOST)]) == LOST


def test_a_later_instance_takes_over_what_rank_0_found():
    assert judge([running(0, verdict=LIVE), running(1)]) == LIVE
    assert judge([running(0, verdict=TIMED_OUT), running(1)]) == TIMED_OUT


def test_the_failure_shows_all_exit_codes_and_lines_and_names_the_cause_first():
    seen = [ended(0, "fatal: rank 1 left", code=4), ended(1, "Killed?", signal=9)]
    told = failure(seen, 3, {})
    assert told.startswith(
        "The ranks are not live: rank 1 on worker was ended by signal 9 (SIGKILL); rank 0 on head ended with exit "
        "code 4; rank 2 was not looked at yet.\n"
    )
    assert "Last lines of rank 0 on head (/state/rank0/rank.log):\n    fatal: rank 1 left\n" in told
    assert "Last lines of rank 1 on worker (/state/rank1/rank.log):\n    Killed?\n" in told


def test_without_a_named_rank_the_cause_is_the_one_that_ended_for_no_peer():
    assert "live: rank 1 on worker ended with exit code 2;" in failure([ended(0, code=4), ended(1, code=2)], 2, {})


def test_a_host_that_cannot_be_asked_is_named_with_the_reason():
    told = failure([running(0), Sighting(1, "worker", trouble="the host does not answer: timed out")], 2, {})
    assert "rank 1 on worker cannot be asked (the host does not answer: timed out); rank 0 on head still runs" in told
    assert "look at worker and the way to it" in told


@pytest.mark.parametrize(
    ("lost", "advice"),
    [
        (
            ended(1, "largest fitting prompt-plus-reply window: 524288 tokens", code=3),
            "does not fit on worker. Set sparkpair_context to 524288 or less",
        ),
        (ended(0, "error: port 8888 is taken by process 12", code=2), "has the port on head."),
        (ended(0, "OSError: [Errno 98] Address already in use", code=1), "has the port on head."),
        (ended(1, "OSError: [Errno 28] No space left on device", code=1), "a disk of worker is full"),
        (ended(1, "torch.OutOfMemoryError: CUDA out of memory.", code=1), "memory ran out on worker"),
        (ended(1, "No module named sparkpair", code=1), "on worker lacks sparkpair. Install the engine"),
        (ended(1, signal=9), "rank 1 on worker was killed from outside"),
        (ended(0, "fatal: rank 1 left", code=4), "for another rank's sake (fatal: rank 1 left)"),
        (Sighting(1, "worker", info={"exists": False, "log": "/x/rank.log"}), "start rank 1 on worker first"),
    ],
    ids=["window", "port", "address", "disk", "memory", "module", "killed", "peer", "never"],
)
def test_a_known_cause_has_its_remedy(lost, advice):
    assert [told for told in remedies([lost]) if advice in told]


@pytest.mark.parametrize(
    "line",
    [
        "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "NCCL WARN NET/IB : Call to ibv_reg_mr failed with error Cannot allocate memory",
    ],
)
def test_n12_memory_that_rdma_cannot_register_is_not_told_as_memory_that_ran_out(line):
    (told,) = remedies([ended(1, line, "DistBackendError: NCCL error 2: unhandled system error", code=1)])
    assert told.startswith("RDMA could not register memory on worker, and not for want of it.")
    assert "CmaFree above CmaTotal" in told
    assert "Stop other programs" not in told


def test_n01_what_never_arrived_over_rdma_leads_to_the_rails():
    line = "Got completion from peer with status=IBV_WC_RETRY_EXC_ERR(12) opcode=32 vendor_err 0x81 (transport retry)"
    (told,) = remedies([ended(0, line, code=1)])
    assert "sparkpair_rails: 1" in told
    assert told.startswith("what head sent")


def test_o14_an_update_is_the_heading_of_a_failed_start_before_everything_that_the_ranks_say():
    before = {"kernel": "6.17.0-1029-nvidia", "driver": "580.173.02", "Docker": "28.2.2"}
    now = {"kernel": "7.0.0-1019-nvidia", "driver": "580.173.02", "Docker": "29.0.0", "runc": "v1.3.0"}
    found = _updates.since({"at": "20261101-101010", "versions": before}, now)
    updates = {"worker": _updates.told("20261101-101010", found)}
    heading = (
        "The start failed, and on worker there was an OS update since the last good start (20261101-101010 UTC): "
        "kernel 6.17.0-1029-nvidia is 7.0.0-1019-nvidia now, Docker 28.2.2 is 29.0.0 now."
    )
    lost = failure([running(0), ended(1, "error: boom", code=1)], 2, updates).splitlines()
    assert lost[0] == heading
    assert lost[1].startswith("The ranks are not live: rank 1 on worker ended with exit code 1")
    assert timeout(600.4, [running(0), running(1)], 2, updates).splitlines()[0] == heading
    # Without a record, or without a change, nothing is suspected.
    assert _updates.since(None, now) == _updates.since({"at": "x", "versions": None}, now) == []
    assert _updates.since({"at": "x", "versions": now}, now) == []


@pytest.mark.parametrize(
    ("names", "kind", "remedy"),
    [
        (["kernel", "operating system"], "an OS update", "boot the earlier kernel"),
        (["driver"], "an OS update", "install the earlier driver"),
        (["board firmware"], "a firmware update", "see what the vendor says of this board firmware"),
        (
            ["kernel", "network firmware"],
            "an OS update and a firmware update",
            "boot the earlier kernel, see what the vendor says of this network firmware",
        ),
    ],
)
def test_o14_the_kind_of_update_is_named_with_the_way_back_from_it(names, kind, remedy):
    found = _updates.since({"at": "x", "versions": dict.fromkeys(names, "1")}, dict.fromkeys(names, "2"))
    assert (_updates.kind(found), _updates.remedy(found)) == (kind, remedy)


def test_an_unknown_cause_gets_no_invented_remedy():
    assert remedies([running(0), ended(1, "Segmentation fault", code=1)]) == []


def test_the_window_that_fits_every_rank_is_the_smallest_that_any_named():
    line = "largest fitting prompt-plus-reply window: {} tokens"
    assert fitting_window([ended(0, line.format(4096)), ended(1, line.format(2048))]) == 2048
    assert fitting_window([running(0)]) is None


def test_progress_shows_each_rank_and_its_memory_against_the_estimate():
    estimate = "startup estimate 0.75 GiB within 20.30 GiB: window 16384 tokens, 1 request at once"
    seen = [running(0, estimate, "loading weights: 1 of 2"), running(1, "rank 1 ready in 3.2 s")]
    assert progress(12.3, seen, 3) == (
        "   12 s  rank 0 on head: loading weights: 1 of 2, 0.50 GiB of 0.75 estimated"
        " | rank 1 on worker: ready after 3.2 s, 0.50 GiB | rank 2: not looked at yet"
    )


def test_o16_progress_compares_the_estimate_with_what_the_gpu_holds_where_the_driver_tells_it():
    one = running(0, "startup estimate 88.09 GiB within 103.20 GiB")
    one.info.update(gpu_bytes=80 << 30)
    assert progress(12.3, [one], 1).endswith("starting, 80.00 GiB on the GPU of 88.09 estimated")
    one.info.update(gpu_bytes=None)
    assert progress(12.3, [one], 1).endswith("starting, 0.50 GiB of 88.09 estimated")


def test_a_timeout_tells_what_each_rank_is_doing_and_that_it_was_left_alone():
    told = timeout(600.4, [running(0, "loading weights: 1 of 2"), running(1)], 2, {})
    assert "not live after 600 s and were left running" in told
    assert "rank 0 on head: loading weights: 1 of 2; rank 1 on worker: starting" in told
    assert "Last lines of rank 1 on worker (/state/rank1/rank.log): none" in told
