# SPDX-License-Identifier: Apache-2.0
"""What speaks against starting a pair, judged from the plan and every host's probe.

Pure. All findings of all hosts at once, as data with a rendering for people; an error stops the run before
anything is stopped or changed, a warning never does. Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _plan, _updates
from ansible_collections.sparkpair.serving.plugins.module_utils._sockets import in_the_way

ERROR = "error"
WARNING = "warning"

# The kind of finding that a failed start tells first.
UPDATED = "updated"

# The modules' own floor, which ansible-core's may exceed.
OLDEST_PYTHON = (3, 9)
# The miniature beside its unfinished copy, the ranks' logs and some air.
MINIATURE_NEED_BYTES = 96 << 20

# How an open API is closed, as far as the engine can ask for keys.
_KEYS = {
    "sparkpair": "name a file of keys in sparkpair_api_key_file, or",
    "tensorfold": "this engine knows no keys: put a proxy that does in front of it, or",
}

ByHost = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Finding:
    """One thing that speaks against a start: where, what was `found`, what is `wanted`, and the `remedy`."""

    id: str
    severity: str
    host: str
    found: str
    wanted: str
    remedy: str

    def as_data(self) -> dict[str, str]:
        """Return the finding as plain data."""
        return asdict(self)


def judge(plan: Mapping[str, Any], settings: ByHost, probes: ByHost, ports: _plan.Ports) -> list[Finding]:
    """Return every finding: host by host in rank order, then those about the pair."""
    findings: list[Finding] = []
    for entry in plan["ranks"]:
        host = entry["host"]
        options, probe = settings[host], probes[host]
        findings += _python(host, probe)
        findings += _state_directory(host, options, probe)
        findings += _disk(host, options, probe)
        findings += _engine(host, options, probe)
        findings += _model(host, options, probe)
        findings += _address(host, entry, probe)
        findings += _ranks(host, probe)
        findings += _memory(host, entry, options, probe)
        findings += _since_last_start(host, probe)
        findings += _systemd(host, options, probe)
        if entry["rank"] == 0:
            findings += _ports_taken(host, options, probe, entry["address"], ports)
            findings += _image(host, options, probe)
            findings += _key_file(host, options, probe)
    return findings + _one_machine(plan, probes) + _parity(plan, probes)


def render(findings: Sequence[Finding]) -> str:
    """Return errors as one text for the terminal, a numbered paragraph each."""
    count = "One thing keeps" if len(findings) == 1 else f"{len(findings)} things keep"
    lines = [f"{count} the pair from starting; nothing has been stopped or changed."]
    lines += [f"{number}. {sentence(finding)}" for number, finding in enumerate(findings, start=1)]
    return "\n".join(lines)


def sentence(finding: Finding) -> str:
    """Return one finding as a paragraph that begins with its host."""
    return f"{finding.host}: {finding.found.rstrip('.?')}. Wanted: {finding.wanted}. Remedy: {finding.remedy}."


def _python(host: str, probe: Mapping[str, Any]) -> list[Finding]:
    version = tuple(int(part) for part in probe["python"].split(".")[:2])
    if version >= OLDEST_PYTHON:
        return []
    return [
        Finding(
            id="python",
            severity=ERROR,
            host=host,
            found=f"the modules run under Python {probe['python']}",
            wanted=f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer",
            remedy="install one and name it in ansible_python_interpreter",
        )
    ]


def _state_directory(host: str, options: Mapping[str, Any], probe: Mapping[str, Any]) -> list[Finding]:
    seen = probe["directory"]
    path = probe["state_dir"]
    if seen["writable"]:
        return []
    if not seen["nearest_is_directory"]:
        found = f"the state directory {path} cannot be created, because {seen['nearest']} is no directory"
    elif seen["read_only"]:
        found = f"the state directory {path} is on a file system that is mounted read-only"
    elif seen["exists"]:
        found = f"user {probe['user']} may not write to the state directory {path}"
    else:
        found = f"user {probe['user']} may not create {path}, because {seen['nearest']} is not writable"
    return [
        Finding(
            id="state_directory",
            severity=ERROR,
            host=host,
            found=found,
            wanted=f"a directory that {probe['user']} may write to",
            remedy=f"give {seen['nearest']} to that user, or set sparkpair_state_dir to another directory",
        )
    ]


def _disk(host: str, options: Mapping[str, Any], probe: Mapping[str, Any]) -> list[Finding]:
    if options["model"] or probe["checkpoint"]["state"] == "complete" or not probe["directory"]["writable"]:
        return []
    free = probe["directory"]["free_bytes"]
    if free >= MINIATURE_NEED_BYTES:
        return []
    return [
        Finding(
            id="disk",
            severity=ERROR,
            host=host,
            found=f"{_mib(free)} are free on the disk of {probe['directory']['nearest']}",
            wanted=f"{_mib(MINIATURE_NEED_BYTES)} for the miniature checkpoint",
            remedy="free some space, or set sparkpair_state_dir to a directory on another disk",
        )
    ]


def _engine(host: str, options: Mapping[str, Any], probe: Mapping[str, Any]) -> list[Finding]:
    error = probe["engine"]["error"]
    if not error:
        return []
    return [
        Finding(
            id="engine",
            severity=ERROR,
            host=host,
            found=f"the engine's command {' '.join(options['engine_command'])} does not work ({error})",
            wanted="a command that runs the engine on this host",
            remedy="install the engine there, or set sparkpair_engine_command to where it is",
        )
    ]


def _image(host: str, options: Mapping[str, Any], probe: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with an image that nobody here makes."""
    seen = probe.get("container")
    if options["engine"] == "tensorfold" or not seen or seen["error"] or seen["image"]["exists"]:
        return []
    return [
        Finding(
            id="image",
            severity=ERROR,
            host=host,
            found=f"there is no image {options['image']} in Docker at {seen['docker_host']}",
            wanted="an image on the head that has the engine's program; the workers get it from there",
            remedy="build or load it there, or name another one in sparkpair_image",
        )
    ]


def _model(host: str, options: Mapping[str, Any], probe: Mapping[str, Any]) -> list[Finding]:
    seen = probe["checkpoint"]
    if not options["model"] or seen["state"] == "complete":
        return []
    found = f"the checkpoint directory {seen['path']} does not exist"
    if seen["state"] == "damaged":
        found = f"the checkpoint in {seen['path']} is not complete: {'; '.join(seen['problems'])}"
    return [
        Finding(
            id="checkpoint",
            severity=ERROR,
            host=host,
            found=found,
            wanted="configuration, index and every shard, each as long as its header says",
            remedy="copy the missing files again, or set sparkpair_model to a complete checkpoint",
        )
    ]


def _address(host: str, entry: Mapping[str, Any], probe: Mapping[str, Any]) -> list[Finding]:
    findings = []
    if not probe["address_is_local"]:
        findings.append(
            Finding(
                id="address",
                severity=ERROR,
                host=host,
                found=f"{entry['address']} is no address of this host",
                wanted="the address by which the other ranks reach it",
                remedy="set sparkpair_fabric_address of this host",
            )
        )
    loopback = [address for address in probe["own_addresses"] if _plan.is_loopback(address)]
    if loopback and not _plan.is_loopback(entry["address"]):
        findings.append(
            Finding(
                id="own_name",
                severity=WARNING,
                host=host,
                found=f"the hosts file maps the own name {probe['hostname']} to {loopback[0]}",
                wanted="a name that leads to an address others reach",
                remedy=f"nothing for this engine, whose ranks use {entry['address']} and no names",
            )
        )
    return findings


def _ranks(host: str, probe: Mapping[str, Any]) -> list[Finding]:
    return [
        Finding(
            id="rank_state",
            severity=ERROR,
            host=host,
            found=f"the state of rank {rank['rank']} is unclear: {rank['words'].rstrip('.')}",
            wanted="a rank that can be told running or ended",
            remedy="follow the message, then run again",
        )
        for rank in probe["ranks"]
        if rank["state"] == "unclear"
    ]


def _memory(host: str, entry: Mapping[str, Any], options: Mapping[str, Any], probe: Mapping[str, Any]) -> list[Finding]:
    running = any(rank["rank"] == entry["rank"] and rank["state"] == "running" for rank in probe["ranks"])
    available = probe["memory"]["available_bytes"]
    reserve = options["memory_reserve_gib"] * (1 << 30)
    if running or available > reserve:
        return []
    return [
        Finding(
            id="memory",
            severity=ERROR,
            host=host,
            found=f"{_gib(available)} of memory are available",
            wanted=f"more than the {_gib(reserve)} that sparkpair_memory_reserve_gib leaves alone",
            remedy="end what else uses memory there, or lower sparkpair_memory_reserve_gib",
        )
    ]


def _since_last_start(host: str, probe: Mapping[str, Any]) -> list[Finding]:
    """Return what an update has changed since the last start that ended well, where a start lies ahead."""
    updates = probe["updates"]
    if not updates or any(rank["state"] == "running" for rank in probe["ranks"]):
        return []
    return [
        Finding(
            id=UPDATED,
            severity=WARNING,
            host=host,
            found=_updates.told(probe["last_start"]["at"], updates),
            wanted="nothing; look here first if this start fails",
            remedy=f"if it does, {_updates.remedy(updates)}",
        )
    ]


def _systemd(host: str, options: Mapping[str, Any], probe: Mapping[str, Any]) -> list[Finding]:
    if not options["autostart"] or probe["autostart"]["systemd"]:
        return []
    return [
        Finding(
            id="systemd",
            severity=ERROR,
            host=host,
            found="systemd does not run here",
            wanted="a host whose systemd starts the pair after a boot, for sparkpair_autostart",
            remedy="set sparkpair_autostart to false",
        )
    ]


def _ports_taken(
    host: str, options: Mapping[str, Any], probe: Mapping[str, Any], address: str, ports: _plan.Ports
) -> list[Finding]:
    findings = []
    for setting, bind, port, use in (
        ("sparkpair_port", options["host"], ports.port, "the API"),
        ("sparkpair_master_port", address, ports.master_port, "the rendezvous of the ranks"),
    ):
        other = in_the_way(probe["listening"], bind, port)
        if other:
            owner = "a process of another user"
            if other["pid"]:
                owner = f"process {other['pid']} ({other['command']})"
            findings.append(
                Finding(
                    id="port",
                    severity=ERROR,
                    host=host,
                    found=f"port {port} is taken: {owner} listens on {other['address']}",
                    wanted=f"port {port} free for {use}",
                    remedy=f"end that process, or set {setting} to a free port",
                )
            )
    return findings


def _key_file(host: str, options: Mapping[str, Any], probe: Mapping[str, Any]) -> list[Finding]:
    problem = probe["api_key_file"]["problem"]
    if problem:
        return [
            Finding(
                id="key_file",
                severity=ERROR,
                host=host,
                found=problem,
                wanted=f"a file of keys that only {probe['user']} may read",
                remedy="put it there with mode 0600, or name another one in sparkpair_api_key_file",
            )
        ]
    if options["api_key_file"] or _plan.is_loopback(options["host"]):
        return []
    return [
        Finding(
            id="open_api",
            severity=WARNING,
            host=host,
            found=f"the API listens on {options['host']} and needs no key",
            wanted="an API that only those use who are meant to",
            remedy=f"{_KEYS[options['engine']]} set sparkpair_host to a private address",
        )
    ]


def _one_machine(plan: Mapping[str, Any], probes: ByHost) -> list[Finding]:
    """Return the hosts that are another one under a second name or address; ranks on loopback are meant to be."""
    first: dict[str, str] = {}
    hosts = [] if plan["one_machine"] else [entry["host"] for entry in plan["ranks"]]
    return [
        Finding(
            id="one_machine",
            severity=ERROR,
            host=host,
            found=f"this is the machine that {twin} is, too ({probes[host]['hostname']})",
            wanted="a machine of its own for every rank",
            remedy=f"correct ansible_host of {host} or of {twin}; ranks that are meant to share a machine need "
            "loopback addresses in sparkpair_fabric_address",
        )
        for host in hosts
        if (twin := first.setdefault(probes[host]["system"], host)) != host
    ]


def _parity(plan: Mapping[str, Any], probes: ByHost) -> list[Finding]:
    """Return what differs between hosts and must not: ranks of different code or weights refuse each other."""
    hosts = [entry["host"] for entry in plan["ranks"]]
    findings = []
    for name, title, remedy in (
        ("engine", "the engine's code", "install the same engine on both"),
        ("checkpoint", "the checkpoint", "copy the checkpoint of one to the other"),
    ):
        if name == "engine" and plan["runtime"] == "container":
            # Whatever image the workers have, they get the head's.
            continue
        key = "code_digest" if name == "engine" else "digest"
        known = [(host, probes[host][name][key]) for host in hosts if probes[host][name][key]]
        for host, digest in known[1:]:
            if digest != known[0][1]:
                findings.append(
                    Finding(
                        id=f"{name}_parity",
                        severity=ERROR,
                        host=host,
                        found=f"{title} is {digest[:12]} here and {known[0][1][:12]} on {known[0][0]}",
                        wanted="the same on every host",
                        remedy=remedy,
                    )
                )
    return findings


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _mib(size: float) -> str:
    return f"{size / (1 << 20):.0f} MiB"
