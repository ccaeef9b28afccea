# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action `plan_document`, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_document
short_description: Put the whole plan of the pair into one document
version_added: 0.2.0
description:
  - Puts effective settings with their origins, every rank's contract, the memory plan, the needs of disks and times,
    and the licences that apply into one document, from what the role P(sparkpair.serving.settings#role) has registered.
  - Without recorded facts it also needs what P(sparkpair.serving.preflight#role) and
    P(sparkpair.serving.roce_link#role) have registered.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
options: {}
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  idempotent:
    support: full
    description: The same facts give the same document.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.resolve_settings
  - module: sparkpair.serving.rank_specs
"""

EXAMPLES = r"""
- name: Put the plan into one document
  sparkpair.serving.plan_document:
  register: plan
"""

RETURN = r"""
json_path:
  description: The absolute path on the controller that the setting C(sparkpair_plan_json) names, empty without one.
  returned: success
  type: str
  sample: /home/me/plan.json
document:
  description: The plan. Values of variables that look secret are replaced.
  returned: success
  type: dict
  contains:
    settings:
      description: The head's effective settings, by name without the prefix, as far as the engine understands them.
      type: dict
      sample: {context: 1048576, parallel: 4}
    origins:
      description: Where each of them came from, in words.
      type: dict
      sample: {context: "derived: cache fp8, drafter dflash2, dense q4", parallel: set at group_vars/sparks.yml:3}
    hosts:
      description: What the settings of another host have that is not as on the head.
      type: dict
      sample: {spark-worker: {fabric_address: 192.0.2.2}}
    licences:
      description: The licences that apply, each with C(component), C(licence) and what it C(asks) of the operator.
      type: list
      elements: dict
    link:
      description: What the ranks talk over; see M(sparkpair.serving.link_addresses).
      type: dict
    ranks:
      description:
        - Every rank's contract with its C(spec_hash). For a container C(name), C(host), C(rank), C(image),
          C(image_content), C(argv), C(env), C(mounts), C(devices), C(gpus), C(capabilities), C(ulimits), C(shm_size),
          C(network), C(ipc) and how it ends.
      type: list
      elements: dict
    memory:
      description:
        - The C(window) in tokens. For containers also whether it C(fits), the C(largest_window) that does, the
          C(pool_tokens) that all requests and kept prompts share, and estimates in GiB for every rank.
      type: dict
      sample: {window: 1048576, fits: true, largest_window: 1048576, pool_tokens: 2582528}
    disk:
      description: What each host needs free, and has, in GB. For containers only.
      type: dict
    time:
      description: The steps of a start with estimated minutes, and what the estimate assumes. For containers only.
      type: list
      elements: dict
"""
