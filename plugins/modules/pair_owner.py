#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Who has the ranks of a host: a playbook, or the supervisor that systemd runs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pair_owner
short_description: Take a host's ranks from its supervisor, or give them back
version_added: 0.2.0
description:
  - The role P(sparkpair.serving.autostart#role) installs a supervisor that starts and stops the ranks by itself. A
    playbook that replaces them takes them first, so that only one of the two acts.
  - Taken ranks go back by themselves after O(seconds), or when the host is restarted, so that a playbook that was cut
    off leaves no pair that nobody looks after. The supervisor then keeps a pair that serves, and otherwise brings
    back the last start that ended well.
  - Does nothing on a host without a supervisor.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
options:
  state_dir:
    description: The state directory of the pair on this host.
    type: path
    required: true
  state:
    description:
      - V(taken) returns when the supervisor has let go of the ranks. It leaves them as they are until they go back.
      - V(stopped) is V(taken), and no rank is started again, not by a boot either, until somebody starts the unit or
        the ranks are V(returned).
      - V(returned) gives the ranks back. A stop by hand and failed starts are forgotten.
    type: str
    choices: [taken, stopped, returned]
    required: true
  by:
    description: Who takes the ranks, for people.
    type: str
    default: a playbook
  seconds:
    description: For how long they are taken.
    type: float
    default: 300
  wait:
    description: Seconds that the supervisor may take to finish what it is doing.
    type: float
    default: 300
attributes:
  check_mode:
    support: full
    description: Takes nothing and gives nothing back.
  idempotent:
    support: full
    description: >-
      Taking lasts for minutes and counts as no change. A stop counts when the ranks were not stopped before, giving
      back when a stop or failed starts are forgotten.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.autostart_program
"""

EXAMPLES = r"""
- name: Take the ranks while they are replaced
  sparkpair.serving.pair_owner:
    state_dir: ~/.local/state/sparkpair/spark-head
    state: taken
    by: site.yml
    seconds: 2400
"""

RETURN = r"""
installed:
  description: Whether there is a supervisor on this host.
  returned: success
  type: bool
  sample: true
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _autostart_files


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["taken", "stopped", "returned"], "required": True},
            "by": {"type": "str", "default": "a playbook"},
            "seconds": {"type": "float", "default": 300},
            "wait": {"type": "float", "default": 300},
        },
        supports_check_mode=True,
    )
    params = module.params
    state_dir = os.path.abspath(params["state_dir"])
    if not _autostart_files.installed(state_dir):
        module.exit_json(changed=False, installed=False)
    state = _autostart_files.read(state_dir, "state.json") or {}
    stopped = _autostart_files.stopped(state_dir)
    if params["state"] == "returned":
        changed = bool(stopped or state.get("gave_up"))
    else:
        changed = params["state"] == "stopped" and not stopped
    if module.check_mode:
        module.exit_json(changed=changed, installed=True)
    try:
        if params["state"] == "returned":
            names = ["stopped.json", "claim.json"]
            # What a supervisor that runs has written is its own.
            names += [] if _autostart_files.lives(state_dir) else ["state.json"]
            _autostart_files.clear(state_dir, *names)
        else:
            _autostart_files.claim(state_dir, params["by"], params["seconds"])
            if changed:
                _autostart_files.mark_stopped(state_dir, params["by"])
            _autostart_files.wait_until_let_go(state_dir, params["wait"])
    except _autostart_files.StillActing:
        module.fail_json(
            msg=f"The supervisor of the pair has been starting or stopping a rank for {params['wait']:g} s and does "
            f"not let go of it. What it does: {state.get('words', 'it does not say')}. See `journalctl -u "
            f"{(_autostart_files.told(state_dir) or {}).get('unit', '')}`."
        )
    except OSError as error:
        module.fail_json(msg=f"{error.filename or state_dir}: {error.strerror}.")
    module.exit_json(changed=changed, installed=True)


if __name__ == "__main__":
    main()
