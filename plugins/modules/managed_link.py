#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The netplan file that gives a pair's link its addresses, with a way back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_link
short_description: Give the ports of a pair's link static addresses, with a way back
version_added: 0.2.0
description:
  - Writes one netplan file of its own, C(90-sparkpair-link.yaml), for the first RDMA port with a live cable and for its
    PCIe twin. A port that another netplan file configures is left to that file. No other file is touched.
  - A change is guarded by a process on the host. Unless O(state=kept) follows within O(way_back_s), it restores the
    file as it was and applies it, whether or not anybody can reach the host.
options:
  state:
    description:
      - V(applied) writes the file and applies it. V(verified) fails unless the ports have their addresses and the MTU,
        and every address of O(peers) answers a ping of full size through its port. V(kept) ends the guard.
      - V(reverted) takes a guarded change back at once. V(absent) removes the file and applies that.
    type: str
    choices: [applied, verified, kept, reverted, absent]
    required: true
  rank:
    description: The rank of the host. Its last number in every network is this and 10.
    type: int
    default: 0
  networks:
    description: The IPv4 network of the port, and that of its twin.
    type: list
    elements: str
    default: [192.168.100.0/24, 192.168.101.0/24]
  mtu:
    description: Bytes of a frame.
    type: int
    default: 9000
  peers:
    description: Ports of this host and addresses that have to answer through them.
    type: list
    elements: dict
    default: []
    suboptions:
      netdev:
        description: The port of this host.
        type: str
        required: true
      address:
        description: Who has to answer.
        type: str
        required: true
  directory:
    description: Where netplan reads its files.
    type: path
    default: /etc/netplan
  guard_directory:
    description: Where the guard keeps the file as it was.
    type: path
    default: /run/sparkpair-link
  way_back_s:
    description: Seconds that a change may stay without O(state=kept).
    type: int
    default: 60
  command:
    description: What makes the files count.
    type: list
    elements: str
    default: [netplan, apply]
  sysfs:
    description: The directory that stands for C(/sys).
    type: path
    default: /sys
attributes:
  check_mode:
    support: full
    description: Says what it would write.
  diff_mode:
    support: full
    description: Shows the file before and after.
  idempotent:
    support: full
    description: A file that is right already is not applied again.
requirements:
  - netplan, and ip of iproute2
author:
  - The sparkpair maintainers (@sparkpair)
"""

EXAMPLES = r"""
- name: Give the link its addresses
  sparkpair.serving.managed_link:
    state: applied
    rank: 1
  become: true
  register: link

- name: See that the head answers
  sparkpair.serving.managed_link:
    state: verified
    rank: 1
    peers:
      - netdev: enp1s0f0np0
        address: 192.168.100.10

- name: Let it stay
  sparkpair.serving.managed_link:
    state: kept
  become: true
  when: link is changed
"""

RETURN = r"""
ports:
  description: The ports that the file configures, each with its netdev, its address and the network.
  returned: O(state=applied) and O(state=verified)
  type: list
  elements: dict
  sample:
    - netdev: enp1s0f0np0
      address: 192.168.100.10/24
      network: 192.168.100.0/24
left_to:
  description: Ports that another file configures, each with that file.
  returned: O(state=applied)
  type: dict
  sample: {}
path:
  description: The file.
  returned: always
  type: str
  sample: /etc/netplan/90-sparkpair-link.yaml
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _managed_link, _roce_host, _way_back

# IP and ICMP headers.
_HEADERS = 28


def main() -> None:
    """Run the module."""
    peer = {"netdev": {"type": "str", "required": True}, "address": {"type": "str", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["applied", "verified", "kept", "reverted", "absent"],
                "required": True,
            },
            "rank": {"type": "int", "default": 0},
            "networks": {"type": "list", "elements": "str", "default": ["192.168.100.0/24", "192.168.101.0/24"]},
            "mtu": {"type": "int", "default": 9000},
            "peers": {"type": "list", "elements": "dict", "default": [], "options": peer},
            "directory": {"type": "path", "default": "/etc/netplan"},
            "guard_directory": {"type": "path", "default": "/run/sparkpair-link"},
            "way_back_s": {"type": "int", "default": 60},
            "command": {"type": "list", "elements": "str", "default": ["netplan", "apply"]},
            "sysfs": {"type": "path", "default": "/sys"},
        },
        supports_check_mode=True,
    )
    path = os.path.join(module.params["directory"], _managed_link.FILE)
    try:
        result = _ACTIONS[module.params["state"]](module, path)
    except (_roce_host.MissingTool, _managed_link.NoPort) as error:
        module.fail_json(msg=f"{error}.", path=path)
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path}: {error.strerror}.", path=path)
    module.exit_json(path=path, **result)


def _applied(module: AnsibleModule, path: str) -> dict[str, Any]:
    options = module.params
    files = {}
    for name in sorted(os.listdir(options["directory"])):
        other = os.path.join(options["directory"], name)
        if name.endswith(".yaml"):
            with open(other, encoding="utf-8", errors="replace") as file:
                files[other] = file.read()
    before = files.pop(path, "")
    netdevs = _roce_host.look(options["sysfs"], [])["netdevs"]
    ports = _managed_link.planned(netdevs, options["networks"], options["rank"])
    left_to = _managed_link.owners(files, [port["netdev"] for port in ports])
    ports = [port for port in ports if port["netdev"] not in left_to]
    after = _managed_link.render(ports, options["mtu"]) if ports else before
    result = {"changed": after != before, "ports": ports, "left_to": left_to, "diff": _diff(path, before, after)}
    if after == before or module.check_mode:
        return result
    said = _way_back.change(path, after, options["guard_directory"], options["way_back_s"], options["command"])
    if said:
        _way_back.take_back(path, options["guard_directory"], options["command"])
        module.fail_json(
            msg=f"{' '.join(options['command'])} refused the link's file, which is gone again: {said}.", **result
        )
    return result


def _verified(module: AnsibleModule, path: str) -> dict[str, Any]:
    options = module.params
    netdevs = _roce_host.look(options["sysfs"], [])["netdevs"]
    ports = _managed_link.planned(netdevs, options["networks"], options["rank"])
    asked = [peer["netdev"] for peer in options["peers"]]
    ports = [port for port in ports if port["netdev"] in asked]
    wrong = _managed_link.missing(netdevs, ports, options["mtu"])
    if wrong:
        module.fail_json(
            msg=f"The link is not as {path} says: {'; '.join(wrong)}. NetworkManager may hold the port with an "
            "automatic profile that never completes on a cable: see `nmcli device`, and take it off with "
            "`nmcli connection delete NAME`.",
            path=path,
            ports=ports,
        )
    pings = [{**peer, "size": options["mtu"] - _HEADERS} for peer in options["peers"]]
    silent = [probe for probe in _roce_host.ping_all(pings) if not probe["answered"]]
    if silent:
        told = "; ".join(f"{probe['address']} through {probe['netdev']}" for probe in silent)
        module.fail_json(msg=f"No answer to a ping of {options['mtu']} bytes from {told}.", path=path, ports=ports)
    return {"changed": False, "ports": ports}


def _kept(module: AnsibleModule, path: str) -> dict[str, Any]:
    if not module.check_mode:
        try:
            _way_back.keep(module.params["guard_directory"])
        except _way_back.TakenBack:
            module.fail_json(msg=f"{path} was taken back: nobody said in time that it may stay.", path=path)
    return {"changed": False}


def _reverted(module: AnsibleModule, path: str) -> dict[str, Any]:
    if module.check_mode:
        return {"changed": False}
    options = module.params
    return {"changed": _way_back.take_back(path, options["guard_directory"], options["command"])}


def _absent(module: AnsibleModule, path: str) -> dict[str, Any]:
    if not os.path.exists(path):
        return {"changed": False}
    with open(path, encoding="utf-8") as file:
        before = file.read()
    if not module.check_mode:
        os.unlink(path)
        said = _way_back.apply(module.params["command"])
        if said:
            module.fail_json(msg=f"{path} is gone, and {' '.join(module.params['command'])} said: {said}.", path=path)
    return {"changed": True, "diff": _diff(path, before, "")}


def _diff(path: str, before: str, after: str) -> dict[str, str]:
    return {"before": before, "after": after, "before_header": path, "after_header": path}


_ACTIONS = {
    "applied": _applied,
    "verified": _verified,
    "kept": _kept,
    "reverted": _reverted,
    "absent": _absent,
}


if __name__ == "__main__":
    main()
