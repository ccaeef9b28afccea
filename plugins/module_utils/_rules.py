# SPDX-License-Identifier: Apache-2.0
"""Rules between settings: combinations that could never serve, refused before a host is touched.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._mistakes import Given, Mistake
from ansible_collections.sparkpair.serving.plugins.module_utils._plan import is_loopback
from ansible_collections.sparkpair.serving.plugins.module_utils._settings import PREFIX

# Fewer tokens hold no chat turn: the template, a short question and a short answer.
SMALLEST_WINDOW = 256
# What mistakes about the number of hosts are about.
OF_THE_COUNT = (f"{PREFIX}tp", "inventory group workers")

GivenByHost = Mapping[str, Mapping[str, Given]]


def check(hosts: Sequence[str], settings: Mapping[str, Mapping[str, Any]], given: GivenByHost) -> list[Mistake]:
    """Return every broken rule. `hosts` is in rank order; `settings` are effective; `given` tells where a
    value came from.
    """
    common = settings[hosts[0]]
    return (
        _world_size(hosts, common, given)
        + _ports(hosts, common, given)
        + _window(hosts, common, given)
        + _extra_arguments(hosts, common, given)
        + _extra_environment(hosts, common, given)
        + _addresses(hosts, settings, given)
        + _state_directories(hosts, settings, given)
        + _link(hosts, settings, given)
        + _daemons(hosts, settings, given)
        + _engine(hosts, settings, given)
    )


def for_this_run(
    hosts: Sequence[str], common: Mapping[str, Any], given: GivenByHost, *, planning: bool
) -> list[Mistake]:
    """Return what the kind of run does not allow: the settings of a plan, anywhere else."""
    if planning:
        return []
    return [
        _mistake(hosts, given, name, "only playbooks/plan.yml reads it; leave it out here")
        for name in ("recorded_facts", "plan_json")
        if common[name]
    ]


def recorded(hosts: Sequence[str], given: GivenByHost, problems: Sequence[str]) -> list[Mistake]:
    """Return the problems of a file of recorded facts as mistakes of the setting that names it."""
    return [_mistake(hosts, given, "recorded_facts", problem) for problem in problems]


def notes(hosts: Sequence[str], common: Mapping[str, Any], given: GivenByHost) -> list[str]:
    """Return a sentence for every setting that was set and has no effect beside the others."""
    return ADAPTERS[common["engine"]].notes(common, _given_names(hosts, given))


def fabric_address(setting: str, connection_address: str) -> str:
    """Return the address of a host on the link: what was set, else its connection address when that is an
    IPv4 address.
    """
    if setting:
        return setting
    try:
        return str(ipaddress.IPv4Address(connection_address))
    except ValueError:
        return ""


def _mistake(hosts: Sequence[str], given: GivenByHost, short: str, problem: str, host: str = "") -> Mistake:
    """Return a mistake of the setting `short`, with the place where it was set for `host` or else for any
    host.
    """
    name = PREFIX + short
    candidates = [host] if host else list(hosts)
    origin = next((given[each][name].origin for each in candidates if name in given[each]), "")
    return Mistake(name, problem, origin, host)


def _given_names(hosts: Sequence[str], given: GivenByHost) -> list[str]:
    """Return the short names of everything that somebody set for any host, each once."""
    return list(dict.fromkeys(name[len(PREFIX) :] for host in hosts for name in given[host]))


def _engine(hosts: Sequence[str], settings: Mapping[str, Mapping[str, Any]], given: GivenByHost) -> list[Mistake]:
    """Return the broken rules of the engine itself."""
    common = settings[hosts[0]]
    adapter = ADAPTERS[common["engine"]]
    problems = [
        *adapter.check(common, _given_names(hosts, given), len(hosts)),
        *adapter.differing([settings[host] for host in hosts]),
    ]
    return [_mistake(hosts, given, name, problem) for name, problem in problems]


def _world_size(hosts: Sequence[str], common: Mapping[str, Any], given: GivenByHost) -> list[Mistake]:
    wanted = common["tp"]
    if wanted and wanted != len(hosts):
        missing = " (a worker is missing)" if wanted > len(hosts) else ""
        found = f"the inventory has {len(hosts)}: {', '.join(hosts)}{missing}"
        return [_mistake(hosts, given, "tp", f"{wanted} ranks are expected, and {found}")]
    if not wanted and len(hosts) == 1:
        remedy = "add the worker, or set sparkpair_tp to 1 if you mean it"
        problem = f"it has no host, so {hosts[0]} would serve alone; {remedy}"
        return [Mistake("inventory group workers", problem)]
    return []


def _ports(hosts: Sequence[str], common: Mapping[str, Any], given: GivenByHost) -> list[Mistake]:
    if common["port"] and common["port"] == common["master_port"]:
        problem = f"{common['port']} is sparkpair_port too; the API and the rendezvous need one each"
        return [_mistake(hosts, given, "master_port", problem)]
    own = range(common["autostart_port"], common["autostart_port"] + len(hosts) - 1)
    if common["autostart"] and (taken := {"port", "master_port"} & {n for n in common if common[n] in own}):
        problem = f"sparkpair_{min(taken)} is one of {own.start} to {own.stop - 1} too; the units need their own"
        return [_mistake(hosts, given, "autostart_port", problem)]
    return []


def _window(hosts: Sequence[str], common: Mapping[str, Any], given: GivenByHost) -> list[Mistake]:
    if 0 < common["context"] < SMALLEST_WINDOW:
        found = f"{common['context']} tokens hold no chat turn"
        problem = f"{found}; allowed is 0 (the largest that fits) or {SMALLEST_WINDOW} and more"
        return [_mistake(hosts, given, "context", problem)]
    return []


def _extra_arguments(hosts: Sequence[str], common: Mapping[str, Any], given: GivenByHost) -> list[Mistake]:
    mistakes = []
    owned = ADAPTERS[common["engine"]].OWNED_ARGUMENTS
    for argument in common["extra_args"]:
        flag = argument.split("=", 1)[0]
        if flag in owned:
            setting = owned[flag]
            instead = f"use {setting} instead" if setting else "the plan decides it for each rank"
            mistakes.append(_mistake(hosts, given, "extra_args", f"{flag} cannot be given here; {instead}"))
    return mistakes


def _extra_environment(hosts: Sequence[str], common: Mapping[str, Any], given: GivenByHost) -> list[Mistake]:
    owned = ADAPTERS[common["engine"]].OWNED_ENVIRONMENT
    return [
        _mistake(hosts, given, "extra_env", f"{name} cannot be given here; use {owned[name]} instead")
        for name in common["extra_env"]
        if name in owned
    ]


def _addresses(hosts: Sequence[str], settings: Mapping[str, Mapping[str, Any]], given: GivenByHost) -> list[Mistake]:
    mistakes = []
    addresses = {host: settings[host]["fabric_address"] for host in hosts}
    loopback = [host for host in hosts if is_loopback(addresses[host])]
    for host in hosts:
        # A look at the hosts finds the address behind a name, but the ways that do without one need it here.
        if not addresses[host] and settings[host]["link"] not in ("auto", "roce"):
            remedy = "set the address by which the other ranks reach it"
            problem = f"it is not set, and ansible_host is no IPv4 address; {remedy}"
            mistakes.append(_mistake(hosts, given, "fabric_address", problem, host))
        elif addresses[host] == "0.0.0.0":
            mistakes.append(_mistake(hosts, given, "fabric_address", "0.0.0.0 is no address that others reach", host))
    if loopback and len(loopback) < len(hosts):
        problem = "it is a loopback address, which the ranks on other machines cannot reach"
        mistakes += [_mistake(hosts, given, "fabric_address", problem, host) for host in loopback]
    for index, host in enumerate(hosts):
        twin = next((other for other in hosts[:index] if addresses[other] == addresses[host]), None)
        if twin and addresses[host] and host not in loopback:
            remedy = "two ranks need two machines, or loopback addresses"
            problem = f"{addresses[host]} is the address of {twin} too; {remedy}"
            mistakes.append(_mistake(hosts, given, "fabric_address", problem, host))
    return mistakes


def _link(hosts: Sequence[str], settings: Mapping[str, Mapping[str, Any]], given: GivenByHost) -> list[Mistake]:
    common = settings[hosts[0]]
    if common["link"] == "loopback" and not all(is_loopback(settings[host]["fabric_address"]) for host in hosts):
        problem = "loopback needs all ranks on one machine, with loopback addresses in sparkpair_fabric_address"
        return [_mistake(hosts, given, "link", problem)]
    if common["link"] == "roce" and not ADAPTERS[common["engine"]].uses_rdma(common):
        remedy = "set that, or auto or tcp here"
        problem = f"the engine {common['engine']} talks by RDMA only with sparkpair_comm roce; {remedy}"
        return [_mistake(hosts, given, "link", problem)]
    return []


def _daemons(hosts: Sequence[str], settings: Mapping[str, Mapping[str, Any]], given: GivenByHost) -> list[Mistake]:
    """Return a mistake where two ranks in containers of one name would be on one daemon."""
    if settings[hosts[0]]["runtime"] != "container":
        return []
    mistakes = []
    shared = [host for host in hosts if is_loopback(settings[host]["fabric_address"])]
    for index, host in enumerate(shared):
        daemon = settings[host]["docker_host"]
        twin = next((other for other in shared[:index] if settings[other]["docker_host"] == daemon), None)
        if twin:
            problem = f"{daemon} is the daemon of {twin} too, on the same machine; each rank needs a daemon of its own"
            mistakes.append(_mistake(hosts, given, "docker_host", problem, host))
    return mistakes


def _state_directories(
    hosts: Sequence[str], settings: Mapping[str, Mapping[str, Any]], given: GivenByHost
) -> list[Mistake]:
    mistakes = []
    shared = [host for host in hosts if is_loopback(settings[host]["fabric_address"])]
    for index, host in enumerate(shared):
        path = settings[host]["state_dir"]
        twin = next((other for other in shared[:index] if settings[other]["state_dir"] == path), None)
        if twin:
            problem = f"{path} is the state directory of {twin} too, on the same machine; give each its own"
            mistakes.append(_mistake(hosts, given, "state_dir", problem, host))
    return mistakes
