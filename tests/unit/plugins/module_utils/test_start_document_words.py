# SPDX-License-Identifier: Apache-2.0
"""A recorded start of a container becomes one command of the docker client, whose words tell no value of the rank's."""

from __future__ import annotations

import csv
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._start_document import run_words

VOLUME = {"type": "nfs", "o": "addr=192.0.2.1,nfsvers=4.2,ro", "device": ":/srv/hub"}
ARGUMENTS: dict[str, Any] = {
    "name": "glm53",
    "env": {"NCCL_DEBUG": "WARN", "TOKEN": "hf_1", "LD_PRELOAD": "/lib/x.so", "HOME": "/tmp"},
    "labels": {"sparkpair.rank": "0"},
    "mounts": [
        {"type": "bind", "source": "/a dir, with a comma", "target": "/cache", "read_only": True},
        {
            "type": "volume",
            "source": "hub",
            "target": "/hub",
            "read_only": False,
            "volume_driver": "local",
            "volume_options": VOLUME,
        },
    ],
    "devices": ["/dev/infiniband"],
    "device_requests": [{"count": -1}],
    "capabilities": ["IPC_LOCK"],
    "ulimits": ["memlock:-1:-1"],
    "user": "1000:1000",
    "network_mode": "host",
    "ipc_mode": "host",
    "shm_size": "1g",
    "command": ["serve", "--port", "8888"],
}


def values(words: list[str], option: str) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == option]


def test_every_option_of_a_container_is_said_and_the_command_comes_last() -> None:
    words, _ = run_words(ARGUMENTS, "sha256:1234")
    assert words[-4:] == ["sha256:1234", "serve", "--port", "8888"]
    said = ("--name", "--restart", "--pull", "--label", "--device", "--gpus", "--cap-add", "--ulimit", "--user")
    told = ["glm53", "no", "never", "sparkpair.rank=0", "/dev/infiniband", "all", "IPC_LOCK", "memlock=-1:-1"]
    assert [values(words, option) for option in said] == [[one] for one in [*told, "1000:1000"]]
    assert [values(words, option) for option in ("--network", "--ipc", "--shm-size")] == [["host"], ["host"], ["1g"]]
    without, _ = run_words({**ARGUMENTS, "device_requests": [], "user": ""}, "sha256:1234")
    assert not {"--gpus", "--user"} & set(without)


def test_a_mount_with_commas_stays_one_mount() -> None:
    words, _ = run_words(ARGUMENTS, "image")
    bound, volume = (next(csv.reader([text])) for text in values(words, "--mount"))
    assert bound == ["type=bind", "source=/a dir, with a comma", "target=/cache", "readonly"]
    assert volume == [
        *("type=volume", "source=hub", "target=/hub", "volume-driver=local"),
        *(f"volume-opt={name}={value}" for name, value in VOLUME.items()),
    ]


def test_values_of_variables_are_passed_unseen_but_for_those_that_the_client_itself_would_read() -> None:
    words, passed = run_words(ARGUMENTS, "image")
    assert passed == {"NCCL_DEBUG": "WARN", "TOKEN": "hf_1"}
    assert values(words, "--env") == ["NCCL_DEBUG", "TOKEN", "LD_PRELOAD=/lib/x.so", "HOME=/tmp"]
    assert not any("hf_1" in word for word in words)
