# SPDX-License-Identifier: Apache-2.0
"""A host that cannot be reached is told with its place, what ssh has said last, and what helps against that."""

from __future__ import annotations

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _reach


@pytest.mark.parametrize(
    ("said", "found", "remedy"),
    [
        (
            "Failed to connect to the host via ssh: ssh: connect to host 192.0.2.2 port 22: Connection timed out",
            "at spark@192.0.2.2: Connection timed out. ",
            "see that w is on and that `ssh spark@192.0.2.2` works from this machine without a password",
        ),
        (
            "Failed to connect to the host via ssh: Warning: Permanently added '192.0.2.2' to the list of known hosts."
            "\nspark@192.0.2.2: Permission denied (publickey,password).",
            ": spark@192.0.2.2: Permission denied (publickey,password). ",
            "`ssh-copy-id spark@192.0.2.2`",
        ),
        (
            "Failed to connect to the host via ssh: No ED25519 host key is known for 192.0.2.2\n"
            "Host key verification failed.",
            ": Host key verification failed. ",
            "connect once with `ssh spark@192.0.2.2`",
        ),
        (
            "Failed to connect to the host via ssh: ssh: Could not resolve hostname spark-2: Name or service not known",
            "Could not resolve hostname spark-2: Name or service not known. ",
            "set ansible_host of w to an address",
        ),
        (
            "Failed to connect to the host via ssh: ssh: connect to host 192.0.2.2 port 22: Connection refused",
            ": Connection refused. ",
            "start the ssh server there",
        ),
        ("", ": nothing was said. ", "see that w is on"),
    ],
)
def test_what_ssh_said_leads_to_what_helps(said: str, found: str, remedy: str) -> None:
    sentence = _reach.sentence("w", said, "192.0.2.2", "spark", 22)
    assert sentence.startswith("w cannot be reached over ssh at spark@192.0.2.2: ")
    assert found in sentence
    assert remedy in sentence.partition("What to do: ")[2]


def test_another_port_is_part_of_the_place_and_of_the_command() -> None:
    sentence = _reach.sentence("w", "No route to host", "192.0.2.2", port=2222)
    assert "at 192.0.2.2 port 2222: No route to host" in sentence
    assert "`ssh -p 2222 192.0.2.2`" in sentence


@pytest.mark.parametrize(
    ("interpreter", "stderr", "looked", "found"),
    [
        ("/usr/bin/python9", "/bin/sh: 1: /usr/bin/python9: not found\n", "/usr/bin/python9 was tried", "python9: not"),
        (
            "/root/.pyenv/shims/python3.13",
            "pyenv: python3.13: command not found\n\nThe `python3.13' command exists in these Python versions:\n",
            "/root/.pyenv/shims/python3.13 was tried",
            "pyenv: python3.13: command not found.",
        ),
        ("", "sh: python3: not found", "none was named", "sh: python3: not found."),
    ],
)
def test_a_host_whose_python_runs_nothing_is_told_with_what_was_tried_and_the_setting(
    interpreter: str, stderr: str, looked: str, found: str
) -> None:
    said = _reach.without_python("w", interpreter, stderr)
    assert said.startswith(f"w has no Python that runs a module ({looked}): ")
    assert found in said
    assert "set ansible_python_interpreter of w to a Python of 3.9 or newer" in said


def test_an_error_of_a_module_itself_is_not_blamed_on_the_interpreter() -> None:
    assert _reach.without_python("w", "/usr/bin/python3", "") == ""
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no\n'
    assert _reach.without_python("w", "/usr/bin/python3", trace) == ""
