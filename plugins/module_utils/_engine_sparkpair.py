# SPDX-License-Identifier: Apache-2.0
"""The engine `sparkpair` as the deployment sees it: its command line, environment and readiness.

An engine adapter is a module `_engine_<name>` with these names; another engine is a second module with the
same ones.

- `OWNED_ARGUMENTS`: arguments that the plan writes, each with the setting to use instead (empty: the plan
  alone decides); `OWNED_ENVIRONMENT`: the same for environment variables.
- `USES_GPU`: whether the ranks need a GPU. `FREE_MEMORY_GIB`: what should be free on a host before a start, 0 where the
  engine says so itself. `uses_rdma(settings)`: whether the ranks talk by RDMA.
- `fill_defaults(settings, world_size)`: the settings with every default derived, and why each is what it is.
- `understands(setting, settings)`: whether it knows a setting at all. `check(settings, given, world_size)` and
  `differing(settings_of_hosts)`: its own rules, as pairs of setting and problem. `notes(settings, given)`: what has
  no effect.
- `serve_argv(...)`, `check_argv(argv)`: how a rank is started, and how its arguments are checked without
  starting it.
- `environment(settings)`: the rank's environment variables.
- `random_weights(settings)`: whether what is served knows nothing.
- `snapshots(settings)`: what is served from the Hub's cache, each a `role`, `repository` and `revision`.
- `version_argv(command)`, `miniature_argv(command, path, seed)`: the questions asked before a start.
- `read_log(lines)`: what the lines of a rank's log mean, with the keys of `_anchors.parse_anchors`.
- `ready_path`, `health_path`: where the API says that it is ready, and how it is.
- `base_url(host, port)`: the API's address as its own host reaches it.

Pure and private to the collection, may change at any time.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._anchors import parse_anchors
from ansible_collections.sparkpair.serving.plugins.module_utils._plan import served_name

ready_path = "/v1/models"
health_path = "/health"
USES_GPU = False
FREE_MEMORY_GIB = 0
read_log = parse_anchors

# Settings of pictures and clips that are numbers, with the least and the most that the engine takes.
_PICTURES = {
    "image_tokens": (16, 4096),
    "request_image_tokens": (16, 49152),
    "max_images": (0, 256),
    "video_tokens": (64, 49152),
    "request_video_tokens": (64, 49152),
    "video_frames": (2, 2048),
    "max_videos": (0, 16),
}

OWNED_ARGUMENTS = {
    "--tp": "sparkpair_tp",
    "--rank": "",
    "--master": "sparkpair_fabric_address",
    "--master-port": "sparkpair_master_port",
    "--name": "sparkpair_served_name",
    "--host": "sparkpair_host",
    "--port": "sparkpair_port",
    "--context": "sparkpair_context",
    "--parallel": "sparkpair_parallel",
    "--max-tokens": "sparkpair_max_tokens",
    "--thinking": "sparkpair_thinking",
    "--no-thinking": "sparkpair_thinking",
    "--threads": "sparkpair_threads",
    "--memory-reserve-gib": "sparkpair_memory_reserve_gib",
    "--join-timeout": "sparkpair_join_timeout",
    "--peer-timeout": "sparkpair_peer_timeout",
    "--stuck-after": "sparkpair_watchdog_s",
    "--stuck-exit": "sparkpair_watchdog_exit",
    "--comm": "sparkpair_comm",
    "--roce-rails": "sparkpair_rails",
    "--roce-max-kb": "sparkpair_roce_max_kb",
    "--roce-wait": "sparkpair_roce_wait_s",
    "--check-args": "",
    "--vision": "sparkpair_vision",
    "--no-vision": "sparkpair_vision",
    "--vision-urls": "sparkpair_vision_urls",
    **{f"--{name.replace('_', '-')}": f"sparkpair_{name}" for name in _PICTURES},
    "--api-key-file": "sparkpair_api_key_file",
    # A key on a command line shows in every process list.
    "--api-key": "sparkpair_api_key_file",
}

OWNED_ENVIRONMENT = {"SPARKPAIR_API_KEY": "sparkpair_api_key_file"}


_DEFAULTS: dict[str, Any] = {
    "runtime": "process",
    "container_name": "sparkpair",
    "context": 0,
    "parallel": 4,
    "thinking": True,
    "memory_reserve_gib": 14.5,
    "comm": "nccl",
    "roce_wait_s": 300,
    "stop_timeout": 30,
}


def fill_defaults(settings: Mapping[str, Any], world_size: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings of one host with every default filled in, and why a derived one is what it is."""
    filled = {**settings, **{name: value for name, value in _DEFAULTS.items() if settings[name] is None}}
    reasons = {}
    if filled["watchdog_s"] is None:
        filled["watchdog_s"] = settings["peer_timeout"] // 5
        reasons["watchdog_s"] = "a fifth of the peer timeout"
    if not settings["served_name"]:
        filled["served_name"] = served_name(settings)
        reasons["served_name"] = "the checkpoint's name"
    return filled, reasons


def uses_rdma(settings: Mapping[str, Any]) -> bool:
    """Say whether the ranks talk by RDMA: where the small gathers are to, and not otherwise."""
    return bool(settings["comm"] == "roce")


def understands(setting: str, settings: Mapping[str, Any]) -> bool:
    """Say whether the engine knows a setting that is declared for it: there is one version of it only."""
    return True


def check(settings: Mapping[str, Any], given: Collection[str], world_size: int) -> list[tuple[str, str]]:
    """Return what is wrong with the settings of the whole pair."""
    problems = []
    if settings["runtime"] == "container" and not settings["image"]:
        problems.append(
            ("image", "it is empty, and ranks in containers need the name of an image that has the engine's program")
        )
    watchdog, peer = settings["watchdog_s"], settings["peer_timeout"]
    if watchdog is not None and watchdog >= peer:
        problems.append(("watchdog_s", f"{watchdog} is not less than the peer timeout, which is {peer}"))
    if settings["comm"] == "roce":
        problems += _roce_problems(settings, world_size)
    if settings["vision_urls"] and not settings["vision"]:
        problems.append(("vision_urls", "pictures by URL need sparkpair_vision, which is off"))
    for name, (least, most) in _PICTURES.items():
        if not least <= settings[name] <= most:
            problems.append(
                (name, f"{settings[name]} is not between {least} and {most}, as the engine sparkpair needs")
            )
    return problems


def _roce_problems(settings: Mapping[str, Any], world_size: int) -> list[tuple[str, str]]:
    problems = []
    if settings["link"] in ("tcp", "loopback"):
        problems.append(("comm", f"roce needs RDMA, and sparkpair_link is {settings['link']}; use nccl"))
    if world_size > 2:
        # Each host's rails are those toward any other host, and the engine pairs them by position.
        problems.append(("comm", f"roce is for two hosts with this engine, and there are {world_size}; use nccl"))
    watchdog, wait = settings["watchdog_s"], settings["roce_wait_s"]
    if watchdog is not None and wait is not None and watchdog >= wait:
        problems.append(("roce_wait_s", f"{wait} is not more than the {watchdog} of sparkpair_watchdog_s"))
    return problems


def differing(settings: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return which settings hosts must not set differently: none beyond those that say so themselves."""
    return []


def notes(settings: Mapping[str, Any], given: Collection[str]) -> list[str]:
    """Return which of the given settings have no effect beside the others."""
    idle: list[tuple[str, str]] = []
    if settings["runtime"] != "container":
        idle += [(name, "sparkpair_runtime is process") for name in ("image", "container_name", "docker_host")]
    if not uses_rdma(settings):
        idle += [(name, "sparkpair_comm is not roce") for name in ("roce_max_kb", "roce_wait_s")]
    if settings["miniature"] == "trained":
        idle.append(("miniature_seed", "sparkpair_miniature is trained"))
    return [f"sparkpair_{name} is set and has no effect, because {why}" for name, why in idle if name in given]


def base_url(host: str, port: int) -> str:
    """Return the URL by which the head reaches its own API; a wildcard bind address is reached on
    loopback.
    """
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"


def version_argv(command: Sequence[str]) -> list[str]:
    """Return the command that prints the engine's version and the digest of its code as JSON."""
    return [*command, "version", "--json"]


def miniature_argv(command: Sequence[str], path: str, seed: int | None) -> list[str]:
    """Return the command that writes the miniature with this seed, or the trained one (None), into the directory
    `path`.
    """
    return [*command, "miniature", path, *(["--trained"] if seed is None else ["--seed", str(seed)])]


def serve_argv(
    settings: Mapping[str, Any],
    *,
    model: str,
    world_size: int,
    rank: int,
    rendezvous: str,
    ports: Mapping[str, int],
    served_name: str,
    threads: int,
    api_key_file: str,
    node: Mapping[str, Any],
) -> list[str]:
    """Return the command of one rank.

    `settings` are the host's effective settings; `model` is the checkpoint directory on that host,
    `rendezvous` the head's address on the link, `ports` has `port` and `master_port`, `api_key_file` is an absolute
    path or empty. `node` is the host's end of the link: its `devices` are its rails. Only rank 0 has an HTTP listener.
    """
    argv = [*settings["engine_command"], "serve", model]
    argv += ["--tp", str(world_size), "--rank", str(rank)]
    argv += ["--master", rendezvous, "--master-port", str(ports["master_port"])]
    if rank == 0:
        argv += ["--name", served_name, "--host", settings["host"], "--port", str(ports["port"])]
        argv += ["--api-key-file", api_key_file] if api_key_file else []
        argv += _pictures_argv(settings)
    argv += ["--context", str(settings["context"]), "--parallel", str(settings["parallel"])]
    argv += ["--max-tokens", str(settings["max_tokens"])]
    argv += ["--thinking" if settings["thinking"] else "--no-thinking"]
    argv += ["--threads", str(threads), "--memory-reserve-gib", f"{settings['memory_reserve_gib']:g}"]
    argv += ["--join-timeout", str(settings["join_timeout"]), "--peer-timeout", str(settings["peer_timeout"])]
    argv += ["--stuck-after", str(settings["watchdog_s"])]
    argv += ["--stuck-exit"] if settings["watchdog_exit"] else []
    argv += _roce_argv(settings, node) if uses_rdma(settings) else []
    return argv + list(settings["extra_args"])


def _roce_argv(settings: Mapping[str, Any], node: Mapping[str, Any]) -> list[str]:
    """Return the arguments of small gathers over RDMA. Where the link has no rails the engine says so and refuses."""
    argv = [
        "--comm",
        "roce",
        "--roce-max-kb",
        str(settings["roce_max_kb"]),
        "--roce-wait",
        str(settings["roce_wait_s"]),
    ]
    rails = ",".join(f"{device}:{node['gid_index']}" for device in node.get("devices", ()))
    return argv + (["--roce-rails", rails] if rails else [])


def _pictures_argv(settings: Mapping[str, Any]) -> list[str]:
    if not settings["vision"]:
        return ["--no-vision"]
    argv = ["--vision-urls"] if settings["vision_urls"] else []
    for name in _PICTURES:
        argv += [f"--{name.replace('_', '-')}", str(settings[name])]
    return argv


def check_argv(argv: Sequence[str]) -> list[str]:
    """Return the command that has the engine's own parser check a rank's arguments, and starts nothing."""
    return [*argv, "--check-args"]


def container(
    settings: Mapping[str, Any], *, model: str, state_dir: str, ids: Mapping[str, int], api_key_file: str, gpus: bool
) -> dict[str, Any]:
    """Return what a rank's document has beyond that of a process when the rank is a container.

    It runs as the account that owns the host's files, with the checkpoint and the keys readable and a directory of its
    own for what it compiles. Memory that RDMA devices write to has to be locked. `gpus` says whether the host's Docker
    can hand out GPUs.
    """
    cache = posixpath.join(state_dir, "cache")
    rdma = uses_rdma(settings)
    mounts = [_bind(model, "ro"), _bind(cache, "rw"), *([_bind(api_key_file, "ro")] if api_key_file else [])]
    return {
        "image": settings["image"],
        "user": f"{ids['uid']}:{ids['gid']}",
        "mounts": mounts,
        "devices": ["/dev/infiniband"] if rdma else [],
        "gpus": "all" if gpus else "",
        "capabilities": ["IPC_LOCK"] if rdma else [],
        "privileged": False,
        "ulimits": {"memlock": -1} if rdma else {},
        "shm_size": "16g",
        "network": "host",
        "ipc": "host",
        "restart_policy": "no",
        "auto_remove": False,
        "init": False,
        "env": {"HOME": cache, **environment(settings)},
    }


def _bind(path: str, mode: str) -> dict[str, Any]:
    """Return the mount of a path of the host at the same path."""
    return {"type": "bind", "source": path, "target": path, "mode": mode}


def environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of a rank beyond what its supervisor inherits."""
    return {"PYTHONUNBUFFERED": "1", **settings["extra_env"]}


def random_weights(settings: Mapping[str, Any]) -> bool:
    """Say whether what is served knows nothing: the random miniature."""
    return not settings["model"] and settings["miniature"] == "random"


def snapshots(settings: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what is served from the Hub's cache: nothing, this engine serves a directory."""
    return []
