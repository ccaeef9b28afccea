# SPDX-License-Identifier: Apache-2.0
"""The program behind the pair's systemd units: the supervisor on the head, an agent on every other host.

    program STATE_DIR

What it is, and all it needs to know, is in STATE_DIR/autostart/config.json. Exit codes: 0 stopped, or not wanted; 2
it cannot run; 3 it stays down after three failed starts. SIGTERM brings the ranks down, unless a playbook has them.
Standard library only; private to the collection, may change at any time.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from ansible_collections.sparkpair.serving.plugins.module_utils import _autostart_files
from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_agent import Agent
from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_keeper import Keeper
from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_supervisor import STRUCK_OUT, Supervisor


def notify(text: str) -> None:
    """Tell systemd something, if it started us."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if where:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messenger:
            messenger.connect("\0" + where[1:] if where.startswith("@") else where)
            messenger.send(text.encode())


def tell(words: str) -> None:
    """Say what is done in the journal and in what `systemctl status` shows."""
    print(words, flush=True)
    notify(f"STATUS={words.splitlines()[0] if words else ''}")


def unwanted(state_dir: str) -> int | None:
    """Return the exit code with which to end at once, None to go on.

    What a person stopped, or what has failed three times, is not started by a boot; it is by any later start, for
    that is somebody's wish, and the marks then go.
    """
    first = _autostart_files.first_in_this_boot(state_dir)
    stopped = _autostart_files.stopped(state_dir)
    state = _autostart_files.read(state_dir, "state.json") or {}
    if not first:
        if stopped or state.get("gave_up"):
            _autostart_files.clear(state_dir, "stopped.json", "state.json", "claim.json")
        return None
    if stopped:
        tell(f"not started by this boot: the pair {stopped}. Start it with systemctl, or run site.yml.")
        return 0
    if state.get("gave_up"):
        tell(f"not started by this boot: {state.get('words', '')}. Start it with systemctl, or run site.yml.")
        return STRUCK_OUT
    return None


def main(arguments: list[str]) -> int:
    """Run the supervisor or the agent of a state directory to its end."""
    (state_dir,) = arguments
    config = _autostart_files.read(state_dir, "config.json")
    if config is None:
        print(f"error: {_autostart_files.place(state_dir, 'config.json')} is not there or damaged", file=sys.stderr)
        return 2
    life = _autostart_files.hold_life(state_dir)
    if life is None:
        print(f"error: a supervisor of {state_dir} runs already", file=sys.stderr)
        return 2
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    notify("READY=1")
    code = unwanted(state_dir)
    if code is not None:
        return code
    with open(_autostart_files.place(state_dir, "secret"), encoding="ascii") as file:
        secret = file.read().strip()
    keeper = Keeper(config)
    head = config["role"] == "head"
    worker: Supervisor | Agent = Supervisor(config, secret, keeper, tell) if head else Agent(config, secret, keeper)
    code = worker.run(end)
    if not end.is_set() or _autostart_files.claimed(state_dir):
        return code
    # The machine's going down is no wish of a person.
    by_hand = not os.path.exists(config["shutdown_flag"])
    if by_hand:
        _autostart_files.mark_stopped(state_dir, f"systemctl stop {config['unit']}")
    notify("STOPPING=1")
    if isinstance(worker, Agent):
        worker.leave("was stopped by hand" if by_hand else "goes down")
    else:
        worker.leave()
    return 0
