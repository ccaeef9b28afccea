#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The list of what setting up a pair has made on a host, so that all of it can be undone and nothing else."""

from __future__ import annotations

DOCUMENTATION = r"""
module: made_here
short_description: Keep a list of what was made on a host, and undo it
version_added: 0.2.0
description:
  - With O(state=present) adds to the list, which is the file C(made.json) in the state directory.
  - With O(state=absent) removes what is on the list, the images that were kept for going back, and the state directory
    itself. What is not on the list stays.
extends_documentation_fragment:
  - sparkpair.serving.docker
options:
  state_dir:
    description: The state directory of the pair on this host.
    type: path
    required: true
  state:
    description: What to do.
    type: str
    choices: [present, absent]
    default: present
  kind:
    description: What was made.
    type: str
    choices: [directory, image, link, volume]
    default: directory
  names:
    description: The names or paths of what was made.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Says what it would do.
  diff_mode:
    support: full
    description: Shows the list before and after.
  idempotent:
    support: full
    description: What is on the list is not added again, what is gone is not removed again.
author:
  - The sparkpair maintainers (@sparkpair)
"""

EXAMPLES = r"""
- name: Remember that the image was brought
  sparkpair.serving.made_here:
    state_dir: ~/.local/state/sparkpair/spark-head
    kind: image
    names: [tensorfold-glm53:v0.6.0]
"""

RETURN = r"""
things:
  description: What is on the list, or what was removed.
  returned: success
  type: list
  elements: dict
left:
  description: What could not be removed, one sentence each.
  returned: O(state=absent)
  type: list
  elements: str
"""

import contextlib
import os
import shutil
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _image_layers, _records
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError

# Far above what a path that was made here has; a root or a home directory is never taken away as a whole.
_LEAST_PARTS = 3


def all_things(state_dir: str) -> list[dict[str, Any]]:
    """Return everything that undoing takes away: directories first, because root's files need an image to go."""
    listed = _records.made(state_dir)
    kept = {record["kept"] for record in _records.starts(state_dir) if record.get("kept")}
    listed += [{"kind": "image", "name": name} for name in sorted(kept)]
    if os.path.isdir(state_dir):
        listed.append({"kind": "directory", "name": state_dir})
    order = {"link": 0, "directory": 1, "volume": 2, "image": 3}
    return sorted(listed, key=lambda thing: order[thing["kind"]])


def arriving(docker: Docker) -> list[dict[str, Any]]:
    """Return the images that hold layers of one that never came to its end, none where there is no Docker."""
    with contextlib.suppress(DockerError):
        label = f"label={_image_layers.ARRIVING}"
        found = docker.attempt("image", "ls", "--quiet", "--no-trunc", "--filter", label).stdout.split()
        return [{"kind": "image", "name": name} for name in dict.fromkeys(found)]
    return []


def remove(docker: Docker, thing: dict[str, Any], images: list[str]) -> str:
    """Take one thing away and return in words why not, empty when it is gone."""
    name = thing["name"]
    try:
        if thing["kind"] == "image":
            docker.run("image", "rm", name, missing_ok=True)
        elif thing["kind"] == "link":
            # A file that has to be applied when it goes, by the module managed_link, which may do what root may.
            return f"the link's file {name} is still there" if os.path.exists(name) else ""
        elif thing["kind"] == "volume":
            docker.run("volume", "rm", name, missing_ok=True)
        else:
            remove_directory(docker, name, images)
    except (DockerError, OSError) as error:
        return f"{thing['kind']} {name}: {error}"
    return ""


def remove_directory(docker: Docker, path: str, images: list[str]) -> None:
    """Remove a directory; what a rank has written there as root, a container of its image removes. Raises OSError."""
    if len([part for part in path.split("/") if part]) < _LEAST_PARTS:
        raise OSError(f"it is too near the root to be removed with everything in it: {path}")
    if not os.path.isdir(path):
        return
    try:
        shutil.rmtree(path)
    except PermissionError:
        if not images:
            raise
        parent, name = os.path.split(path)
        command = ["run", "--rm", "--network", "none", "--volume", f"{parent}:/there", "--entrypoint", "rm", images[0]]
        docker.run(*command, "-rf", f"/there/{name}")


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "kind": {"type": "str", "choices": ["directory", "image", "link", "volume"], "default": "directory"},
            "names": {"type": "list", "elements": "str", "default": []},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    params = module.params
    state_dir = os.path.abspath(params["state_dir"])
    if params["state"] == "present":
        known = _records.made(state_dir)
        things = [{"kind": params["kind"], "name": name} for name in params["names"]]
        new = [thing for thing in things if thing not in known]
        try:
            changed = bool(new) if module.check_mode else _records.add_made(state_dir, things)
        except OSError as error:
            module.fail_json(msg=f"What was made could not be written down: {error.filename}: {error.strerror}.")
        module.exit_json(changed=changed, things=[*known, *new], diff=_diff(known, [*known, *new]))
    docker = Docker(params["docker_host"])
    things = all_things(state_dir) + arriving(docker)
    if module.check_mode:
        module.exit_json(changed=bool(things), things=things, left=[], diff=_diff(things, []))
    images = [thing["name"] for thing in things if thing["kind"] == "image"]
    left = [text for thing in things if (text := remove(docker, thing, images))]
    if left:
        module.fail_json(msg=f"Not everything could be removed: {'; '.join(left)}.", things=things, left=left)
    module.exit_json(changed=bool(things), things=things, left=[], diff=_diff(things, []))


def _diff(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, str]:
    def told(things: list[dict[str, Any]]) -> str:
        return "".join(f"{thing['kind']} {thing['name']}\n" for thing in things)

    return {"before": told(before), "after": told(after)}


if __name__ == "__main__":
    main()
