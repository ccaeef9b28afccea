#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Offers snapshots of this host to the other hosts of the pair, for one run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: snapshot_offer
short_description: Offer snapshots to the other hosts over the link
version_added: 0.2.0
description:
  - Serves the files of snapshots, and nothing else, on one address of this host to whoever knows the secret of the run.
    Nothing passes through the controller, and no login between the hosts is needed.
  - The server is a process of its own that ends by itself when nobody has asked for O(idle) seconds. An earlier offer
    whose clients are still at work goes on beside a new one.
extends_documentation_fragment:
  - sparkpair.serving.snapshots
  - sparkpair.serving.state
  - sparkpair.serving.looks.no_diff
options:
  state:
    description: Whether the files are offered; V(absent) ends the offer on O(port).
    type: str
    choices: [present, absent]
    default: present
  address:
    description: The address to listen on, this host's on the link. The port is a free one.
    type: str
    required: true
  secret:
    description: What both sides must know; a new one for every run.
    type: str
    default: ""
  snapshots:
    description: The snapshots to offer, each with C(repo) and C(revision).
    type: list
    elements: dict
    default: []
  port:
    description: The port of the offer to end.
    type: int
    default: 0
  idle:
    description: Seconds without a client after which the offer ends.
    type: float
    default: 300
attributes:
  check_mode:
    support: full
    description: Offers nothing.
  idempotent:
    support: none
    description: Every offer is a new one, for one run.
requirements:
  - Linux
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.snapshot_pull
"""

EXAMPLES = r"""
- name: Offer the drafter on the link
  sparkpair.serving.snapshot_offer:
    address: 192.0.2.1
    secret: "{{ __secret }}"
    state_dir: ~/.local/state/sparkpair/spark-head
    snapshots:
      - repo: incoai/GLM-5.3-Flash-DFlash2
        revision: bf582e4eacc1810f76656d1811693ff6c6737d2a
"""

RETURN = r"""
address:
  description: Where the files are offered.
  returned: success
  type: str
  sample: 192.0.2.1
port:
  description: On which port, 0 when nothing is offered.
  returned: success
  type: int
  sample: 40213
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _hub_cache
from ansible_collections.sparkpair.serving.plugins.module_utils._copy_server import Offer
from ansible_collections.sparkpair.serving.plugins.module_utils._job import Job

# Offers at a time; one is usual, and a run that was ended by hand leaves another one behind for its clients.
_SLOTS = 8


def offered(cache: str, snapshots: list[dict[str, str]]) -> dict[tuple[str, str], str]:
    """Return the path of every file that is offered, by repository and path in the snapshot."""
    result = {}
    for one in snapshots:
        place = _hub_cache.snapshot(cache, one["repo"], one["revision"])
        for file in _hub_cache.files(place):
            result[(one["repo"], file["path"])] = os.path.realpath(os.path.join(place, file["path"]))
    return result


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "address": {"type": "str", "required": True},
            "secret": {"type": "str", "default": "", "no_log": True},
            "cache": {"type": "path", "default": ""},
            "state_dir": {"type": "path", "required": True},
            "snapshots": {"type": "list", "elements": "dict", "default": []},
            "port": {"type": "int", "default": 0},
            "idle": {"type": "float", "default": 300},
        },
        supports_check_mode=True,
        required_if=[("state", "present", ["secret", "snapshots"])],
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=False, address=params["address"], port=0)
    slots = [Job(os.path.join(params["state_dir"], "weights", f"offer-{number}")) for number in range(_SLOTS)]
    if params["state"] == "absent":
        for job in slots:
            if job.about().get("port") == params["port"]:
                job.stop()
        module.exit_json(changed=False, address=params["address"], port=0)
    try:
        cache = _hub_cache.root(params["cache"])
        files = offered(cache, params["snapshots"])
        offer = Offer(params["address"], params["secret"], files, params["idle"])
        about = {"port": offer.port}
        if not any(job.start(about, offer.serve, keep=[offer.descriptor]) for job in slots):
            module.fail_json(msg=f"{_SLOTS} offers of earlier runs still have clients; wait for them to end.")
    except OSError as error:
        module.fail_json(
            msg=f"The weights cannot be offered on {params['address']}: {error.strerror}. Set sparkpair_fabric_address "
            "of this host to an address of its own on the link."
        )
    module.exit_json(changed=False, address=params["address"], port=offer.port)


if __name__ == "__main__":
    main()
