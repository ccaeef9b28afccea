#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The network ports, RDMA devices and routes of a host, and whether pings through them arrive."""

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_link_info
short_description: Tell the ports of a host over which ranks could talk by RDMA
version_added: 0.2.0
description:
  - Reports every network port with its MTU, its IPv4 addresses and its RDMA devices, the state and the GID table of
    each device, and the default route. Judges nothing and changes nothing.
  - Can also ask the kernel for its route to given addresses, and send pings that fill the MTU and may not be
    fragmented.
extends_documentation_fragment:
  - sparkpair.serving.looks
options:
  sysfs:
    description: The directory that stands for C(/sys).
    type: path
    default: /sys
  names:
    description: Host names to resolve to IPv4 addresses.
    type: list
    elements: str
    default: []
  routes_to:
    description: IPv4 addresses to ask the routing table about.
    type: list
    elements: str
    default: []
  pings:
    description: Pings to send, all at once.
    type: list
    elements: dict
    default: []
    suboptions:
      netdev:
        description: The port that the ping is bound to.
        type: str
        required: true
      address:
        description: Whom to ask.
        type: str
        required: true
      size:
        description: Payload in bytes, without IP and ICMP headers.
        type: int
        required: true
requirements:
  - ip of iproute2, and ping of iputils for O(pings)
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.link_addresses
  - module: sparkpair.serving.verify_rails
"""

EXAMPLES = r"""
- name: Look at the ports
  sparkpair.serving.roce_link_info:
    names: [spark-worker]
  register: ports

- name: See whether a full frame arrives
  sparkpair.serving.roce_link_info:
    routes_to: [192.0.2.2]
    pings:
      - netdev: enp1s0f0np0
        address: 192.0.2.2
        size: 8972
  register: reached
"""

RETURN = r"""
node:
  description: What was found.
  returned: success
  type: dict
  contains:
    netdevs:
      description: C(name), C(up), C(mtu) in bytes, C(addresses) (C(address), C(prefix)) and C(devices) of every port.
      type: list
      elements: dict
    devices:
      description: C(state), C(firmware) and C(gids) (C(index), C(gid), C(type); empty entries left out) by RDMA device.
      type: dict
    default:
      description: C(netdev) and C(source) of the default route, empty without one.
      type: dict
      sample: {netdev: enP7s7, source: 198.51.100.1}
    resolved:
      description: The addresses of every one of O(names), none where it is unknown.
      type: dict
      sample: {spark-worker: [198.51.100.2]}
    routes:
      description: C(netdev), C(source) and C(gateway), or C(error), for every one of O(routes_to).
      type: dict
    probes:
      description: O(pings), each with C(answered).
      type: list
      elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _roce_host

_PING = {
    "netdev": {"type": "str", "required": True},
    "address": {"type": "str", "required": True},
    "size": {"type": "int", "required": True},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "sysfs": {"type": "path", "default": "/sys"},
            "names": {"type": "list", "elements": "str", "default": []},
            "routes_to": {"type": "list", "elements": "str", "default": []},
            "pings": {"type": "list", "elements": "dict", "default": [], "options": _PING},
        },
        supports_check_mode=True,
    )
    options = module.params
    try:
        node = _roce_host.look(options["sysfs"], options["names"])
        node["routes"] = _roce_host.routes(options["routes_to"])
        node["probes"] = _roce_host.ping_all(options["pings"])
    except _roce_host.MissingTool as error:
        module.fail_json(msg=f"{error}.")
    module.exit_json(changed=False, node=node)


if __name__ == "__main__":
    main()
