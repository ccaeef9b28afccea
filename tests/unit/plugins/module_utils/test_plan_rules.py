# SPDX-License-Identifier: Apache-2.0
"""Groups and combinations of settings that could never serve are refused before a host is touched."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _plan, _rules

from tests.unit.plugins.module_utils.settings_files import effective, given

PAIR = {"head": ["a"], "workers": ["b"], "sparks": ["a", "b"]}


def broken(hosts: tuple[str, ...] = ("a", "b"), **values: Any) -> list[tuple[str, str]]:
    """The rules that values given to all hosts break, by setting, with the place the mistake points to."""
    settings = effective(*hosts, **values)
    mistakes = _rules.check(hosts, settings, {host: given(**values) for host in hosts})
    return [(mistake.subject, mistake.origin) for mistake in mistakes]


def test_ranks_are_the_head_and_then_the_workers_in_inventory_order() -> None:
    hosts, mistakes = _plan.world({"head": ["h"], "workers": ["z", "a"], "sparks": ["a", "z", "h"]})
    assert (hosts, mistakes) == (["h", "z", "a"], [])


@pytest.mark.parametrize(
    ("groups", "subject", "words"),
    [
        ({"head": [], "workers": ["b"], "sparks": ["b"]}, "head", "needs exactly one host, the API's, and it has none"),
        ({**PAIR, "head": ["a", "c"], "sparks": ["a", "b", "c"]}, "head", "it has a, c; move the others to workers"),
        (
            {"heads": ["a"], "workers": ["b"], "sparks": ["b"]},
            "head",
            "it has none; the group heads has a: rename it if head is meant",
        ),
        (
            {"head": ["a"], "worker": ["b"], "sparks": ["a"]},
            "workers",
            "it has no host; the group worker has b: rename it if workers is meant",
        ),
        ({**PAIR, "workers": ["a", "b"]}, "workers", "host a is in the group head too"),
        ({**PAIR, "sparks": ["a", "b", "c"]}, "sparks", "host c is neither in its child head"),
        ({**PAIR, "sparks": ["a"]}, "sparks", "host b is missing"),
    ],
)
def test_groups_that_make_no_world_are_refused_naming_the_host(
    groups: dict[str, list[str]], subject: str, words: str
) -> None:
    mistakes = _plan.world(groups)[1]
    assert [mistake.subject for mistake in mistakes] == [f"inventory group {subject}"]
    assert words in mistakes[0].problem


def test_a_run_that_leaves_out_a_host_of_the_pair_is_refused_by_name() -> None:
    (mistake,) = _plan.absent_from_run(["a", "b"], ["a"])
    assert "leaves out b" in mistake.problem
    assert _plan.absent_from_run(["a", "b"], ["b", "a"]) == []


def test_sound_settings_break_no_rule() -> None:
    assert broken() == []


def test_one_port_for_api_and_rendezvous_is_refused() -> None:
    assert broken(port=9000, master_port=9000) == [("sparkpair_master_port", "at vars.yml (master_port)")]


def test_ports_that_are_both_left_to_choose_do_not_collide() -> None:
    assert broken(port=0, master_port=0) == []


@pytest.mark.parametrize(("context", "refused"), [(0, False), (255, True), (256, False), (1, True)])
def test_a_window_that_holds_no_chat_turn_is_refused(context: int, refused: bool) -> None:
    assert bool(broken(context=context)) == refused


@pytest.mark.parametrize("argument", ["--port", "--rank=1", "--thinking", "--context"])
def test_an_extra_argument_that_a_setting_owns_is_refused_with_the_settings_name(argument: str) -> None:
    settings = effective("a", "b", extra_args=[argument])
    (mistake,) = _rules.check(("a", "b"), settings, {"a": {}, "b": {}})
    assert mistake.subject == "sparkpair_extra_args"
    assert argument.split("=")[0] in mistake.problem


def test_an_extra_argument_that_no_setting_owns_passes() -> None:
    assert broken(extra_args=["--profile", "x"]) == []


def test_a_key_is_no_business_of_the_document() -> None:
    settings = effective("a", "b", extra_env={"SPARKPAIR_API_KEY": "sk-1"})
    (mistake,) = _rules.check(("a", "b"), settings, {"a": {}, "b": {}})
    assert mistake.subject == "sparkpair_extra_env"
    assert "use sparkpair_api_key_file instead" in mistake.problem
    assert "sk-1" not in mistake.problem


def test_o17_a_world_smaller_than_asked_for_is_refused_naming_who_is_there() -> None:
    settings = effective("a", "b", tp=3)
    (mistake,) = _rules.check(("a", "b"), settings, {"a": given(tp=3), "b": {}})
    assert mistake.problem == "3 ranks are expected, and the inventory has 2: a, b (a worker is missing)"
    assert mistake.origin == "at vars.yml (tp)"


def test_a_head_without_worker_is_refused_unless_one_rank_is_asked_for() -> None:
    assert broken(hosts=("a",)) == [("inventory group workers", "")]
    assert broken(hosts=("a",), tp=1) == []


def test_two_hosts_with_one_address_are_refused() -> None:
    assert broken(fabric_address="192.0.2.9") == [("sparkpair_fabric_address", "at vars.yml (fabric_address)")]


def test_one_machine_may_hold_all_ranks_on_loopback() -> None:
    assert broken(fabric_address="127.0.0.1") == []


def test_a_loopback_address_among_others_is_refused_for_the_host_that_has_it() -> None:
    settings = effective("a", "b")
    settings["b"]["fabric_address"] = "127.0.0.1"
    (mistake,) = _rules.check(("a", "b"), settings, {"a": {}, "b": {}})
    assert (mistake.subject, mistake.host) == ("sparkpair_fabric_address", "b")


def test_a_host_without_address_is_refused_when_ansible_knows_it_by_name_only() -> None:
    settings = effective("a", "b", link="tcp")
    settings["b"]["fabric_address"] = _rules.fabric_address("", "spark-2")
    (mistake,) = _rules.check(("a", "b"), settings, {"a": {}, "b": {}})
    assert (mistake.subject, mistake.host) == ("sparkpair_fabric_address", "b")
    # A look at the hosts finds it.
    settings["a"]["link"] = settings["b"]["link"] = "auto"
    assert _rules.check(("a", "b"), settings, {"a": {}, "b": {}}) == []


@pytest.mark.parametrize("link", ["loopback", "roce"])
def test_a_link_that_the_hosts_or_the_engine_cannot_have_is_refused(link: str) -> None:
    assert broken(link=link) == [("sparkpair_link", "at vars.yml (link)")]


def test_gathers_by_rdma_make_a_roce_link_possible_and_need_one() -> None:
    assert broken(link="roce", comm="roce") == []
    assert broken(link="tcp", comm="roce") == [("sparkpair_comm", "at vars.yml (comm)")]


def test_gathers_by_rdma_are_refused_for_three_hosts_and_for_a_limit_below_the_watchdogs() -> None:
    assert broken(hosts=("a", "b", "c"), comm="roce") == [("sparkpair_comm", "at vars.yml (comm)")]
    assert broken(comm="roce", roce_wait_s=60, watchdog_s=60) == [
        ("sparkpair_roce_wait_s", "at vars.yml (roce_wait_s)")
    ]


def test_ranks_in_containers_need_the_name_of_an_image() -> None:
    assert broken(runtime="container", image="") == [("sparkpair_image", "at vars.yml (image)")]


def test_two_ranks_of_one_machine_need_a_state_directory_each() -> None:
    assert broken(fabric_address="127.0.0.1", state_dir="/srv/x") == [
        ("sparkpair_state_dir", "at vars.yml (state_dir)")
    ]
    assert broken(state_dir="/srv/x") == []


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"vision": False, "vision_urls": True}, "vision_urls"),
        ({"image_tokens": 5000}, "image_tokens"),
        ({"max_images": 300}, "max_images"),
        ({"video_frames": 1}, "video_frames"),
    ],
)
def test_limits_of_pictures_that_the_engine_would_refuse_are_refused_by_setting(
    values: dict[str, Any], name: str
) -> None:
    assert broken(**values) == [(f"sparkpair_{name}", f"at vars.yml ({name})")]
