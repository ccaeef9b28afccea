# SPDX-License-Identifier: Apache-2.0
"""Virtual Sparks that run: starting and ending them, waiting for what they tell, ssh, and what can be done to them.

    with running(2) as machines:
        machines["spark-head"].run("ibv_devinfo")

The machines are the same for everybody on this checkout: `attach()` finds those that run already.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.pair import disk, layout, qemu
from tests.pair.paths import ROOT, SSH_CONFIG
from tests.pair.state import State

# An emulated machine on a busy host needs minutes for what a real one does in seconds.
BOOT_LIMIT_S = 600
_LOOK_S = 0.2


class MachineError(Exception):
    """A machine did not do what it was asked. The text has its last words."""


class Machine:
    """One machine that runs."""

    def __init__(self, state: State, name: str) -> None:
        self.name = name
        self.home = Path(state.home)
        self.running = state.machines[name]
        self.api = f"http://127.0.0.1:{self.running.api_port}"

    def tell(self, execute: str, **arguments: Any) -> Any:
        """Have QEMU's monitor execute a command."""
        return qemu.tell(qemu.monitor(self.home, self.name), execute, **arguments)

    def said(self) -> str:
        """Return everything the machine has said on its console."""
        return qemu.console(self.home, self.name).read_text(errors="replace")

    def starts(self) -> int:
        """Return how often it has come up."""
        return self.said().count(f"sparkpair: {self.name} is up")

    def wait_up(self, starts: int = 1, limit_s: float = BOOT_LIMIT_S) -> None:
        """Wait until it has come up that often. Raises MachineError."""
        wait(lambda: self.starts() >= starts, limit_s, lambda: f"{self.name} did not come up; it said: {self._last()}")

    def _last(self) -> str:
        return self.said()[-2000:]

    def ssh(self, *words: str) -> list[str]:
        """Return the command that runs `words` on the machine, for its shell."""
        return ["ssh", "-F", str(SSH_CONFIG), self.name, *words]

    def run(
        self, script: str, check: bool = True, stdin: bytes | None = None, limit_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script as the account spark, which may use sudo. Raises MachineError when it fails."""
        done = subprocess.run(self.ssh(script), input=stdin or b"", capture_output=True, timeout=limit_s, check=False)
        text = subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        if check and done.returncode != 0:
            raise MachineError(f"{self.name}: {script}: exit code {done.returncode}: {text.stderr or text.stdout}")
        return text

    def reboot(self) -> None:
        """Have it shut down and start again, as a person would; returns when it is up."""
        before = self.starts()
        self.run("sudo systemctl reboot", check=False)
        self.wait_up(before + 1)

    def power_cut(self) -> None:
        """Take the power: nothing that was not written is kept. It stays off."""
        self.tell("stop")

    def power_on(self) -> None:
        """Give power again after a power cut or a shutdown; returns when it is up."""
        before = self.starts()
        self.tell("system_reset")
        self.tell("cont")
        self.wait_up(before + 1)

    def shut_down(self, limit_s: float = BOOT_LIMIT_S) -> None:
        """Have it shut down; returns when it is off."""
        self.run("sudo systemctl poweroff", check=False)
        wait(lambda: self.tell("query-status")["status"] == "shutdown", limit_s, lambda: f"{self.name}: {self._last()}")

    def plug(self, port: str, in_: bool = True) -> None:
        """Plug the cable into a port, or out of it: the port loses its carrier."""
        self.tell("set_link", name=f"card-{port}", up=in_)


def wait(happened: Callable[[], bool], limit_s: float, otherwise: Callable[[], str]) -> None:
    """Wait until something has happened, looking often. Raises MachineError with what is to be said otherwise."""
    deadline = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > deadline:
            raise MachineError(f"after {limit_s:.0f} s: {otherwise()}")
        time.sleep(_LOOK_S)


def attach() -> dict[str, Machine]:
    """Return the machines that run, by name. Raises MachineError when none does."""
    state = State.read()
    if state is None or not _alive(state.keeper):
        raise MachineError("no virtual machines run; start them with `make pair-up`")
    return {name: Machine(state, name) for name in state.machines}


def up(count: int = 2, owner: int = 0) -> dict[str, Machine]:
    """Start `count` machines and wait until all are up. They end with the process `owner`, or by `down`."""
    down()
    disk.make()
    home = Path(tempfile.mkdtemp(prefix="sparkpair-pair-"))
    words = [sys.executable, "-m", "tests.pair.keeper", str(home), str(count), str(owner)]
    with (home / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:

        def failed() -> str:
            said = [home / "keeper.log", *home.glob("*.qemu")]
            return "\n".join(path.read_text(errors="replace") for path in said if path.exists())

        def started() -> bool:
            if keeper.poll() is not None:
                raise MachineError(f"the machines could not be started: {failed()}")
            state = State.read()
            return state is not None and state.home == str(home)

        wait(started, 60, failed)
        machines = attach()
        for machine in machines.values():
            machine.wait_up()
    except BaseException:
        if keeper.poll() is None:
            keeper.terminate()
            keeper.wait()
        raise
    return machines


def down() -> None:
    """End the machines that run, if any do; returns when nothing of them is left."""
    state = State.read()
    if state is None:
        return
    if _alive(state.keeper):
        os.kill(state.keeper, signal.SIGTERM)
        wait(lambda: not _alive(state.keeper), 60, lambda: f"the keeper {state.keeper} does not end")
    # Where the keeper was killed, this is left.
    State.forget(state.home)
    shutil.rmtree(state.home, ignore_errors=True)


def _alive(keeper: int) -> bool:
    """Say whether that process is a keeper still."""
    try:
        return b"tests.pair.keeper" in Path(f"/proc/{keeper}/cmdline").read_bytes()
    except OSError:
        return False


@contextlib.contextmanager
def running(count: int = 2) -> Iterator[dict[str, Machine]]:
    """Machines that are up, and gone afterwards, however this process ends."""
    machines = up(count, os.getpid())
    try:
        yield machines
    finally:
        down()


@contextlib.contextmanager
def found_or_running(count: int = 2) -> Iterator[dict[str, Machine]]:
    """The machines that run, which go on, or some that run for this block alone; their addresses are as they are."""
    with contextlib.ExitStack() as stack:
        try:
            machines = attach()
        except MachineError:
            machines = stack.enter_context(running(count))
        yield machines


def give_addresses(machines: dict[str, Machine], mtu: int = 9000) -> None:
    """Give every fabric port an address by a netplan file, as NVIDIA's guide does; returns when they answer.

    Machines that have their addresses already, from whomever, keep them.
    """
    count = len(machines)
    ends = [(wire, end.machine) for wire in layout.wires(count) for end in (wire.first, wire.second)]
    has = {name: machine.run("ip -4 -brief address").stdout for name, machine in machines.items()}
    if all(f"{layout.address(wire, name)}/24" in has[name] for wire, name in ends):
        return
    path = "/etc/netplan/40-cx7.yaml"
    for name, machine in machines.items():
        text = layout.netplan(name, count, mtu).encode()
        machine.run(f"sudo install -m 600 /dev/stdin {path} && sudo netplan apply", stdin=text)
    for wire in layout.wires(count):
        other = layout.address(wire, wire.second.machine)
        ping = f"ping -c 1 -W 1 -M do -s {mtu - 28} -I {wire.first.port} {other}"
        machines[wire.first.machine].run(f"for _ in $(seq 60); do {ping} && exit 0; done; exit 1")
