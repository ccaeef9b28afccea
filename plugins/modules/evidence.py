#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Puts the logs of a host's ranks, and what else tells how they are, into one archive without secrets."""

from __future__ import annotations

DOCUMENTATION = r"""
module: evidence
short_description: Collect a host's logs and state into an archive without secrets
version_added: 0.2.0
description:
  - Collects the logs of the ranks of this host, running, ended and saved, and returns the last lines of those that are
    there. With O(everything) also the records of starts, what the system's programs say, and the containers.
  - Keys, tokens and passwords are removed, those that are known from their files and those that look like one.
  - Stops and changes no rank.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
options:
  state_dir:
    description: The state directory of the pair on this host.
    type: path
    required: true
  docker_host:
    description: Address of the Docker daemon, empty where ranks are processes.
    type: str
    default: ""
  secret_files:
    description: Files whose words are secrets.
    type: list
    elements: path
    default: []
  everything:
    description: Whether to collect more than logs.
    type: bool
    default: false
  report:
    description: What the controller knows, added as C(report.json).
    type: dict
    default: {}
  tail_lines:
    description: How many last lines of each rank's log to return.
    type: int
    default: 20
attributes:
  check_mode:
    support: full
    description: Writes no archive and returns the last lines.
  idempotent:
    support: none
    description: Every archive is a new one.
author:
  - The sparkpair maintainers (@sparkpair)
"""

EXAMPLES = r"""
- name: Collect the logs
  sparkpair.serving.evidence:
    state_dir: ~/.local/state/sparkpair/spark-head
  register: __evidence
"""

RETURN = r"""
path:
  description: The archive on the host, empty in check mode.
  returned: success
  type: str
  sample: /home/spark/.local/state/sparkpair/spark-head/evidence-20261130-012000.tar.gz
files:
  description: The names of what is in it.
  returned: success
  type: list
  elements: str
tails:
  description: The last lines of each rank's log that is there, each C(name) and C(lines).
  returned: success
  type: list
  elements: dict
"""

import contextlib
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _evidence
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker
from ansible_collections.sparkpair.serving.plugins.module_utils._redact import redact


def words_of(paths: list[str]) -> set[str]:
    """Return the words of files of secrets, as far as they can be read: a key file has labels before its keys."""
    words: set[str] = set()
    for path in paths:
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            for line in file.read().split():
                words |= {line, line.partition(":")[2]} - {""}
    return words


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "docker_host": {"type": "str", "default": ""},
            # The names of the files are no secrets.
            "secret_files": {"type": "list", "elements": "path", "default": [], "no_log": False},
            "everything": {"type": "bool", "default": False},
            "report": {"type": "dict", "default": {}},
            "tail_lines": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    params = module.params
    state_dir = os.path.abspath(params["state_dir"])
    docker = Docker(params["docker_host"]) if params["docker_host"] else None
    secrets = words_of(params["secret_files"])
    found = list(_evidence.logs(state_dir, docker))
    tails = [
        {
            "name": os.path.basename(name)[: -len(".log")],
            "lines": redact(text, secrets).splitlines()[-params["tail_lines"] :],
        }
        for name, text in found
        if not name.startswith("logs/saved/")
    ]
    if module.check_mode:
        module.exit_json(changed=False, path="", files=[name for name, _ in found], tails=tails)
    if params["everything"]:
        found += _evidence.surroundings(state_dir, docker)
        found.append(("report.json", module.jsonify(params["report"])))
    path = os.path.join(state_dir, time.strftime("evidence-%Y%m%d-%H%M%S.tar.gz", time.gmtime()))
    try:
        os.makedirs(state_dir, exist_ok=True)
        names = _evidence.write_archive(path, found, secrets)
    except OSError as error:
        module.fail_json(msg=f"The archive could not be written: {error.filename or path}: {error.strerror}.")
    module.exit_json(changed=False, path=path, files=names, tails=tails)


if __name__ == "__main__":
    main()
