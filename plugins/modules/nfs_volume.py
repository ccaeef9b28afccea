#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The head's cache as a Docker volume of this host over NFS: made, mounted for a test, and compared with the head."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_volume
short_description: Read the weights of another host over NFS
version_added: 0.2.0
description:
  - Makes a Docker volume that is a directory of an NFS server, read-only. No root is needed here; Docker mounts it.
  - Mounts it first in a throw-away container, so that a refused export is told as such, then compares paths and sizes
    of the snapshots in it with those that are expected.
  - A volume of that name that is something else is never replaced.
extends_documentation_fragment:
  - sparkpair.serving.docker
  - sparkpair.serving.looks.no_diff
options:
  name:
    description: Name of the volume.
    type: str
    required: true
  server:
    description: Address of the NFS server.
    type: str
    required: true
  path:
    description: The exported path as it is mounted.
    type: str
    required: true
  image:
    description: An image for the throw-away containers, which has C(python3).
    type: str
    required: true
  snapshots:
    description:
      - What must be in it, each with C(repo), C(revision) and C(files), as M(sparkpair.serving.hf_snapshot) tells.
    type: list
    elements: dict
    default: []
  state_dir:
    description:
      - The directory that holds what the pair keeps on this host, where it is remembered what was compared. Empty
        remembers nothing.
    type: path
    default: ""
attributes:
  check_mode:
    support: full
    description: Says whether the volume would be made, and mounts nothing.
  idempotent:
    support: full
    description: A volume that is right is left alone.
requirements:
  - Linux
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.snapshot_pull
"""

EXAMPLES = r"""
- name: Read the weights of the head
  sparkpair.serving.nfs_volume:
    name: glm53-hf
    server: 192.0.2.1
    path: /home/spark/.cache/huggingface
    image: tensorfold-glm53:v0.6.0
"""

RETURN = r"""
volume:
  description: C(name) and C(options) of the volume.
  returned: success
  type: dict
"""

import json
import os
import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _manifest, _nfs
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError

# Where the cache is seen in the throw-away containers.
_PLACE = "/hf"
_MOUNT_LIMIT_S = 120
_MOST_NAMED = 20
# Lists a snapshot, links followed, in a container of the image.
_LISTING = """
import json, os, sys
top, found = sys.argv[1], []
for folder, _, names in os.walk(top):
    for name in names:
        path = os.path.join(folder, name)
        size = os.stat(path).st_size if os.path.exists(path) else None
        found.append({"path": os.path.relpath(path, top), "size": size})
print(json.dumps(found))
"""


class VolumeError(Exception):
    """The volume cannot serve. The text says why and what to do."""


def run(docker: Docker, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Docker's client. Raises DockerError, and VolumeError when a server that does not answer keeps it."""
    try:
        return docker.attempt(*arguments, limit_s=_MOUNT_LIMIT_S)
    except DockerError as error:
        if not isinstance(error.__cause__, subprocess.TimeoutExpired):
            raise
        raise VolumeError(
            f"the NFS server did not answer within {_MOUNT_LIMIT_S} s: see that it runs on the head and that port "
            "2049 is open to this host on the link"
        ) from error


def existing(docker: Docker, name: str) -> dict[str, Any] | None:
    """Return what Docker knows of a volume, None without it."""
    done = run(docker, "volume", "inspect", name)
    if done.returncode == 0:
        return dict(json.loads(done.stdout)[0])
    if "no such volume" in done.stderr.lower():
        return None
    raise VolumeError(f"Docker cannot be asked about the volume {name}: {done.stderr.strip()}")


def throw_away(docker: Docker, params: dict[str, Any], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a container that has the volume, read-only."""
    mount = f"{params['name']}:{_PLACE}:ro"
    entry, *rest = command
    return run(
        docker,
        *("run", "--rm", "--network", "none", "--volume", mount, "--entrypoint", entry, params["image"], *rest),
    )


def mounted(docker: Docker, params: dict[str, Any]) -> None:
    """Mount the volume once. Raises VolumeError with what the mount says."""
    done = throw_away(docker, params, "python3", "-c", "")
    if done.returncode == 0:
        return
    said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    raise VolumeError(
        f"{params['server']}:{params['path']} cannot be mounted as the volume {params['name']}: {said}. See "
        "`exportfs -v` on the head, whether it names this host's address on the link, and that port 2049 is open there"
    )


def compare(docker: Docker, params: dict[str, Any]) -> None:
    """Compare the snapshots that are seen through the volume. Raises VolumeError with what differs."""
    for one in params["snapshots"]:
        place = f"{_PLACE}/hub/models--{one['repo'].replace('/', '--')}/snapshots/{one['revision']}"
        done = throw_away(docker, params, "python3", "-c", _LISTING, place)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise VolumeError(f"the files in the volume {params['name']} cannot be listed: {said}")
        found = json.loads(done.stdout)
        problems = _manifest.compare(found, one["files"])
        if problems:
            raise VolumeError(
                f"{one['repo']} in the volume {params['name']} is not as on the head: "
                f"{'; '.join(problems[:_MOST_NAMED])}. See that sparkpair_nfs_path is where the head exports its cache"
            )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "server": {"type": "str", "required": True},
            "path": {"type": "str", "required": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "image": {"type": "str", "required": True},
            "snapshots": {"type": "list", "elements": "dict", "default": []},
            "state_dir": {"type": "path", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    docker = Docker(params["docker_host"])
    path = os.path.normpath(params["path"])
    wanted = _nfs.volume_options(params["server"], path)
    try:
        found = existing(docker, params["name"])
        if found is not None:
            differs = _nfs.differences(found.get("Options") or {}, wanted)
            if differs:
                raise VolumeError(
                    f"there is a volume {params['name']} already, and {' and '.join(differs)}. It is not replaced: "
                    f"remove it (`docker volume rm {params['name']}`), or name another one in sparkpair_nfs_volume"
                )
        if module.check_mode:
            module.exit_json(changed=found is None, volume={"name": params["name"], "options": wanted})
        if found is None:
            options = [word for name, value in wanted.items() for word in ("--opt", f"{name}={value}")]
            done = run(docker, "volume", "create", "--driver", "local", *options, params["name"])
            if done.returncode != 0:
                raise VolumeError(f"the volume {params['name']} cannot be made: {done.stderr.strip()}")
        mounted(docker, params)
        compare(docker, params)
        if params["state_dir"]:
            digests = [one["digest"] for one in params["snapshots"]]
            _nfs.remember(params["state_dir"], params["name"], params["server"], path, digests)
    except (VolumeError, DockerError) as error:
        module.fail_json(msg=f"{error}.")
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}.")
    module.exit_json(changed=found is None, volume={"name": params["name"], "options": wanted})


if __name__ == "__main__":
    main()
