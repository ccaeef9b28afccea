# SPDX-License-Identifier: Apache-2.0
"""A rank of the serving engine as a supervised plain process.

The work is in module_utils/_rank_process.py.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_process
short_description: Run one rank of a serving engine as a supervised process
version_added: 0.1.0
description:
  - Starts, replaces or stops one rank of a serving engine as a plain process of the connecting user.
  - A small supervisor runs the rank in a session of its own, so that the rank outlives the play and the
    login, appends its output to a log and records how it ended.
  - A rank that runs with the same document (O(spec)) is left alone. Another document stops it gracefully,
    saves its log and starts it anew. A rank that has ended is started again, its log saved first.
  - A process is signalled only when its id, its start time and the boot it belongs to are those that were
    written down when it was started. Reused process ids, copied state directories
    and reboots are recognised.
author:
  - The sparkpair maintainers (@sparkpair)
options:
  state:
    description:
      - With V(present), the rank runs with the document O(spec).
      - With V(absent), no rank runs and nothing but its saved logs is left of it.
    type: str
    choices: [present, absent]
    default: present
  name:
    description:
      - Name of the rank, used in messages and in the names of saved logs.
      - Letters, digits, C(.), C(_) and C(-), beginning with a letter or digit.
    type: str
    required: true
  directory:
    description:
      - State directory of this rank and of nothing else. Created when missing, readable by its owner only.
      - It must not be shared by two machines.
    type: path
    required: true
  spec:
    description:
      - The rank's document. Everything in it counts for the comparison with what runs, also keys that are not
        listed here.
      - C(argv) is the program and its arguments, a list of strings; no shell reads it. Required.
      - C(env) adds variables (strings) to the account's C(HOME), C(LANG), C(LC_ALL), C(LOGNAME), C(PATH),
        C(TMPDIR), C(TZ) and C(USER). Nothing else is inherited.
      - C(cwd) is the working directory, by default O(directory).
      - C(log) is the log's path, by default C(rank.log) in O(directory).
      - Required with O(state=present).
    type: dict
  secret_env:
    description:
      - Names of variables in C(spec.env) whose values are never shown in the difference. Values of eight
        characters or more are taken out of everything else too, so do not name what is no secret.
      - Variables whose names end in C(_TOKEN), C(_KEY), C(_SECRET) or C(_PASSWORD) are treated so in any
        case.
    type: list
    elements: str
    default: []
  log_dir:
    description:
      - Where logs of ended ranks are saved as C(<YYYYmmdd-HHMMSS>-<name>.log.gz), in UTC.
    type: path
    required: true
  log_keep:
    description:
      - How many saved logs of this rank are kept, the newest. With 0 none is saved.
    type: int
    default: 10
  stop_timeout:
    description:
      - Seconds a rank gets to end after SIGTERM before it is killed with everything it started.
    type: float
    default: 30
  start_timeout:
    description:
      - Seconds within which the supervisor must say that the program was started. Loading is not part of it,
        see M(sparkpair.serving.await_live).
    type: float
    default: 20
attributes:
  check_mode:
    description: Says what would change and changes nothing. A missing program is then only warned of.
    support: full
  diff_mode:
    description: Shows the document and the state before and after, without secret values.
    support: full
  idempotent:
    description: A rank that runs with the same document is not touched.
    support: full
  platform:
    description: Needs a Linux kernel for its process table in C(/proc).
    platforms: linux
    support: full
notes:
  - Where the login manager ends a user's processes at logout (C(KillUserProcesses=yes)), allow the account
    to keep them with C(loginctl enable-linger).
  - The log grows for as long as a rank runs; it is compressed when the rank is replaced.
seealso:
  - module: sparkpair.serving.rank_process_info
  - module: sparkpair.serving.await_live
"""

EXAMPLES = r"""
- name: Run rank 0
  sparkpair.serving.rank_process:
    name: rank0
    directory: ~/.local/state/sparkpair/head/ranks/rank0
    log_dir: ~/.local/state/sparkpair/head/logs
    spec:
      argv: [sparkpair, serve, /models/glm, --tp, "2", --rank, "0", --master, 127.0.0.1, --master-port, "29551"]
      env:
        OMP_NUM_THREADS: "1"

- name: Stop rank 0 and keep its log
  sparkpair.serving.rank_process:
    name: rank0
    directory: ~/.local/state/sparkpair/head/ranks/rank0
    log_dir: ~/.local/state/sparkpair/head/logs
    state: absent
"""

RETURN = r"""
running:
  description: Whether the rank runs now (in check mode whether it ran).
  type: bool
  returned: success
  sample: true
pid:
  description: Process id of the rank, null when it does not run.
  type: int
  returned: success
  sample: 4711
spec_hash:
  description: SHA-256 of the canonical JSON of O(spec), null with O(state=absent).
  type: str
  returned: success
  sample: 3f0a7d1f6f0c4b4f2a0fb4d9c2d6a0f9e8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3
exit_code:
  description:
    - Exit code of the rank that was found ended, or that was stopped by this task.
    - Null when there was none, when a signal ended it, or when its end could not be recorded.
  type: int
  returned: success
  sample: 0
exit_signal:
  description: Number of the signal that ended the former rank, else null.
  type: int
  returned: success
  sample: 9
previous:
  description: What was found before, in words.
  type: str
  returned: success
  sample: ended with exit code 7
log:
  description: Path of the rank's log.
  type: str
  returned: success
  sample: /home/me/.local/state/sparkpair/head/ranks/rank0/rank.log
saved_logs:
  description: Paths of the logs that this task saved.
  type: list
  elements: str
  returned: success
  sample: [/home/me/.local/state/sparkpair/head/logs/20261129-213000-rank0.log.gz]
last_lines:
  description: Last lines of the former rank's log, when it was found ended or was stopped.
  type: list
  elements: str
  returned: success
  sample: ["error: port 8888 is taken"]
"""

import contextlib
import os
import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _rank_process
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_log import last_lines
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import (
    RankError,
    RankState,
    explain,
    observe,
    path_of,
    refuse_unknown_processes,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash
from ansible_collections.sparkpair.serving.plugins.module_utils._spec_diff import (
    describe,
    last_spec,
    secret_names,
    secret_values,
)


def _ensure_present(module: AnsibleModule, directory: str, spec: dict[str, Any], result: dict[str, Any]) -> None:
    """Bring the rank to running with `spec`, filling `result`. Raises RankError and OSError."""
    state = observe(directory)
    wanted = spec_hash(spec)
    result.update(_shown(state), spec_hash=wanted, log=_rank_process.log_of(directory, spec))
    if state.running and state.spec_hash == wanted:
        return
    secret = secret_names(spec.get("env", {}), module.params["secret_env"])
    result["changed"] = True
    result["diff"] = describe(directory, state.in_words(), spec, secret)
    missing = _rank_process.missing_for(directory, spec)
    if missing and not module.check_mode:
        untouched = " The rank that runs was left alone." if state.running else ""
        raise RankError(" ".join(missing) + untouched)
    for sentence in missing:
        module.warn(f"{sentence} The rank could not be started as things are now.")
    if not state.running:
        refuse_unknown_processes(directory)
    if module.check_mode:
        return
    _end_and_save(module, directory, state, result)
    state = _rank_process.start(directory, module.params["name"], spec, wanted, module.params["start_timeout"])
    result.update(running=state.running, pid=state.rank.pid if state.rank and state.running else None)


def _ensure_absent(module: AnsibleModule, directory: str, result: dict[str, Any]) -> None:
    """Stop the rank and remove its files, filling `result`. Raises RankError and OSError."""
    state = observe(directory)
    found = [name for name in _rank_process.FILES if os.path.lexists(path_of(directory, name))]
    result.update(_shown(state), spec_hash=None, log=state.log or path_of(directory, "rank.log"))
    if not found and not state.exists:
        return
    secret = secret_names({}, module.params["secret_env"])
    result["changed"] = True
    result["diff"] = describe(directory, state.in_words(), None, secret)
    if module.check_mode:
        return
    _end_and_save(module, directory, state, result)
    _rank_process.forget(directory)
    result.update(running=False, pid=None)


def _end_and_save(module: AnsibleModule, directory: str, state: RankState, result: dict[str, Any]) -> None:
    """Stop a running rank, then put its log away; `result` tells how it ended. Raises RankError."""
    if state.running:
        state = _rank_process.stop(state, directory, module.params["stop_timeout"])
    log = state.log or path_of(directory, "rank.log")
    result.update(exit_code=state.exit_code, exit_signal=state.exit_signal)
    if not os.path.exists(log):
        return
    params = module.params
    try:
        result["last_lines"] = last_lines(log, state.log_offset, 25)
        log_dir, keep = params["log_dir"], params["log_keep"]
        result["saved_logs"] += _rank_process.put_log_away(directory, state, params["name"], log_dir, keep)
    except OSError as exc:
        # Evidence that could not be saved is no reason to leave the service down.
        trouble = explain(exc, f"save the log {log}", params["log_dir"])
        module.warn(f"{trouble} The log stays and is appended to.")


def _shown(state: RankState) -> dict[str, Any]:
    """Return the part of the result that the state before is."""
    return {
        "running": state.running,
        "pid": state.rank.pid if state.running and state.rank else None,
        "exit_code": state.exit_code,
        "exit_signal": state.exit_signal,
        "previous": state.in_words(),
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "name": {"type": "str", "required": True},
            "directory": {"type": "path", "required": True},
            "spec": {"type": "dict"},
            "secret_env": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "log_dir": {"type": "path", "required": True},
            "log_keep": {"type": "int", "default": 10},
            "stop_timeout": {"type": "float", "default": 30},
            "start_timeout": {"type": "float", "default": 20},
        },
        required_if=[("state", "present", ["spec"])],
        supports_check_mode=True,
    )
    params = module.params
    directory = os.path.abspath(params["directory"])
    result: dict[str, Any] = {"changed": False, "saved_logs": [], "last_lines": []}
    # Ansible takes these values out of whatever the module says: results, log lines and the invocation.
    for spec in (params["spec"], last_spec(directory)):
        module.no_log_values.update(secret_values(spec, params["secret_env"]))
    try:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", params["name"]):
            raise RankError(
                f"The option name is {params['name']!r}, but goes into file names: use letters, digits, "
                f"'.', '_' and "
                "'-' only, beginning with a letter or digit."
            )
        if params["state"] == "present":
            _rank_process.check_spec(params["spec"])
        with contextlib.ExitStack() as held:
            if not module.check_mode and (params["state"] == "present" or os.path.isdir(directory)):
                os.makedirs(directory, mode=0o700, exist_ok=True)
                held.enter_context(_rank_process.sole_worker(directory))
            if params["state"] == "present":
                _ensure_present(module, directory, params["spec"], result)
            else:
                _ensure_absent(module, directory, result)
    except RankError as exc:
        module.fail_json(msg=f"{params['name']}: {exc}", **{**result, "changed": False})
    except OSError as exc:
        trouble = explain(exc, "use the state directory", directory)
        module.fail_json(msg=f"{params['name']}: {trouble}", **{**result, "changed": False})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
