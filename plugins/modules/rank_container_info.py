#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The state of a rank that is a container, read without changing anything, at once or when something happens to it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_container_info
short_description: Tell the state of one rank that runs as a container
version_added: 0.2.0
description:
  - Tells whether a rank's container runs, how it ended, what it uses of the memory and what its log says.
  - A container of the same name that does not belong to the pair is refused by name and never touched.
  - Changes nothing, and asks nothing of the rank but O(ready_url). Can wait for the next event instead of being asked
    again and again.
extends_documentation_fragment:
  - sparkpair.serving.docker
  - sparkpair.serving.rank_info
  - sparkpair.serving.looks
author:
  - The sparkpair maintainers (@sparkpair)
options:
  name:
    description: Name of the container.
    type: str
    required: true
  owner:
    description: The state directory of the pair on this host, by which its containers are known.
    type: str
    required: true
  engine:
    description: The serving engine, whose log is read.
    type: str
    choices: [sparkpair, tensorfold]
    default: sparkpair
attributes:
  platform:
    description: Needs Docker's client on the host.
    platforms: linux
    support: full
seealso:
  - module: sparkpair.serving.rank_process_info
  - module: sparkpair.serving.await_live
"""

EXAMPLES = r"""
- name: Look at the rank of this host
  sparkpair.serving.rank_container_info:
    name: glm53-flash-tf
    owner: /home/spark/.local/state/sparkpair/spark-head
  register: rank

- name: Wait at most a minute until it serves or ends
  sparkpair.serving.rank_container_info:
    name: glm53-flash-tf
    owner: /home/spark/.local/state/sparkpair/spark-head
    ready_url: http://127.0.0.1:8888/v1/models
    wait: 60
  register: rank
"""

RETURN = r"""
exists:
  description: Whether there is a container of that name that belongs to the pair.
  type: bool
  returned: success
  sample: true
pair:
  description:
    - All containers of O(owner) that are ranks, whatever their name, each with C(container), C(rank), C(state) and
      C(words).
  type: list
  elements: dict
  returned: success
name:
  description: Name of the rank.
  type: str
  returned: success
  sample: rank0
state:
  description: The state in words.
  type: str
  returned: success
  sample: ended with exit code 7
running:
  description: Whether the rank runs.
  type: bool
  returned: success
  sample: true
ready:
  description: Whether O(ready_url) answered 200. Null without O(ready_url).
  type: bool
  returned: success
  sample: true
pid:
  description: Process id of the container's first process, null when it does not run.
  type: int
  returned: success
  sample: 4711
spec_hash:
  description: Hash of the document the rank was started with.
  type: str
  returned: success
  sample: 3f0a7d1f6f0c4b4f2a0fb4d9c2d6a0f9e8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3
exit_code:
  description: Exit code of an ended rank, else null.
  type: int
  returned: success
  sample: 7
exit_signal:
  description: Number of the signal that ended the rank, else null.
  type: int
  returned: success
  sample: 9
started_at:
  description: When the rank was started, in UTC.
  type: str
  returned: success
  sample: "2026-11-29T21:30:00Z"
ended_at:
  description: When the rank ended, in UTC. Null while it runs, or when that was not recorded.
  type: str
  returned: success
  sample: "2026-11-29T21:35:00Z"
uptime_s:
  description: For how many seconds the rank has run, null when it does not.
  type: float
  returned: success
  sample: 61.2
rss_bytes:
  description: Resident memory of the container's first process and its children, shared pages counted for each.
  type: int
  returned: success
  sample: 734003200
gpu_bytes:
  description: What these processes hold of the GPU's memory, null where the driver does not tell.
  type: int
  returned: success
  sample: 86000000000
mem_available_bytes:
  description: Memory of the machine that could still be given out without swapping.
  type: int
  returned: success
  sample: 21474836480
log:
  description: The command that shows the log.
  type: str
  returned: success
  sample: docker logs glm53-flash-tf
last_lines:
  description: Last lines of this run in the log, without control characters, at most 500 characters each.
  type: list
  elements: str
  returned: success
  sample: [serving GLM-5.3-Flash-EXL3 at http://127.0.0.1:8888]
anchors:
  description: What the log says, each null or empty until it is said.
  type: dict
  returned: success
  contains:
    estimate_gib:
      description: Memory the rank expects to need, in GiB.
      type: float
    budget_gib:
      description: Memory the rank may use, in GiB.
      type: float
    window_tokens:
      description: Planned prompt-plus-reply window in tokens.
      type: int
    parallel:
      description: Planned number of requests at once.
      type: int
    fitting_window_tokens:
      description: Largest window that fits, said when the planned one does not.
      type: int
    loading:
      description: Last line about the loading of weights.
      type: str
    ready_s:
      description: Seconds the rank took to become ready.
      type: float
    served_name:
      description: Model id under which the server answers.
      type: str
    serving_url:
      description: Address of the server.
      type: str
    transport:
      description: V(ib) or V(socket), as NCCL says that it chose.
      type: str
    errors:
      description: Lines that begin with C(error:).
      type: list
      elements: str
    fatals:
      description: Lines that begin with C(fatal:), a rank's end for a peer's sake.
      type: list
      elements: str
"""

import datetime
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _container,
    _container_host,
    _machine,
    _machine_text,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._key_file import KeyFileError, first_key
from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import mem_available_bytes, tree
from ansible_collections.sparkpair.serving.plugins.module_utils._ready import is_http_url, is_ready


def look(docker: Docker, params: dict[str, Any], key: str | None) -> dict[str, Any]:
    """Return the state of the rank, after waiting as asked; its server is asked with `key`. Raises DockerError."""
    name = params["name"]
    read_log = ADAPTERS[params["engine"]].read_log
    found = _own(docker, params)
    if found and found["State"]["Running"] and params["wait"] > 0:
        anchors = read_log(docker.log_lines(name))
        docker.wait_for(
            name,
            params["wait_for"],
            params["ready_url"],
            lambda: read_log(docker.log_lines(name)) != anchors,
            params["wait"],
            key,
        )
        found = _own(docker, params)
    seen = _container.state(found) if found else None
    running = bool(seen and seen["running"])
    lines = docker.log_lines(name) if found else []
    processes = tree(seen["pid"]) if seen and running else {}
    return {
        "exists": seen is not None,
        "pair": _container_host.ranks_of(docker, params["owner"]),
        "name": name,
        "state": seen["words"] if seen else "absent",
        "running": running,
        "ready": (running and is_ready(params["ready_url"], key)) if params["ready_url"] else None,
        "pid": seen["pid"] if seen and running else None,
        "spec_hash": (seen["spec_hash"] or None) if seen else None,
        "exit_code": seen["exit_code"] if seen else None,
        "exit_signal": seen["exit_signal"] if seen else None,
        "started_at": seen["started_at"] if seen else None,
        "ended_at": seen["ended_at"] if seen else None,
        "uptime_s": _container.uptime_s(seen["started_at"], datetime.datetime.now(datetime.timezone.utc))
        if seen and running
        else None,
        "rss_bytes": sum(processes.values()),
        "gpu_bytes": _machine_text.gpu_bytes(_machine.gpu_processes(), processes) if running else None,
        "mem_available_bytes": mem_available_bytes(),
        "log": f"docker -H {docker.host} logs {name}",
        "last_lines": lines[-params["tail_lines"] :] if params["tail_lines"] > 0 else [],
        "anchors": read_log(lines),
    }


def _own(docker: Docker, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return what Docker knows of the rank's container. Raises DockerError when somebody else has its name."""
    found = docker.inspect(params["name"])
    if found is not None and not _container.is_own(found, params["owner"]):
        raise DockerError(
            f"a container named {params['name']} exists on this host and does not belong to this pair (it has not the "
            f"label {_container.OWNER}={params['owner']}). It was left alone: remove or rename it "
            f"(`docker rename {params['name']} NEW`), or give the pair another name"
        )
    return found


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "owner": {"type": "str", "required": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "engine": {"type": "str", "default": "sparkpair", "choices": sorted(ADAPTERS)},
            "wait": {"type": "float", "default": 0},
            "wait_for": {
                "type": "list",
                "elements": "str",
                "choices": ["exit", "ready", "anchor", "log"],
                "default": ["exit", "ready"],
            },
            "ready_url": {"type": "str"},
            "api_key_file": {"type": "path", "default": ""},
            "tail_lines": {"type": "int", "default": 25},
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["ready_url"] and not is_http_url(params["ready_url"]):
        module.fail_json(msg=f"ready_url is {params['ready_url']!r}, which is no http or https URL.")
    try:
        key = first_key(params["api_key_file"])
        if key:
            module.no_log_values.add(key)
        module.exit_json(changed=False, **look(Docker(params["docker_host"]), params, key))
    except (DockerError, KeyFileError) as error:
        module.fail_json(msg=f"{error}.")


if __name__ == "__main__":
    main()
