# SPDX-License-Identifier: Apache-2.0
"""By which way an image is sent to another host, as ssh itself understands it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ansible_collections.sparkpair.serving.plugins.module_utils import _image_stream


def understood(command: list[str], configuration: Path) -> dict[str, str]:
    """What ssh would do, by option."""
    entry, *rest = command
    done = subprocess.run(
        [entry, "-G", "-F", str(configuration), *rest],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_an_image_goes_over_the_link_to_a_host_that_is_known_by_another_address(tmp_path: Path) -> None:
    configuration = tmp_path / "config"
    configuration.write_text("Host worker\n  HostName 198.51.100.2\n  IdentityFile ~/of-the-worker\n")
    found = understood(_image_stream.over_link(["ssh", "-o", "BatchMode=yes", "me@worker"], "192.0.2.2"), configuration)
    assert (found["hostname"], found["user"], found["hostkeyalias"]) == ("192.0.2.2", "me", "worker")
    assert found["identityfile"].endswith("of-the-worker")


def test_a_host_without_another_address_is_reached_as_it_is_known(tmp_path: Path) -> None:
    command = ["ssh", "-o", "BatchMode=yes", "worker"]
    assert _image_stream.over_link(command, "") == command
    assert _image_stream.over_link([], "192.0.2.2") == []
