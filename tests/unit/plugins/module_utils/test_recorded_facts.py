# SPDX-License-Identifier: Apache-2.0
"""Recorded facts: the example is sound, and every mistake in a file is named with its path, all at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _recorded

from tests.unit.plugins.module_utils.tensorfold import EXAMPLE, HOSTS


def test_the_example_is_sound() -> None:
    assert _recorded.check(EXAMPLE, HOSTS) == []


@pytest.mark.parametrize("data", [None, [], "text", {}, {"hosts": []}])
def test_a_file_of_another_kind_says_what_is_expected(data: Any) -> None:
    assert _recorded.check(data, HOSTS) == [
        "hosts: it is missing; the file is a mapping with the facts of every host under hosts"
    ]


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("home", "~", "'~' is no absolute path"),
        ("available_bytes", "much", "'much' is not a whole number from 0 up"),
        ("available_bytes", True, "True is not a whole number from 0 up"),
        ("link.address", "spark", "'spark' is no IPv4 address"),
        ("link.devices", [], "[] is not a list of one or more names"),
        ("link.gid_index", -1, "-1 is not a whole number from 0 up"),
        (
            "link.gid",
            3,
            "there is no such fact; known are address, devices, gid_index, head_address, mtu, netdev, socket_netdev",
        ),
        ("disk.one_disk", "yes", "'yes' is neither true nor false"),
        ("weights", 5, "it is no mapping"),
        ("image_patches", None, "None is not text"),
    ],
)
def test_a_mistake_is_named_with_its_path(path: str, value: Any, problem: str) -> None:
    data = copy.deepcopy(EXAMPLE)
    place = data["hosts"]["spark-worker"]
    *parents, last = path.split(".")
    for parent in parents:
        place = place[parent]
    place[last] = value
    assert _recorded.check(data, HOSTS) == [f"hosts.spark-worker.{path}: {problem}"]


def test_all_mistakes_come_at_once() -> None:
    data = copy.deepcopy(EXAMPLE)
    del data["hosts"]["spark-head"]
    del data["hosts"]["spark-worker"]["link"]["netdev"]
    data["more"] = 1
    assert _recorded.check(data, HOSTS) == [
        "more: there is no such fact; known is hosts",
        "hosts.spark-head: it is missing, and the inventory has that host; the file has spark-worker",
        "hosts.spark-worker.link.netdev: it is missing",
    ]


def test_rails_of_different_number_are_refused_because_ranks_pair_them_by_position() -> None:
    data = copy.deepcopy(EXAMPLE)
    data["hosts"]["spark-worker"]["link"]["devices"] = ["rocep1s0f0"]
    (problem,) = _recorded.check(data, HOSTS)
    assert "spark-head has 2, spark-worker has 1" in problem


def test_three_hosts_need_a_network_to_meet_on() -> None:
    data = copy.deepcopy(EXAMPLE)
    data["hosts"]["third"] = copy.deepcopy(data["hosts"]["spark-worker"])
    problems = _recorded.check(data, [*HOSTS, "third"])
    assert problems[0] == "hosts.spark-head.lan_address: it is missing; more than two hosts meet there"
    assert [problem.split(":")[0] for problem in problems[1:]] == [
        f"hosts.{host}.link.socket_netdev" for host in (*HOSTS, "third")
    ]
