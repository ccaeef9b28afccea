# SPDX-License-Identifier: Apache-2.0
"""Checks every setting of every host at once and returns the effective settings and the plan.

Runs on the controller and looks at variables only, so it works before any host can be reached, and in check
mode. The documentation is in `plugins/modules/resolve_settings.py`; the logic is in the pure functions of
`plugins/module_utils/_settings.py`, `_rules.py` and `_plan.py`. This file finds the values and where they
were set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import yaml
from ansible import context
from ansible.errors import AnsibleError
from ansible.parsing.splitter import split_args
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _again,
    _effective,
    _image_build,
    _image_wanted,
    _licences,
    _plan,
    _recorded,
    _rules,
    _settings,
    _types,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._mistakes import (
    Given,
    Mistake,
    merge_hosts,
    render,
)
from ansible_collections.sparkpair.serving.plugins.plugin_utils import _terminal

try:  # Where a value was written down; private in ansible-core 2.19, absent before it.
    from ansible._internal._datatag._tags import Origin
except ImportError:
    Origin = None

META = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "roles", "settings", "meta")


class ActionModule(ActionBase):
    """The action `sparkpair.serving.resolve_settings`."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return this host's settings and the plan, or the failure with every mistake of every host."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        # The names of the extra vars, each with where it was set.
        self._extra_names = {name: name for name in load_extra_vars(self._loader)}
        _, arguments = self.validate_argument_spec(
            {"whole_pair": {"type": "bool", "default": True}, "planning": {"type": "bool", "default": False}}
        )
        own = variables["inventory_hostname"]
        declared = _settings.declarations(_read("argument_specs.yml"), _read("limits.yml"))

        hosts, mistakes = _plan.world(variables["groups"])
        wrong_groups = bool(mistakes)
        if own not in hosts:
            mistakes.append(Mistake(f"host {own}", "it is in neither the group head nor the group workers"))
        if arguments["whole_pair"]:
            mistakes += _plan.absent_from_run(hosts, variables["ansible_play_hosts_all"])
        given = {host: _settings.answered(declared, self._given(host, variables)) for host in hosts}
        settings, wrong = _settings.resolve(declared, given)
        mistakes += wrong
        connections = {host: str(variables["hostvars"][host].get("ansible_host", host)) for host in hosts}
        completed, reasons = _effective.complete(settings, connections)
        recorded = None
        if hosts:
            common = completed[hosts[0]]
            found = _new(_rules.check(hosts, completed, given), mistakes)
            # How many hosts there are is known when the groups are put right.
            mistakes += [one for one in found if not wrong_groups or one.subject not in _rules.OF_THE_COUNT]
            mistakes += _settings.of_another_engine(declared, given, common["engine"])
            mistakes += _rules.for_this_run(hosts, common, given, planning=arguments["planning"])
            if arguments["planning"] and common["recorded_facts"]:
                recorded, problems = _recorded_facts(common["recorded_facts"], hosts)
                mistakes += _rules.recorded(hosts, given, problems)
            image, problem = _image(common)
            mistakes += [Mistake("patches of this collection", problem)] if problem else []
        if mistakes:
            return {"failed": True, **_failure(mistakes, own, variables["ansible_play_hosts_all"][0])}
        users = {host: str(variables["hostvars"][host].get("ansible_user") or "") for host in hosts}
        plan = _plan.build(hosts, completed, connections, users)
        plan["image"] = image
        plan["snapshots"] = ADAPTERS[common["engine"]].snapshots(common)
        plan["random_weights"] = ADAPTERS[common["engine"]].random_weights(common)
        plan["licences"] = [licence.as_data() for licence in _licences.apply_to(common)]
        result = {
            "changed": False,
            "settings": completed[own],
            "given": {name: one.value for name, one in given[own].items()},
            "origins": _effective.origins(declared.values(), given[own], completed[own], reasons[own]),
            "plan": plan,
            "recorded": recorded,
            "stop_command": _stop_command(variables),
        }
        notes = _rules.notes(hosts, common, given) if own == variables["ansible_play_hosts_all"][0] else []
        return {**result, **({"warnings": notes} if notes else {})}

    def _given(self, host: str, variables: Mapping[str, Any]) -> dict[str, Given]:
        """Return what was set for `host`, by full name: its own variables, then those of the play and the
        task.
        """
        recorded = variables["hostvars"][host].get("__settings_recorded")
        if recorded:
            # Going back to an earlier start: what was set then counts, and nothing else.
            origin = f"at the start of {recorded['at']} UTC"
            return {name: Given(_types.plain(value), origin) for name, value in recorded["settings"].items()}
        raw = variables["hostvars"].raw_get(host)
        own_raw = variables["hostvars"].raw_get(variables["inventory_hostname"])
        result = {
            name: self._one(name, value, host, variables["hostvars"][host])
            for name, value in raw.items()
            if name.startswith(_settings.PREFIX)
        }
        for name, value in variables.items():
            # Variables of a play, a block or a task belong to no host and are not among the host variables.
            if name.startswith(_settings.PREFIX) and (name not in own_raw or own_raw[name] is not value):
                result[name] = self._one(name, value, host, None)
        return result

    def _one(self, name: str, raw: Any, host: str, host_variables: Mapping[str, Any] | None) -> Given:
        """Return one value, rendered for `host`, with where it was set."""
        # True and null cannot carry where they were set; their name can, and here it may be another place's.
        origin = _origin(self._extra_names.get(name, name), raw)
        origin = origin or f"in the extra vars or in the inventory of host {host}"
        try:
            value = self._templar.template(raw) if host_variables is None else host_variables[name]
            return Given(_types.plain(value), origin)
        except AnsibleError as error:
            return Given(None, origin, str(error))


def _stop_command(variables: Mapping[str, Any]) -> str:
    """Return the command line that stops this pair, in the words of this run."""
    return _again.command(
        os.path.join(os.path.dirname(sys.executable), "ansible-playbook"),
        variables.get("ansible_inventory_sources") or [],
        context.CLIARGS.get("extra_vars") or [],
        os.path.join(str(variables["playbook_dir"]), "teardown.yml"),
        os.getcwd(),
        split_args,
    )


def _failure(mistakes: list[Mistake], host: str, first: str) -> dict[str, Any]:
    """Return the whole story for the first host of the run, and for the others where to read it."""
    if host != first:
        return {"msg": f"The settings or the inventory must be put right; host {first} lists what."}
    data = [
        {"subject": each.subject, "problem": each.problem, "origin": each.origin, "hosts": hosts}
        for each, hosts in merge_hosts(mistakes)
    ]
    return {"msg": render(mistakes), **_terminal.beside({"mistakes": data})}


def _image(common: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the image that the settings ask for, or what is wrong with the series of its patches."""
    try:
        return _image_wanted.wanted(common), ""
    except _image_build.BuildError as error:
        return {}, str(error)
    except OSError as error:
        return {}, f"{error.filename} cannot be read: {error.strerror}"


def _recorded_facts(path: str, hosts: list[str]) -> tuple[Any, list[str]]:
    """Return the recorded facts of a file and everything that is wrong with them, each with its place in the file."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            data = yaml.safe_load(file)
    except OSError as error:
        return None, [f"{path} cannot be read: {error.strerror}"]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return None, [f"{path} is neither YAML nor JSON: {' '.join(str(error).split())}"]
    return data, [f"{path}: {problem}" for problem in _recorded.check(data, hosts)]


def _read(name: str) -> Any:
    with open(os.path.join(META, name), encoding="utf-8") as file:
        return yaml.safe_load(file)


def _new(found: list[Mistake], known: list[Mistake]) -> list[Mistake]:
    """Return what was found about other subjects than the known mistakes, whose values stand in for wrong
    ones.
    """
    subjects = {mistake.subject for mistake in known}
    return [mistake for mistake in found if mistake.subject not in subjects]


def _origin(name: str, value: Any) -> str:
    """Return where a variable was set in words, empty when ansible-core does not say."""
    if Origin is None:
        return ""
    # The name carries an origin even where the value cannot (true and null are what they are).
    tag = Origin.get_tag(value) or Origin.get_tag(name)
    if tag is None:
        return ""
    if tag.path:
        path = os.path.relpath(tag.path) if tag.path.startswith(os.getcwd() + os.sep) else tag.path
        return f"at {path}:{tag.line_num}" if tag.line_num else f"at {path}"
    return "on the command line (-e)" if tag.description == "<CLI option '-e'>" else f"at {tag.description}"
