# SPDX-License-Identifier: Apache-2.0
"""A rank's document becomes a container's options field by field, and images are known by their content."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _container, _image

# What a Spark's rank has, as the published recipe starts it.
DOCUMENT: dict[str, Any] = {
    "name": "glm53-flash-tf",
    "rank": 1,
    "image": "tensorfold-glm53:v0.6.0",
    "argv": ["tensorfold", "serve", "/root/.cache/huggingface/hub/models--x--y/snapshots/r", "--rank", "1"],
    "env": {"NCCL_IB_GID_INDEX": 3, "TF_GLM_KV": "fp8"},
    "mounts": [
        {
            "type": "volume",
            "source": "glm53-hf",
            "target": "/root/.cache/huggingface",
            "mode": "ro",
            "driver": "local",
            "driver_options": {"type": "nfs", "device": ":/srv/hf"},
        },
        {"type": "bind", "source": "/home/spark/.cache/kernels/ae8d", "target": "/cache", "mode": "rw"},
    ],
    "devices": ["/dev/infiniband"],
    "gpus": "all",
    "capabilities": ["IPC_LOCK"],
    "ulimits": {"memlock": -1, "stack": 67108864},
    "shm_size": "16g",
    "network": "host",
    "ipc": "host",
}


def test_the_document_of_a_spark_becomes_the_options_of_its_container() -> None:
    assert _container.arguments(DOCUMENT, "/state", "c0de") == {
        "name": "glm53-flash-tf",
        "image": "tensorfold-glm53:v0.6.0",
        "command": DOCUMENT["argv"],
        "env": {"NCCL_IB_GID_INDEX": "3", "TF_GLM_KV": "fp8"},
        "labels": {"sparkpair.owner": "/state", "sparkpair.rank": "1", "sparkpair.spec-hash": "c0de"},
        "mounts": [
            {
                "type": "volume",
                "source": "glm53-hf",
                "target": "/root/.cache/huggingface",
                "read_only": True,
                "volume_driver": "local",
                "volume_options": {"type": "nfs", "device": ":/srv/hf"},
            },
            {"type": "bind", "source": "/home/spark/.cache/kernels/ae8d", "target": "/cache", "read_only": False},
        ],
        "devices": ["/dev/infiniband:/dev/infiniband"],
        "device_requests": [{"count": -1, "capabilities": [["gpu"]]}],
        "capabilities": ["IPC_LOCK"],
        "ulimits": ["memlock:-1:-1", "stack:67108864:67108864"],
        "shm_size": "16g",
        "network_mode": "host",
        "ipc_mode": "host",
        "user": "",
    }


def test_the_check_of_arguments_has_the_weights_and_neither_gpu_nor_what_the_rank_writes() -> None:
    check = _container.check(DOCUMENT, "/state", [*DOCUMENT["argv"], "--check-args"])
    assert check["name"] == "glm53-flash-tf-check"
    assert [mount["target"] for mount in check["mounts"]] == ["/root/.cache/huggingface"]
    assert check["mounts"][0]["read_only"]
    assert not {"device_requests", "devices", "network_mode"} & set(check)


def inspected(**state: Any) -> dict[str, Any]:
    common = {
        "Running": False,
        "ExitCode": 0,
        "Pid": 0,
        "Status": "exited",
        "StartedAt": "2026-11-29T21:30:00.123456789Z",
    }
    labels = {"sparkpair.owner": "/state", "sparkpair.rank": "1", "sparkpair.spec-hash": "c0de"}
    return {"Config": {"Labels": labels}, "State": {**common, "FinishedAt": "2026-11-29T21:31:00.5Z", **state}}


@pytest.mark.parametrize(
    ("state", "words", "code", "signal"),
    [
        ({"Running": True, "Pid": 77}, "running", None, None),
        ({}, "ended with exit code 0", 0, None),
        ({"ExitCode": 7}, "ended with exit code 7", 7, None),
        ({"ExitCode": 137}, "ended by signal 9", None, 9),
        ({"ExitCode": 137, "OOMKilled": True}, "ended by signal 9 for want of memory", None, 9),
        ({"Status": "created", "Error": "no such device"}, "was never started: no such device", None, None),
    ],
)
def test_how_a_container_is_or_ended_is_told(
    state: dict[str, Any], words: str, code: int | None, signal: int | None
) -> None:
    seen = _container.state(inspected(**state))
    assert (seen["words"], seen["exit_code"], seen["exit_signal"]) == (words, code, signal)
    assert (seen["rank"], seen["spec_hash"], seen["started_at"]) == (1, "c0de", "2026-11-29T21:30:00Z")


def test_a_container_belongs_to_the_pair_whose_state_directory_it_names() -> None:
    assert _container.is_own(inspected(), "/state")
    assert not _container.is_own(inspected(), "/other")
    assert not _container.is_own({"Config": {"Labels": None}}, "/state")


def test_the_time_since_a_start_is_never_negative() -> None:
    now = datetime.datetime(2026, 11, 29, 21, 30, 30, tzinfo=datetime.UTC)
    assert _container.uptime_s("2026-11-29T21:30:00Z", now) == 30
    assert _container.uptime_s("2026-11-29T21:40:00Z", now) == 0
    assert _container.uptime_s(None, now) is None


def image(**changes: Any) -> dict[str, Any]:
    config = {
        "Env": ["A=b"],
        "Entrypoint": ["/run"],
        "Cmd": ["--help"],
        "WorkingDir": "/workspace",
        "Labels": {"x": "y"},
    }
    return {"Id": "sha256:1", "RootFS": {"Layers": ["sha256:a", "sha256:b"]}, "Config": {**config, **changes}}


def test_s01_two_stores_give_one_image_two_ids_and_one_identity() -> None:
    assert _image.identity(image()) == _image.identity({**image(), "Id": "sha256:2"})
    assert _image.identity(image(Cmd=None, WorkingDir="")) == _image.identity(image(Cmd=[], WorkingDir=None))


@pytest.mark.parametrize("changes", [{"Env": ["A=c"]}, {"Entrypoint": None}, {"Cmd": []}, {"WorkingDir": "/"}])
def test_s01_another_configuration_is_another_image(changes: dict[str, Any]) -> None:
    assert _image.identity(image()) != _image.identity(image(**changes))


def test_s01_the_order_of_layers_counts() -> None:
    turned = {**image(), "RootFS": {"Layers": ["sha256:b", "sha256:a"]}}
    assert _image.identity(image()) != _image.identity(turned)


def test_the_hash_of_the_inputs_covers_every_byte_of_patches_and_extras_in_order() -> None:
    # printf 'onetwoav==1\n' | sha256sum
    assert _image.inputs_hash([b"one", b"two"], "av==1") == "18d4ad965148"
    assert _image.inputs_hash([b"two", b"one"], "av==1") != _image.inputs_hash([b"one", b"two"], "av==1")
    assert _image.inputs_hash([b"one", b"two"], "av==2") != _image.inputs_hash([b"one", b"two"], "av==1")
