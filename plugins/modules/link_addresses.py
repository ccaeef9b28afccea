# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action `link_addresses`, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: link_addresses
short_description: Decide by which addresses the ranks and the clients reach each other
version_added: 0.1.0
description:
  - Decides every address of the pair in one place, from the settings and the plan as the role
    P(sparkpair.serving.settings#role) registered them and from what the hosts have of RDMA ports, and says on the
    terminal what the ranks talk over.
  - Fails with everything that keeps RDMA from working at once. A further rail that leads nowhere is left out with a
    warning.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
options: {}
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  idempotent:
    support: full
    description: The same settings give the same addresses.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.resolve_settings
  - module: sparkpair.serving.roce_link_info
  - module: sparkpair.serving.verify_rails
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
      description: What carries the ranks' messages, V(tcp) or V(roce).
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
      description:
        - Every host's C(address) on the link, the C(head_address) by which it reaches the head, its C(netdev), the
          C(socket_netdev) for the bootstrap, the RDMA C(devices) of its rails in the same order on all hosts, the
          C(gid_index) and the C(mtu), as far as known.
      type: dict
      sample:
        spark-head:
          address: 192.0.2.1
          head_address: 192.0.2.1
          netdev: enp1s0f0np0
          socket_netdev: enp1s0f0np0
          devices: [rocep1s0f0, roceP2p1s0f0]
          gid_index: 3
          mtu: 9000
    note:
      description: The link in words.
      type: str
      sample: "loopback: all 2 ranks are on one machine and talk plain TCP, without RDMA"
"""
