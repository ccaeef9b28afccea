# SPDX-License-Identifier: Apache-2.0
"""Starts and ends the virtual machines by hand: `python -m tests.pair up|down|equip|ssh|disk`, see `make pair-up`."""

from __future__ import annotations

import argparse
import os
import sys

from tests.pair import disk, hub, layout, machines, small, stand_in


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.pair", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start the machines; they run until `down`")
    up.add_argument("--machines", type=int, choices=(2, 3), default=2)
    up.add_argument("--owner", type=int, default=0, help="process with which they end")
    up.add_argument("--addressed", action="store_true", help="address the fabric ports, as a ring's always are")
    verbs.add_parser("down", help="end the machines")
    verbs.add_parser("equip", help="give the head what the others have not, and all a small checkpoint")
    verbs.add_parser("disk", help="make the disks, if they are not made yet")
    ssh = verbs.add_parser("ssh", help="run a command on a machine, or a shell")
    ssh.add_argument("machine")
    ssh.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.verb == "up":
        found = machines.up(options.machines, options.owner)
        # No play gives a ring its addresses.
        if options.addressed or options.machines > 2:
            machines.give_addresses(found)
        for name, machine in found.items():
            print(f"{name} is up: ssh -F .cache/pair/ssh_config {name}; its port 8888 is {machine.api}")
    elif options.verb == "down":
        machines.down()
    elif options.verb == "equip":
        found = machines.attach()
        head = found[layout.NAMES[0]]
        stand_in.make(head)
        hub.give(head)
        small.give(found)
    elif options.verb == "disk":
        print(disk.make().key)
    else:
        words = machines.attach()[options.machine].ssh(*options.words)
        os.execvp(words[0], words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
