#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Saves what a rank's container has said, before the container is removed and its log with it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_container_log
short_description: Save the log of a rank's container
version_added: 0.2.0
description:
  - Saves everything that a rank's container has written, each line with its time, compressed and under a name of its
    own, and keeps the newest few. Meant for the moment before a container is removed, as its log goes with it.
  - A log that cannot be saved is a warning, because evidence is no reason to leave the service down.
extends_documentation_fragment:
  - sparkpair.serving.docker
  - sparkpair.serving.looks.no_diff
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
  rank:
    description: Name of the rank, which the saved logs carry.
    type: str
    required: true
  log_dir:
    description: Where logs are saved as C(<YYYYmmdd-HHMMSS>-<rank>.log.gz), in UTC.
    type: path
    required: true
  log_keep:
    description: How many saved logs of this rank are kept, the newest. With 0 none is saved.
    type: int
    default: 10
attributes:
  check_mode:
    description: Says that a log would be saved and saves none.
    support: full
  idempotent:
    description: Every run saves the log once more.
    support: none
  platform:
    description: Needs Docker's client on the host.
    platforms: linux
    support: full
seealso:
  - module: sparkpair.serving.rank_container_info
"""

EXAMPLES = r"""
- name: Keep what rank 0 has said
  sparkpair.serving.rank_container_log:
    name: glm53-flash-tf
    owner: /home/spark/.local/state/sparkpair/spark-head
    rank: rank0
    log_dir: /home/spark/.local/state/sparkpair/spark-head/logs
"""

RETURN = r"""
saved_log:
  description: Path of the saved log, empty when there was no container or none is kept.
  type: str
  returned: success
  sample: /home/spark/.local/state/sparkpair/spark-head/logs/20261129-213000-rank0.log.gz
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _container, _container_log
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import explain


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "owner": {"type": "str", "required": True},
            "rank": {"type": "str", "required": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "log_dir": {"type": "path", "required": True},
            "log_keep": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    params = module.params
    docker = Docker(params["docker_host"])
    try:
        found = docker.inspect(params["name"])
    except DockerError as error:
        module.fail_json(msg=f"{error}.")
    if found is None or not _container.is_own(found, params["owner"]) or params["log_keep"] <= 0:
        module.exit_json(changed=False, saved_log="")
    if module.check_mode:
        module.exit_json(changed=True, saved_log="")
    try:
        saved = _container_log.save(docker, found, params["rank"], params["log_dir"], params["log_keep"])
        module.exit_json(changed=True, saved_log=saved)
    except DockerError as error:
        module.warn(f"The log was not saved: {error}.")
    except OSError as error:
        module.warn(str(explain(error, f"save the log of {params['name']}", params["log_dir"])))
    module.exit_json(changed=False, saved_log="")


if __name__ == "__main__":
    main()
