# SPDX-License-Identifier: Apache-2.0
"""One host as the roles see it: ranks, engine, checkpoint, weights, ports, machine and endpoint in one document.

Judges nothing and changes nothing. What is returned is described in `plugins/modules/pair_probe.py`. Private to the
collection, may change at any time.
"""

from __future__ import annotations

import os
import pwd
import socket
import sys
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _autostart_files,
    _checkpoint,
    _container_host,
    _host,
    _hub_cache,
    _key_file,
    _machine,
    _machine_text,
    _records,
    _sockets,
    _updates,
    _weights_look,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS, PROCESSES
from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import group_rss_bytes
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_log import last_words, read_lines
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_process import base_environment
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import RankError, observe


def processes_in(state_dir: str) -> list[dict[str, Any]]:
    """Return the ranks of a state directory that are processes, in order of their number.

    Each has `rank`, `container` (empty), `directory`, `state` (running, ended or unclear), `spec_hash`, `pid`,
    `started_at`, `uptime_s`, `rss_bytes`, `exit_code`, `log`, `words`, a phrase for people, and `last_words`, the
    line of its log that says why it ended.
    """
    parent = os.path.join(state_dir, "ranks")
    result = []
    for name in sorted(os.listdir(parent)) if os.path.isdir(parent) else []:
        number = name[len("rank") :]
        if not name.startswith("rank") or not number.isdigit():
            continue
        place = os.path.join(parent, name)
        entry: dict[str, Any] = {"rank": int(number), "container": "", "directory": place}
        try:
            seen = observe(place)
        except RankError as error:
            result.append({**entry, "state": "unclear", "words": str(error), "pid": None, "spec_hash": ""})
            continue
        if not seen.exists:
            continue
        running = seen.running and seen.rank is not None
        entry.update(
            state="running" if running else "ended",
            words=seen.in_words(),
            spec_hash=seen.spec_hash,
            pid=seen.rank.pid if running else None,
            started_at=seen.started_at,
            uptime_s=round(seen.rank.uptime_s()) if running else None,
            rss_bytes=group_rss_bytes(seen.rank.pid) if running else None,
            exit_code=seen.exit_code,
            log=seen.log,
            last_words="" if running else last_words(read_lines(seen.log, seen.log_offset)),
        )
        result.append(entry)
    return sorted(result, key=lambda entry: entry["rank"])


def probe(options: dict[str, Any], key: str | None) -> dict[str, Any]:
    """Return everything found on this host; see RETURN. The API is asked with `key`."""
    engine = ADAPTERS[options["engine"]]
    state_dir = os.path.abspath(options["state_dir"])
    inside = None
    if options["container"]:
        found = _container_host.look(**options["container"], owner=state_dir)
        inside = {**found, "docker_host": options["container"]["docker_host"]}
    ranks = processes_in(state_dir) + (inside["ranks"] if inside else [])
    remembered = _host.remembered_ports(os.path.join(state_dir, "ports.json"))
    port = options["api_port"] or remembered.get("port")
    endpoint = {}
    key_file = os.path.abspath(options["api_key_file"]) if options["api_key_file"] else ""
    if options["api_host"] and port and any(entry["rank"] == 0 and entry["pid"] for entry in ranks):
        url = engine.base_url(options["api_host"], port)
        endpoint = _host.endpoint(url, engine.ready_path, engine.health_path, key)
    serving = program(options, state_dir, inside)
    name = socket.gethostname()
    home, hf_home = os.path.expanduser("~"), os.environ.get("HF_HOME", "")
    cache = _hub_cache.root(options["hf_cache"])
    weights = cache if options["snapshots"] else ""
    machine = _machine.look(**{**options["machine"], "cache": weights}) if options["machine"] else None
    for rank in ranks if machine else []:
        rank["gpu_bytes"] = _machine_text.gpu_bytes(machine["gpu"]["processes"], rank.get("pids", ()))
    versions = _machine.versions(machine)
    last_start = next(({n: one.get(n) for n in ("at", "versions")} for one in _records.starts(state_dir)), None)
    return {
        "hostname": name,
        "system": _host.system(),
        "own_addresses": _host.hosts_file_addresses(name),
        "python": ".".join(map(str, sys.version_info[:3])),
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "cpus": len(os.sched_getaffinity(0)),
        "memory": _host.memory(),
        "state_dir": state_dir,
        "directory": _host.directory(state_dir),
        "address_is_local": _sockets.is_local(options["address"]),
        "home": home,
        "hf_home": hf_home,
        "ids": {"uid": os.geteuid(), "gid": os.getegid()},
        **serving,
        "checkpoint": checkpoint(options, state_dir, serving["engine"]["code_digest"]),
        "container": inside and {name: inside[name] for name in ("docker_host", "image", "volume", "error")},
        "hf_cache": cache,
        "snapshots": _weights_look.look(cache, state_dir, options["snapshots"], options["verify"], options["hub"]),
        "ranks": ranks,
        "listening": _sockets.listening({entry["rank"]: entry["pid"] for entry in ranks if entry["pid"]}),
        "remembered_ports": remembered,
        "api_key_file": {"path": key_file, "problem": _key_file.problem_of(key_file)},
        "machine": machine,
        "versions": versions,
        "last_start": last_start,
        "updates": _updates.since(last_start, versions),
        "autostart": {
            "systemd": os.path.isdir("/run/systemd/system"),
            "supervisor": _autostart_files.told(state_dir),
        },
        "endpoint": endpoint,
    }


def program(options: dict[str, Any], state_dir: str, inside: dict[str, Any] | None) -> dict[str, Any]:
    """Return the `engine` and its `engine_command`; one in an image is known by the image's content."""
    command = options["engine_command"]
    if inside is None:
        environment = {**base_environment(), **options["environment"]}
        found = _host.engine(PROCESSES[options["engine"]].version_argv(command), environment)
        return {"engine": found, "engine_command": command}
    place = options["container"]
    found = {"version": place["image"], "code_digest": inside["image"]["identity"], "error": ""}
    return {
        "engine": found,
        "engine_command": _container_host.engine_command(place["docker_host"], place["image"], command, state_dir),
    }


def checkpoint(options: dict[str, Any], state_dir: str, engine_digest: str) -> dict[str, Any]:
    """Return the state of a checkpoint that is a directory, None for an engine that reads from the cache."""
    if options["engine"] not in PROCESSES:
        return {"path": "", "state": "complete", "problems": [], "digest": ""}
    if options["model"]:
        return _checkpoint.given(options["model"], serves=bool(options["api_host"]))
    seed = None if options["miniature"] == "trained" else options["miniature_seed"]
    return _checkpoint.miniature(_checkpoint.miniature_path(state_dir, seed), seed, engine_digest)
