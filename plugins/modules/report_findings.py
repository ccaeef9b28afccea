# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action `report_findings`, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report_findings
short_description: Say everything that keeps the pair from starting, on all hosts
version_added: 0.1.0
description:
  - Judges what M(sparkpair.serving.pair_probe) found on every host of the pair together with the settings and
    the plan, both as the roles P(sparkpair.serving.settings#role) and P(sparkpair.serving.preflight#role)
    registered them.
  - Fails with every error of every host at once, each with what was found, what is wanted and the remedy.
    Warnings are printed and stop nothing.
  - Returns the ports on the head, which it chooses where a setting leaves them open.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
options:
  only:
    description:
      - The kinds of findings to judge by, for a playbook that does less than starting the pair. Empty judges by all of
        them.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Judges what is known and changes nothing.
  idempotent:
    support: full
    description: The same facts give the same findings.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.pair_probe
  - module: sparkpair.serving.resolve_settings
"""

EXAMPLES = r"""
- name: Stop here when something would keep the pair from starting
  sparkpair.serving.report_findings:
"""

RETURN = r"""
ports:
  description: C(port) and C(master_port) on the head, and whether they are C(to_remember) for the next run.
  returned: success
  type: dict
  sample: {port: 8888, master_port: 29551, to_remember: false}
image:
  description: >-
    For ranks in containers what the role P(sparkpair.serving.engine_image#role) is to do, with C(settled), whether
    there is nothing to do; else null.
  returned: success
  type: dict
weights:
  description: >-
    C(settled), whether every host has all the weights that it serves, verified and the same, and C(release), the hosts
    whose memory cached files fill.
  returned: success
  type: dict
findings:
  description: What speaks against a start, on all hosts.
  returned: always, except for hosts that only point to the first host's message
  type: list
  elements: dict
  contains:
    id:
      description: The kind of finding.
      type: str
      sample: port
    severity:
      description: V(error) stops the run, V(warning) does not.
      type: str
      sample: error
    host:
      description: The host it concerns.
      type: str
      sample: spark-head
    found:
      description: What was found.
      type: str
      sample: "port 8888 is taken: process 4711 (python3 -m http.server 8888) listens on 0.0.0.0"
    wanted:
      description: What would be right.
      type: str
      sample: port 8888 free for the API
    remedy:
      description: What to do.
      type: str
      sample: end that process, or set sparkpair_port to a free port
"""
