# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action `verify_rails`, which runs on the controller and looks at the host once more."""

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_rails
short_description: Have a host ask for the routes and send the pings that prove its rails
version_added: 0.2.0
description:
  - Finds from the first look at all hosts (M(sparkpair.serving.roce_link_info) as the role
    P(sparkpair.serving.roce_link#role) registered it) which ports this host may share with every other one.
  - Runs M(sparkpair.serving.roce_link_info) on the host once more, for the routes to the others' ports and for pings
    over every possible rail that fill the smaller of the two MTUs and may not be fragmented.
extends_documentation_fragment:
  - sparkpair.serving.looks
options:
  sysfs:
    description: The directory that stands for C(/sys).
    type: path
    default: /sys
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.roce_link_info
  - module: sparkpair.serving.link_addresses
"""

EXAMPLES = r"""
- name: Prove the rails
  sparkpair.serving.verify_rails:
  register: __roce_link_verified
"""

RETURN = r"""
node:
  description: What M(sparkpair.serving.roce_link_info) returned.
  returned: success, unless no host has RDMA ports
  type: dict
"""
