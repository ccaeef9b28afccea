#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The program that supervises a pair by itself, put into the state directory of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: autostart_program
short_description: Put the supervisor of the pair on a host
version_added: 0.2.0
description:
  - Writes the program that brings the pair up after a boot into the directory C(autostart) of the state directory,
    with its configuration and the secret by which the hosts of the pair know each other. Python's standard library is
    all it needs.
  - Starts nothing. The role P(sparkpair.serving.autostart#role) has systemd run it.
options:
  state_dir:
    description: The state directory of the pair on this host.
    type: path
    required: true
  state:
    description:
      - V(present) writes what is missing or different. V(absent) removes all of it and nothing else; ranks that run
        go on.
    type: str
    choices: [present, absent]
    default: present
  config:
    description: What the program needs to know, see C(config.json). Required with O(state=present).
    type: dict
  secret:
    description: The pair's secret. Empty keeps the one that is there, or makes one.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says what it would write.
  diff_mode:
    support: full
    description: Shows the configuration before and after, and which files of the program change; never the secret.
  idempotent:
    support: full
    description: What is right already is not written again.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.pair_owner
"""

EXAMPLES = r"""
- name: Put the supervisor into place
  sparkpair.serving.autostart_program:
    state_dir: ~/.local/state/sparkpair/spark-head
    config: {role: head, host: spark-head, workers: []}
"""

RETURN = r"""
program:
  description: The program's directory, which Python runs.
  returned: success
  type: str
  sample: /home/spark/.local/state/sparkpair/spark-head/autostart/program
python:
  description: The Python to run it with.
  returned: success
  type: str
  sample: /usr/bin/python3
secret_file:
  description: The file with the pair's secret.
  returned: success
  type: str
  sample: /home/spark/.local/state/sparkpair/spark-head/autostart/secret
"""

import inspect
import json
import os
import secrets
import shutil
import sys
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _autostart_files, _autostart_main
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import write_atomically

_PACKAGE = "ansible_collections.sparkpair.serving.plugins.module_utils"
_ENTRY = f"""# Runs the supervisor of a pair. Written by sparkpair.serving.
import sys

from {_PACKAGE}._autostart_main import main

sys.exit(main(sys.argv[1:]))
"""


def program() -> dict[str, str]:
    """Return the program's files, path and text: exactly the modules that it imports, in packages of their own."""
    files = {"__main__.py": _ENTRY}
    parts = _PACKAGE.split(".")
    for depth in range(1, len(parts) + 1):
        files[os.path.join(*parts[:depth], "__init__.py")] = ""
    waiting = [_autostart_main]
    while waiting:
        module = waiting.pop()
        path = os.path.join(*module.__name__.split(".")) + ".py"
        if path in files:
            continue
        files[path] = inspect.getsource(module)
        named = {getattr(value, "__module__", None) for value in vars(module).values()}
        named |= {value.__name__ for value in vars(module).values() if inspect.ismodule(value)}
        waiting += [sys.modules[name] for name in sorted(filter(None, named)) if name.startswith(f"{_PACKAGE}.")]
    return files


def written(directory: str) -> dict[str, str]:
    """Return the files of a program that is there, path and text."""
    found = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(parent, name)
                with open(path, encoding="utf-8") as file:
                    found[os.path.relpath(path, directory)] = file.read()
    return found


def present(module: AnsibleModule, state_dir: str) -> dict[str, Any]:
    """Write what is missing or different. Raises OSError."""
    place = _autostart_files.place(state_dir)
    directory, secret_file = os.path.join(place, "program"), os.path.join(place, "secret")
    wanted, there = program(), written(directory)
    config = {**module.params["config"], "state_dir": state_dir}
    before = _autostart_files.read(state_dir, "config.json")
    secret = _read(secret_file)
    new_secret = module.params["secret"] or secret or secrets.token_hex(32)
    differing = sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))
    changed = bool(differing) or config != before or secret != new_secret
    result = {
        "changed": changed,
        "program": directory,
        "python": sys.executable,
        "secret_file": secret_file,
        "diff": {
            "before": _shown(before) + "".join(f"{name}\n" for name in differing if name in there),
            "after": _shown(config) + "".join(f"{name} (new)\n" for name in differing if name in wanted),
        },
    }
    if not changed or module.check_mode:
        return result
    os.makedirs(place, mode=0o700, exist_ok=True)
    for name in differing:
        path = os.path.join(directory, name)
        if name in wanted:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            write_atomically(path, wanted[name])
        else:
            os.unlink(path)
    if secret != new_secret:
        write_atomically(secret_file, f"{new_secret}\n")
    # Last: it is what says that a supervisor is installed.
    _autostart_files.write(state_dir, "config.json", config)
    return result


def absent(module: AnsibleModule, state_dir: str) -> dict[str, Any]:
    """Remove everything that belongs to the supervisor. Raises OSError."""
    place = _autostart_files.place(state_dir)
    there = os.path.isdir(place)
    diff = {"before": f"{place}\n" if there else "", "after": ""}
    if there and not module.check_mode:
        shutil.rmtree(place)
    return {"changed": there, "program": "", "python": sys.executable, "secret_file": "", "diff": diff}


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def _shown(config: dict[str, Any] | None) -> str:
    return "" if config is None else json.dumps(config, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "config": {"type": "dict"},
            "secret": {"type": "str", "default": "", "no_log": True},
        },
        required_if=[("state", "present", ["config"])],
        supports_check_mode=True,
    )
    state_dir = os.path.abspath(module.params["state_dir"])
    act = present if module.params["state"] == "present" else absent
    try:
        module.exit_json(**act(module, state_dir))
    except OSError as error:
        module.fail_json(msg=f"The supervisor could not be put into place: {error.filename}: {error.strerror}.")


if __name__ == "__main__":
    main()
