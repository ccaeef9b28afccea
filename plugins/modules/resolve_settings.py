# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action `resolve_settings`, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: resolve_settings
short_description: Check all settings of all hosts and derive the plan of the pair
version_added: 0.1.0
description:
  - Reads every C(sparkpair_*) variable of every host in the group C(sparks), by the declarations of the role
    P(sparkpair.serving.settings#role).
  - Refuses unknown names (naming the nearest known one), wrong types, values outside their range,
    combinations that cannot serve, and groups that make no world. All mistakes come in one message, each
    with its place.
  - The role registers the result as C(__settings_resolved), which the other roles of this collection read.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
options:
  whole_pair:
    description:
      - Whether a run that leaves out hosts of the pair is refused.
    type: bool
    default: true
  planning:
    description:
      - Whether this run plans only, so that an engine that cannot be run yet is accepted, recorded facts are read, and
        no host needs to be there.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Looks at variables only and changes nothing.
  idempotent:
    support: full
    description: The same variables give the same result.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.pair_probe
"""

EXAMPLES = r"""
- name: Check the settings before anything else
  sparkpair.serving.resolve_settings:

- name: Check them in a run that may look at one host only
  sparkpair.serving.resolve_settings:
    whole_pair: false
"""

RETURN = r"""
settings:
  description: This host's effective settings, by name without the prefix.
  returned: success
  type: dict
  sample: {port: 8888, host: 0.0.0.0}
origins:
  description: Where each of this host's settings came from, in words, by name without the prefix.
  returned: success
  type: dict
  sample: {port: default, parallel: "derived: dflash2 drafts on 2 Sparks", host: set at group_vars/sparks.yml:3}
given:
  description: What was set for this host, by full name, as it was written.
  returned: success
  type: dict
stop_command:
  description: The command line that stops this pair, with the inventories and the settings of this run's command line.
  returned: success
  type: str
  sample: .venv/bin/ansible-playbook -i inventories/rehearsal playbooks/teardown.yml
recorded:
  description: The recorded facts, when a run that plans was given some.
  returned: success
  type: dict
plan:
  description:
    - The plan of the pair, the same on every host. C(ranks) lists rank, host, name, address on the link and
      the address that Ansible uses, C(licences) component, licence and what each asks of the operator.
    - C(random_weights) says whether what is served knows nothing, so that its answers cannot be judged.
  returned: success
  type: dict
  sample: {engine: sparkpair, runtime: process, world_size: 2, one_machine: false, ranks: []}
mistakes:
  description: What has to be put right. The message says the same in words.
  returned: failure, for the first host of the run
  type: list
  elements: dict
  contains:
    subject:
      description: The setting, group or host.
      type: str
      sample: sparkpair_port
    problem:
      description: What was found and what is allowed.
      type: str
      sample: '"four" is not a whole number; allowed is a whole number from 0 to 65535'
    origin:
      description: Where it was set, empty when that is nowhere in particular.
      type: str
      sample: on the command line (-e)
    hosts:
      description: The hosts it concerns, none when it concerns the pair as such.
      type: list
      elements: str
      sample: [spark-head]
"""
