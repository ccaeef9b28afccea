#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Finds the start to go back to, and gives the image's name back to the image it ran."""

from __future__ import annotations

DOCUMENTATION = r"""
module: earlier_start
short_description: Go back to the image of an earlier start and tell its settings
version_added: 0.2.0
description:
  - Finds the newest kept start that was another one than the last, gives the image's name on this host back to the
    image that ran then, and returns what was written down. Needs no network.
extends_documentation_fragment:
  - sparkpair.serving.docker
  - sparkpair.serving.looks.no_diff
options:
  state_dir:
    description: The state directory of the pair on this host.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: Tells the start and moves no name.
  idempotent:
    support: full
    description: Until another start is kept the same one is found.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.start_record
"""

EXAMPLES = r"""
- name: Find the start before the last
  sparkpair.serving.earlier_start:
    state_dir: ~/.local/state/sparkpair/spark-head
  register: __earlier
"""

RETURN = r"""
record:
  description: What was written down of the start.
  returned: success
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _image, _records
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    state_dir = os.path.abspath(module.params["state_dir"])
    records = _records.starts(state_dir)
    record = _records.before_last(records)
    if record is None:
        module.fail_json(
            msg=f"There is no start to go back to: {state_dir}/starts has {len(records)} kept, and it takes two "
            "different ones that ended well. Set what you want with the inventory and run site.yml."
        )
    changed = False
    if record.get("kept"):
        docker = Docker(module.params["docker_host"])
        name = record["image"]
        try:
            if not _image.described(docker.inspect(record["kept"], kind="image"))["exists"]:
                module.fail_json(
                    msg=f"The image of the start at {record['at']} is no longer in Docker at {docker.host} "
                    f"({record['kept']}); somebody has removed it. Nothing was changed."
                )
            now = _image.described(docker.inspect(name, kind="image"))
            changed = now["identity"] != record["identity"]
            if changed and not module.check_mode:
                docker.run("tag", record["kept"], name)
        except DockerError as error:
            module.fail_json(msg=f"{error}.")
    module.exit_json(changed=changed, record=record)


if __name__ == "__main__":
    main()
