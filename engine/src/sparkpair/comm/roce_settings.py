# SPDX-License-Identifier: Apache-2.0
"""What the command line says about how ranks exchange tensors. Imports nothing heavy."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from sparkpair.comm.rails import FLAG, RailName, look_at_rails, parse_rails
from sparkpair.errors import UserError

# Twice this, for every rank, is locked memory.
MAX_KB = 65536
MAX_WAIT_S = 3600


@dataclass(frozen=True, slots=True)
class RoceSettings:
    """Small gathers as RDMA writes: over which rails, up to how large a part, and how long to wait for a rank."""

    rails: tuple[RailName, ...]
    max_kb: int
    wait_s: float

    def describe(self) -> str:
        """What has to be alike on all ranks; devices and GIDs need not."""
        return f"roce with {len(self.rails)} rails and --roce-max-kb {self.max_kb}"

    def check(self, world: int, stuck_after: float) -> None:
        """Raise UserError naming the flag that is wrong, its value and what is allowed."""
        if world < 2:
            raise UserError("--comm roce: one rank alone exchanges nothing; it needs --tp 2 or more")
        if not 1 <= self.max_kb <= MAX_KB:
            raise UserError(f"--roce-max-kb {self.max_kb}: between 1 and {MAX_KB}")
        if not 1 <= self.wait_s <= MAX_WAIT_S:
            raise UserError(f"--roce-wait {self.wait_s:g}: between 1 and {MAX_WAIT_S} seconds")
        if stuck_after >= self.wait_s:
            raise UserError(
                f"--stuck-after {stuck_after:g}: less than --roce-wait, which is {self.wait_s:g}, or the ranks have "
                "ended before they say where they are stuck"
            )

    def check_here(self) -> None:
        """Refuse what this machine cannot do, without opening a device. Raises UserError."""
        from sparkpair.comm.roce import find_library

        look_at_rails(self.rails)
        find_library()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--comm",
        choices=["torch", "roce"],
        default="torch",
        help="how ranks exchange tensors: torch (gloo on CPUs, NCCL on GPUs), or roce: small ones as RDMA writes and "
        "the others as torch (default %(default)s)",
    )
    parser.add_argument(
        FLAG, default="", metavar="DEV:GID,...", help="RDMA devices of this host with the index of each one's GID"
    )
    parser.add_argument(
        "--roce-max-kb", type=int, default=512, metavar="N", help="largest part that goes as RDMA writes (default 512)"
    )
    parser.add_argument(
        "--roce-wait", type=float, default=300.0, metavar="S", help="a part later than this is lost (default 300)"
    )


def roce_settings(options: argparse.Namespace) -> RoceSettings | None:
    """The settings that were given; None where torch exchanges everything. Raises UserError."""
    if options.comm == "torch":
        if options.roce_rails:
            raise UserError(f"{FLAG} {options.roce_rails}: it has no effect without --comm roce")
        return None
    if not options.roce_rails:
        raise UserError(f"--comm roce needs {FLAG}, as in rocep1s0f0:3,roceP2p1s0f0:3: `rdma link` lists devices")
    return RoceSettings(parse_rails(options.roce_rails), options.roce_max_kb, options.roce_wait)
