#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""How much the link between two hosts carries."""

from __future__ import annotations

DOCUMENTATION = r"""
module: link_rate
short_description: Measure what the link of the pair carries, and warn when that is far under what its ports say
version_added: 0.2.0
description:
  - Takes the link from M(sparkpair.serving.verify_rails). The head answers and every other host asks it, over all rails
    at once, for some 1.5 seconds each way.
  - Measures with TCP, which reaches less than RDMA on the same link, so that only a rate far under what the ports say
    is a finding. It warns and never stops.
  - Takes a buffer of 1 MiB, and measures nothing where less than 1 GiB of memory is available.
  - What cannot be measured is told and is no failure. Must run on all hosts at once.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
options:
  state:
    description: Which side this host is; the action knows it by the host's rank.
    type: str
    choices: [answers, asks]
  sysfs:
    description: The directory that stands for C(/sys).
    type: path
    default: /sys
  port:
    description: The TCP port, that where the ranks will meet.
    type: int
  addresses:
    description: Where to answer.
    type: list
    elements: str
    default: []
  askers:
    description: How many hosts will ask.
    type: int
    default: 1
  rails:
    description: The rails to ask over.
    type: list
    elements: dict
    default: []
    suboptions:
      netdev:
        description: The port that connections are bound to.
        type: str
        required: true
      source:
        description: This host's address on it.
        type: str
        required: true
      address:
        description: The other host's.
        type: str
        required: true
attributes:
  check_mode:
    support: full
    description: Measures nothing and says that it was skipped.
  idempotent:
    support: full
    description: Nothing is changed.
requirements:
  - Linux
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.verify_rails
  - module: sparkpair.serving.link_addresses
"""

EXAMPLES = r"""
- name: Measure the link
  sparkpair.serving.link_rate:
"""

RETURN = r"""
rates:
  description: What was C(sent) and C(received) over all rails at once, in Gbit/s; empty on the host that answers.
  type: dict
  returned: success
  sample: {sent: 92.4, received: 91.8}
says_gbit:
  description: What the fastest port says, 0 where none says anything.
  type: float
  returned: success
  sample: 200.0
reason:
  description: Why nothing was measured, else empty.
  type: str
  returned: success
  sample: only 512 MiB of memory are available
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _link_rate
from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import mem_available_bytes


def main() -> None:
    """Run the module."""
    rail = {name: {"type": "str", "required": True} for name in ("netdev", "source", "address")}
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["answers", "asks"]},
            "sysfs": {"type": "path", "default": "/sys"},
            "port": {"type": "int"},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "askers": {"type": "int", "default": 1},
            "rails": {"type": "list", "elements": "dict", "default": [], "options": rail},
        },
        required_by={"state": ["port"]},
        supports_check_mode=True,
    )
    options = module.params
    if module.check_mode or not options["state"]:
        module.exit_json(changed=False, skipped=True, msg="Nothing was measured.")
    rates: dict[str, float] = {}
    reason = ""
    try:
        if options["state"] == "asks":
            rates = _link_rate.ask(options["rails"], options["port"], mem_available_bytes())
        elif not _link_rate.answer(options["addresses"], options["port"], options["askers"]):
            reason = "no other host has asked"
    except _link_rate.NotMeasured as error:
        reason = str(error)
    except OSError as error:
        reason = f"port {options['port']} of {', '.join(options['addresses'])}: {error.strerror or error}"
    says = _link_rate.says_gbit(options["sysfs"], [one["netdev"] for one in options["rails"]])
    module.exit_json(changed=False, rates=rates, says_gbit=says, reason=reason)


if __name__ == "__main__":
    main()
