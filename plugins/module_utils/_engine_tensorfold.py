# SPDX-License-Identifier: Apache-2.0
"""The engine TensorFold as the deployment sees it: the container of every rank, and how its API says that it is ready.

An engine adapter with the common names of `_engine_sparkpair.py` as far as an engine in containers has them, and
`document(...)`, the whole contract of one rank's container. Pure and private to the collection, may change at any time.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _container,
    _nfs,
    _tensorfold_defaults,
    _tensorfold_log,
    _tensorfold_releases,
    _tensorfold_rules,
    _tensorfold_settings,
)

ready_path = "/v1/models"
health_path = "/health"
USES_GPU = True
# Below this a start may fail or leave no room for the published window.
FREE_MEMORY_GIB = 110
# How readiness is asked for while the weights load: seconds a question may take, and between two of them.
READY_LIMIT_S = 5
READY_INTERVAL_S = 3

HUB = "/root/.cache/huggingface"
ENGINE_VERSION = _tensorfold_releases.ENGINE_VERSION
SPILL = "/spill"

OWNED_ARGUMENTS = {
    "--tp": "sparkpair_tp",
    "--rank": "",
    "--master": "sparkpair_fabric_address",
    "--master-port": "sparkpair_master_port",
    "--name": "sparkpair_served_name",
    "--host": "sparkpair_host",
    "--port": "sparkpair_port",
    "--drafter": "sparkpair_drafter",
    "--context": "sparkpair_context",
    "--parallel": "sparkpair_parallel",
    "--max-tokens": "sparkpair_max_tokens",
    "--thinking": "sparkpair_thinking",
    "--no-thinking": "sparkpair_thinking",
    "--vision": "sparkpair_vision",
    "--vision-urls": "sparkpair_vision_urls",
    "--spill-gib": "sparkpair_spill_gib",
    "--snapshot-dir": "sparkpair_spill_dir",
    "--spill-highwater": "sparkpair_spill_highwater",
    "--spill-min-tokens": "sparkpair_spill_min_tokens",
    "--spill-min-free-gib": "sparkpair_spill_min_free_gib",
    "--no-update-check": "sparkpair_update_check",
}

_NCCL_OWNED = {
    "NCCL_SOCKET_IFNAME": "sparkpair_socket_netdev",
    "NCCL_IB_HCA": "sparkpair_rails",
    "NCCL_IB_GID_INDEX": "sparkpair_fabric_address",
    "NCCL_MIN_NCHANNELS": "sparkpair_nccl_channels",
    "NCCL_MAX_NCHANNELS": "sparkpair_nccl_channels",
    "NCCL_DEBUG": "sparkpair_nccl_debug",
    "TF_ROCE_HCA": "sparkpair_rails",
    "TF_SPILL_FLUSH_S": "sparkpair_spill_flush_s",
    # A token in a container shows in every inspection of it.
    "HF_TOKEN": "sparkpair_hf_token_file",
    "HUGGING_FACE_HUB_TOKEN": "sparkpair_hf_token_file",
}
OWNED_ENVIRONMENT = {**_tensorfold_settings.OWNED_VARIABLES, **_NCCL_OWNED}

fill_defaults = _tensorfold_defaults.fill
read_log = _tensorfold_log.read
check = _tensorfold_rules.check
differing = _tensorfold_rules.differing
notes = _tensorfold_rules.notes


def uses_rdma(settings: Mapping[str, Any]) -> bool:
    """Say whether the ranks talk by RDMA: NCCL does wherever there is any."""
    return True


def base_url(host: str, port: int) -> str:
    """Return the URL by which the head reaches its own API; a wildcard bind address is reached on loopback."""
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"


def check_argv(argv: Sequence[str]) -> list[str]:
    """Return the command that has the image's own parser check a rank's arguments, and starts nothing.

    The parser refuses wrong values and choices before it comes to the help; a flag that it does not know passes.
    """
    return [*argv, "--help"]


def release(settings: Mapping[str, Any]) -> _tensorfold_releases.Release:
    """Return the release that the settings select."""
    return _tensorfold_releases.RELEASES[settings["release"]]


def document(
    settings: Mapping[str, Any],
    *,
    entry: Mapping[str, Any],
    world_size: int,
    link: Mapping[str, Any],
    ports: Mapping[str, int],
    revisions: Mapping[str, str],
    homes: Mapping[str, Mapping[str, str]],
    patches: str = "",
) -> dict[str, Any]:
    """Return the contract of one rank: everything that makes its container what it is, so that its hash tells a change.

    `settings` are the host's effective ones and `entry` its entry in the plan. `link` is what `_link.measured`
    returned. `ports` has `port` and `master_port`, `revisions` has `model` and `drafter`; `homes` has by host the
    login's `home` and `hf_home` (empty where it is not set). `patches` is the hash of the image's patches where it is
    not the release's own.
    """
    node = link["nodes"][entry["host"]]
    head = next(iter(link["nodes"]))
    shared = settings["nfs_path"] or cache_path(settings, homes[head])
    borrowed = entry["rank"] > 0 and settings["worker_weights"] == "nfs"
    volume = _nfs_volume(settings, shared, node["head_address"]) if borrowed else None
    result = {
        "name": settings["container_name"],
        "rank": entry["rank"],
        "world_size": world_size,
        "host": entry["host"],
        "image": image_name(settings),
        "image_content": image_content(settings, patches),
        "argv": _argv(settings, entry["rank"], world_size, link["rendezvous"], ports, revisions),
        "env": _environment(settings, node, world_size),
        "mounts": _mounts(settings, homes[entry["host"]], volume, patches or release(settings).patches),
        "devices": ["/dev/infiniband"] if node["devices"] else [],
        "gpus": "all",
        "capabilities": ["IPC_LOCK"],
        "privileged": False,
        "ulimits": {"memlock": -1, "stack": 67108864},
        "shm_size": "16g",
        "network": "host",
        "ipc": "host",
        # A rank that comes back alone cannot join the others; and a follower must outlive the flush of rank 0, which
        # an init process would end early.
        "restart_policy": "no",
        "auto_remove": False,
        "init": False,
    }
    if entry["rank"] == 0:
        result["ready_url"] = base_url(settings["host"], ports["port"]) + ready_path
    return result


def image_name(settings: Mapping[str, Any]) -> str:
    """Return the name of the image on every host: what was set, else the recipe's local tag."""
    return str(settings["image"] or f"tensorfold-glm53:{_tensorfold_releases.ENGINE_VERSION}")


def image_content(settings: Mapping[str, Any], patches: str = "") -> dict[str, str]:
    """Return what the image is: the hash of its patches, and where the release is published.

    A name can be moved to another content without changing, which a rank's document must not overlook.
    """
    wanted = release(settings)
    own = patches not in ("", wanted.patches)
    tag = f"{ENGINE_VERSION}-{patches}" if own else wanted.tag
    return {
        "patches": patches or wanted.patches,
        "tag": tag,
        "digest": "" if own else wanted.digest,
        "published": f"{settings['image_repository']}:{tag}",
    }


def random_weights(settings: Mapping[str, Any]) -> bool:
    """Say whether what is served knows nothing: never, this engine serves released checkpoints."""
    return False


def snapshots(settings: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what is served from the Hub's cache, each a `role`, a `repository` and a `revision`, perhaps empty."""
    roles = ["model", "drafter"] if settings["drafter"] == "dflash2" else ["model"]
    return [
        {"role": role, "repository": settings[f"{role}_id"], "revision": settings[f"{role}_revision"]} for role in roles
    ]


def snapshot(repository: str, revision: str) -> str:
    """Return the path of a snapshot inside the container."""
    return f"{HUB}/hub/models--{repository.replace('/', '--')}/snapshots/{revision}"


def expand(path: str, home: str) -> str:
    """Return a path of a host with its ~ replaced by the login's home directory."""
    return posixpath.normpath(home + path[1:] if path == "~" or path.startswith("~/") else path)


def cache_path(settings: Mapping[str, Any], home: Mapping[str, str]) -> str:
    """Return the Hub cache on a host: what was set, else the login's own."""
    return expand(settings["hf_cache"] or home["hf_home"] or "~/.cache/huggingface", home["home"])


def _argv(
    settings: Mapping[str, Any],
    rank: int,
    world_size: int,
    rendezvous: str,
    ports: Mapping[str, int],
    revisions: Mapping[str, str],
) -> list[str]:
    argv = ["tensorfold", "serve", snapshot(settings["model_id"], revisions["model"])]
    argv += ["--tp", str(world_size), "--rank", str(rank)]
    argv += ["--master", rendezvous, "--master-port", str(ports["master_port"])]
    if rank == 0:
        argv += ["--name", settings["served_name"], "--host", settings["host"], "--port", str(ports["port"])]
    # Without a word here the engine takes the drafter that is in the cache.
    drafts = settings["drafter"] == "dflash2"
    argv += ["--drafter", snapshot(settings["drafter_id"], revisions["drafter"]) if drafts else "none"]
    argv += ["--context", str(settings["context"]), "--parallel", str(settings["parallel"])]
    argv += ["--max-tokens", str(settings["max_tokens"])]
    argv += ["--thinking" if settings["thinking"] else "--no-thinking"]
    argv += ["--vision"] if settings["vision"] else []
    argv += ["--vision-urls"] if settings["vision"] and settings["vision_urls"] else []
    if settings["spill_gib"]:
        argv += ["--spill-gib", f"{settings['spill_gib']:g}", "--snapshot-dir", SPILL]
        argv += ["--spill-highwater", f"{settings['spill_highwater']:g}"]
        argv += ["--spill-min-tokens", str(settings["spill_min_tokens"])]
        argv += ["--spill-min-free-gib", f"{settings['spill_min_free_gib']:g}"]
    return argv + list(settings["extra_args"])


def _environment(settings: Mapping[str, Any], node: Mapping[str, Any], world_size: int) -> dict[str, str]:
    result = _tensorfold_settings.environment(settings)
    if settings["spill_gib"]:
        result["TF_SPILL_FLUSH_S"] = f"{settings['spill_flush_s']:g}"
    if _on_dispram(settings):
        result["PYTHONPATH"] = "/opt/dispram"
    return {**result, **_nccl(settings, node, world_size), **settings["extra_env"]}


def _nccl(settings: Mapping[str, Any], node: Mapping[str, Any], world_size: int) -> dict[str, str]:
    channels = str(settings["nccl_channels"])
    result = {
        "NCCL_SOCKET_IFNAME": settings["socket_netdev"] or node["socket_netdev"],
        "NCCL_MIN_NCHANNELS": channels,
        "NCCL_MAX_NCHANNELS": channels,
    }
    if node["devices"]:
        result["NCCL_IB_HCA"] = ",".join(node["devices"])
    if node["gid_index"] is not None:
        result["NCCL_IB_GID_INDEX"] = str(node["gid_index"])
    if settings["nccl_debug"]:
        result["NCCL_DEBUG"] = settings["nccl_debug"]
    if world_size > 2:
        # No one cable joins all of them: for every peer the ranks choose another device.
        result["NCCL_CROSS_NIC"] = "1"
        result["NCCL_IB_SUBNET_AWARE_ROUTING"] = "1"
        result["NCCL_P2P_DISABLE"] = "1"
        result["NCCL_SHM_DISABLE"] = "1"
        result["TF_ROCE_HCA"] = ",".join(node["devices"])
    return result


def _mounts(
    settings: Mapping[str, Any], home: Mapping[str, str], weights: Mapping[str, Any] | None, patches: str
) -> list[dict[str, Any]]:
    """Return the mounts of a rank; `weights` replaces the host's own cache.

    A compiled kernel is found by its name only, so every image has a kernel cache of its own.
    """
    kernels = posixpath.join(expand(settings["kernel_cache"], home["home"]), patches)
    mounts = [dict(weights or _bind(cache_path(settings, home), HUB)), _bind(kernels, _container.KERNEL_CACHE)]
    if settings["spill_gib"]:
        mounts.append(_bind(expand(settings["spill_dir"], home["home"]), SPILL))
    if _on_dispram(settings):
        mounts.append(_bind(expand(settings["dispram_socket_dir"], home["home"]), "/run/dispram"))
        mounts.append(_bind(expand(settings["dispram_client_dir"], home["home"]), "/opt/dispram", "ro"))
    return mounts


def _bind(source: str, target: str, mode: str = "rw") -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, "mode": mode}


def _nfs_volume(settings: Mapping[str, Any], path: str, head_address: str) -> dict[str, Any]:
    """Return the mount of the head's cache as a volume of the worker's Docker, with the options to create it by."""
    server = settings["nfs_server"] or head_address
    return {
        "type": "volume",
        "source": settings["nfs_volume"],
        "target": HUB,
        "mode": "ro",
        "driver": "local",
        "driver_options": _nfs.volume_options(server, path),
    }


def _on_dispram(settings: Mapping[str, Any]) -> bool:
    return bool(settings["display_kv_mib"]) and settings["display_kv_backend"] == "dispram"


def understands(setting: str, settings: Mapping[str, Any]) -> bool:
    """Say whether the selected release understands a setting."""
    return _tensorfold_settings.understood(setting, settings["release"])
