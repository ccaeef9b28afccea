# SPDX-License-Identifier: Apache-2.0
"""The command that is printed can be pasted: it speaks of the same pair, and tells no secret."""

from __future__ import annotations

import shlex

import pytest
from ansible.parsing.splitter import split_args
from ansible_collections.sparkpair.serving.plugins.module_utils import _again

HERE = "/home/me/serving"


def printed(*extra_vars: str, inventory: str = f"{HERE}/inventories/rehearsal") -> list[str]:
    program, playbook = f"{HERE}/.venv/bin/ansible-playbook", f"{HERE}/playbooks/teardown.yml"
    return shlex.split(_again.command(program, [inventory], extra_vars, playbook, HERE, split_args))


def test_paths_are_as_short_as_they_can_be() -> None:
    assert printed() == [".venv/bin/ansible-playbook", "-i", "inventories/rehearsal", "playbooks/teardown.yml"]
    assert printed(inventory="/etc/ansible/hosts")[2] == "/etc/ansible/hosts"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("@/tmp/my vars.yml", ["-e", "@/tmp/my vars.yml"]),
        (
            "sparkpair_state_dir='/tmp/a b' sparkpair_port=9000",
            ["-e", "sparkpair_state_dir='/tmp/a b'", "-e", "sparkpair_port=9000"],
        ),
        ('{"sparkpair_port": 9000, "ansible_become_password": "secret"}', ["-e", '{"sparkpair_port": 9000}']),
        ("ansible_become_password=secret", []),
        (
            "sparkpair_state_dir=/tmp/{{ inventory_hostname }}",
            ["-e", "sparkpair_state_dir=/tmp/{{ inventory_hostname }}"],
        ),
    ],
)
def test_settings_of_the_command_line_come_along_and_nothing_else(given: str, kept: list[str]) -> None:
    words = printed(given)
    assert words[3:-1] == kept
