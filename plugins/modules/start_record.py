#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Keeps a start that ended well, so that one can come back to it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: start_record
short_description: Keep a start that ended well
version_added: 0.2.0
description:
  - Writes down on a host what was started, and keeps the image it ran under a tag of its own, so that a later change of
    the image's name leaves it there. The last ten starts stay, and the images of the last two different ones.
options:
  state_dir:
    description: The state directory of the pair on this host.
    type: path
    required: true
  record:
    description: What to write down. C(pair) tells all ranks together apart from others.
    type: dict
    required: true
  start:
    description: All from which the start of this host's rank can be made again, from M(sparkpair.serving.rank_specs).
    type: dict
    required: true
  started:
    description:
      - Whether it is this start that was made. Where the ranks ran already, what the newest record of the same pair
        has of it stays, for a failed attempt may have taught it something.
    type: bool
    default: true
  docker_host:
    description: Address of the Docker daemon, for ranks in containers.
    type: str
    default: unix:///var/run/docker.sock
  image:
    description: The image that is kept, empty for none.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says that it would write and writes nothing.
  diff_mode:
    support: none
    description: A record is new every time.
  idempotent:
    support: none
    description: Every start that ends well is written down.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.earlier_start
"""

EXAMPLES = r"""
- name: Keep what was started
  sparkpair.serving.start_record:
    state_dir: ~/.local/state/sparkpair/spark-head
    record: {pair: 3f0c9d4c, settings: {sparkpair_context: 524288}}
    start: "{{ __rank_specs.start }}"
"""

RETURN = r"""
path:
  description: The file of the record.
  returned: success
  type: str
  sample: /home/spark/.local/state/sparkpair/spark-head/starts/20261130-012000.json
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _image, _records
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError


def keep_image(docker: Docker, name: str, identity: str, state_dir: str) -> str:
    """Tag the image with what it is and return the tag; only one other image is kept beside it. Raises DockerError."""
    kept = _image.kept_name(name, identity)
    docker.run("tag", name, kept)
    others = [one["kept"] for one in _records.starts(state_dir) if one.get("kept") and one["identity"] != identity]
    for old in set(others) - set(others[:1]):
        docker.run("image", "rm", old, missing_ok=True)
    return kept


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "record": {"type": "dict", "required": True},
            "start": {"type": "dict", "required": True},
            "started": {"type": "bool", "default": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "image": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    state_dir = os.path.abspath(params["state_dir"])
    if module.check_mode:
        module.exit_json(changed=True, path="")
    record = {**params["record"], "start": params["start"]}
    newest = next(iter(_records.starts(state_dir)), {})
    if not params["started"] and newest.get("pair") == record["pair"] and newest.get("start"):
        record["start"] = newest["start"]
    try:
        if params["image"]:
            docker = Docker(params["docker_host"])
            identity = _image.described(docker.inspect(params["image"], kind="image"))["identity"]
            kept = keep_image(docker, params["image"], identity, state_dir)
            record.update(image=params["image"], identity=identity, kept=kept)
        path = _records.write_start(state_dir, time.strftime("%Y%m%d-%H%M%S", time.gmtime()), record)
    except DockerError as error:
        module.fail_json(msg=f"{error}.")
    except OSError as error:
        module.fail_json(msg=f"The start could not be written down: {error.filename}: {error.strerror}.")
    module.exit_json(changed=True, path=path)


if __name__ == "__main__":
    main()
