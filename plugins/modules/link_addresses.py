# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action `link_addresses`, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: link_addresses
short_description: Decide by which addresses the ranks and the clients reach each other
version_added: 0.1.0
description:
  - Decides every address of the pair in one place, from the settings and the plan as the role
    P(sparkpair.serving.settings#role) registered them, and says on the terminal what the ranks talk over.
  - The ranks talk plain TCP. On one machine they use loopback addresses.
options: {}
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
  idempotent:
    support: full
    description: The same settings give the same addresses.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.resolve_settings
"""

EXAMPLES = r"""
- name: Decide the addresses of the pair
  sparkpair.serving.link_addresses:
  register: __link
"""

RETURN = r"""
link:
  description: The link of the pair, the same on every host.
  returned: success
  type: dict
  contains:
    transport:
      description: What carries the ranks' messages.
      type: str
      sample: tcp
    rdma:
      description: Whether the messages go by RDMA.
      type: bool
      sample: false
    rendezvous:
      description: The head's address for the other ranks.
      type: str
      sample: 192.0.2.1
    advertised:
      description: The head's address for clients.
      type: str
      sample: 198.51.100.7
    nodes:
      description: Every host's C(address) on the link.
      type: dict
      sample: {spark-head: {address: 192.0.2.1}, spark-worker: {address: 192.0.2.2}}
    note:
      description: The link in words.
      type: str
      sample: "loopback: all 2 ranks are on one machine and talk plain TCP, without RDMA"
"""
