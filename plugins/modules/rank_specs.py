# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action `rank_specs`, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_specs
short_description: Write down every rank's contract and compare it with what runs
version_added: 0.1.0
description:
  - Derives this host's rank document (program, arguments, environment, engine, checkpoint) from what the roles
    P(sparkpair.serving.settings#role), P(sparkpair.serving.preflight#role), P(sparkpair.serving.roce_link#role)
    and P(sparkpair.serving.weights#role) have registered.
  - Says whether every rank of the pair runs with its document already, so that a converged pair is left alone.
options:
  decision:
    description:
      - What a failed start has led to, from M(sparkpair.serving.await_live). The container is started accordingly, and
        RV(spec), which later runs compare with, stays what was asked for.
    type: dict
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: M(sparkpair.serving.rank_process) shows the difference when it applies it.
  idempotent:
    support: full
    description: The same facts give the same documents.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.rank_process
"""

EXAMPLES = r"""
- name: Write down the rank of this host
  sparkpair.serving.rank_specs:
  register: __specs
"""

RETURN = r"""
rank:
  description: The number of this host's rank.
  returned: success
  type: int
  sample: 0
name:
  description: The name of this host's rank.
  returned: success
  type: str
  sample: rank0
directory:
  description: Where the rank keeps its files.
  returned: success
  type: str
  sample: /home/spark/.local/state/sparkpair/spark-head/ranks/rank0
log_dir:
  description: Where logs of ended ranks are saved.
  returned: success
  type: str
  sample: /home/spark/.local/state/sparkpair/spark-head/logs
spec:
  description: The rank's document.
  returned: success
  type: dict
log:
  description: The file with the rank's log, or the command that shows it.
  returned: success
  type: str
container:
  description:
    - How the rank is started as a container, null for a process. C(owner), C(docker_host), C(arguments) of
      community.docker.docker_container and those of a throw-away C(check).
  returned: success
  type: dict
image_present:
  description: Whether the host has the image; in check mode it may be still to be brought.
  returned: success
  type: bool
spec_hash:
  description: SHA-256 of the document's canonical JSON.
  returned: success
  type: str
  sample: 3f0c9d4c4c9a6c2f4b8a6b1d0b5c8d3fe1b2a3c4d5e6f708192a3b4c5d6e7f80
start:
  description: All from which this start can be made again without a controller, for M(sparkpair.serving.start_record).
  returned: success
  type: dict
check_argv:
  description: The command that has the engine's own parser check the arguments.
  returned: success
  type: list
  elements: str
  sample: [sparkpair, serve, /models/x, --check-args]
checkable:
  description: Whether the checkpoint is there, so that the arguments can be checked.
  returned: success
  type: bool
  sample: true
fulfilled:
  description: Whether every rank of the pair runs with its document.
  returned: success
  type: bool
  sample: true
ready:
  description: Whether the API answered when the hosts were looked at.
  returned: success
  type: bool
  sample: true
local_url:
  description: The API as the head itself reaches it.
  returned: success
  type: str
  sample: http://127.0.0.1:8888
advertised_url:
  description: The API as clients reach it.
  returned: success
  type: str
  sample: http://198.51.100.7:8888
"""
