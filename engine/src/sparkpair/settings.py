# SPDX-License-Identifier: Apache-2.0
"""What `sparkpair serve` is told: one typed record, checked as far as is possible without loading anything."""

from __future__ import annotations

import dataclasses
import pathlib
import re

from sparkpair.api.arguments import HttpSettings
from sparkpair.cache.forms import RowForm
from sparkpair.checkpoint.forms import WeightForms
from sparkpair.comm.roce_settings import RoceSettings
from sparkpair.drafting.orders import DraftPolicy, parse_policy
from sparkpair.errors import UserError

MAX_RANKS = 8
DEVICE_FORM = re.compile(r"cpu|cuda(:\d+)?")
MAX_PARALLEL = 8
MAX_WINDOW = 64
MAX_COPY = 15
MAX_ENTRIES = 1024
MAX_CACHE_GIB = 1024
MAX_FILL_BUDGET_MS = 60_000


@dataclasses.dataclass(frozen=True, slots=True)
class ServeSettings:
    """The arguments of one rank. `context` 0 means the largest window that fits; times in seconds."""

    model: pathlib.Path
    tp: int
    rank: int
    master: str
    master_port: int
    name: str
    aliases: tuple[str, ...]
    host: str
    port: int
    context: int
    parallel: int
    window: int
    copy_max: int
    drafter: str
    draft_policy: str
    fill_budget_ms: int
    cache_entries: int
    cache_gib: float
    max_tokens: int
    thinking: bool
    threads: int
    device: str
    memory_reserve_gib: float | None
    dtype: str
    kv: RowForm
    forms: WeightForms
    join_timeout: float
    peer_timeout: float
    stuck_after: float
    stuck_exit: bool
    roce: RoceSettings | None
    http: HttpSettings

    def check(self) -> None:
        """Raise UserError naming the flag that is wrong, its value and what is allowed."""
        self._check_world()
        for flag, port in (("--port", self.port), ("--master-port", self.master_port)):
            if not 1 <= port <= 65535:
                raise UserError(f"{flag} {port}: a port is between 1 and 65535")
        if self.tp > 1 and self.rank == 0 and self.port == self.master_port:
            raise UserError(f"--port and --master-port are both {self.port}: they must differ")
        for flag, number, least in (
            ("--context", self.context, 0),
            ("--max-tokens", self.max_tokens, 1),
            ("--threads", self.threads, 1),
        ):
            if number < least:
                raise UserError(f"{flag} {number}: at least {least}")
        for flag, number, least, most in (
            ("--parallel", self.parallel, 1, MAX_PARALLEL),
            ("--window", self.window, 1, MAX_WINDOW),
            ("--copy-max", self.copy_max, 0, MAX_COPY),
            ("--cache-entries", self.cache_entries, 0, MAX_ENTRIES),
            ("--fill-budget-ms", self.fill_budget_ms, 0, MAX_FILL_BUDGET_MS),
        ):
            if not least <= number <= most:
                raise UserError(f"{flag} {number}: between {least} and {most}")
        self._check_drafting()
        if self.window < self.parallel:
            raise UserError(f"--window {self.window}: at least one row for each of the {self.parallel} requests")
        if not DEVICE_FORM.fullmatch(self.device):
            raise UserError(f"--device {self.device}: cpu, cuda, or one GPU as cuda:0")
        if not self.name.strip():
            raise UserError("--name is empty: clients need a model id")
        for flag, seconds in (("--join-timeout", self.join_timeout), ("--peer-timeout", self.peer_timeout)):
            if not 0 < seconds <= 86400:
                raise UserError(f"{flag} {seconds:g}: more than 0 and at most 86400 seconds")
        if not 0 <= self.stuck_after <= 86400:
            raise UserError(f"--stuck-after {self.stuck_after:g}: between 0 (never) and 86400 seconds")
        if self.tp > 1 and self.stuck_after >= self.peer_timeout:
            raise UserError(
                f"--stuck-after {self.stuck_after:g}: less than --peer-timeout, which is {self.peer_timeout:g}, or the "
                "ranks have ended before they say where they are stuck"
            )
        if self.roce is not None:
            self.roce.check(self.tp, self.stuck_after)
        if not 0 <= self.cache_gib <= MAX_CACHE_GIB:
            raise UserError(f"--cache-gib {self.cache_gib:g}: between 0 and {MAX_CACHE_GIB}")
        if self.memory_reserve_gib is not None and self.memory_reserve_gib < 0:
            raise UserError(f"--memory-reserve-gib {self.memory_reserve_gib:g}: at least 0")

    def policy(self) -> DraftPolicy | None:
        """How many drafts the drafter is asked for; None where there is no drafter, or it is never asked."""
        if self.drafter == "none":
            return None
        policy = parse_policy(self.draft_policy, "mtp" if self.drafter == "mtp" else "dflash2")
        return policy if policy.count else None

    def _check_drafting(self) -> None:
        if self.policy() is None and self.draft_policy not in ("auto", "0"):
            raise UserError(f"--draft-policy {self.draft_policy}: there is no drafter; name one with --drafter")

    def _check_world(self) -> None:
        if not 1 <= self.tp <= MAX_RANKS:
            raise UserError(f"--tp {self.tp}: between 1 and {MAX_RANKS} ranks")
        if not 0 <= self.rank < self.tp:
            raise UserError(f"--rank {self.rank}: with --tp {self.tp} ranks are numbered 0 to {self.tp - 1}")
        if self.tp > 1 and not self.master:
            raise UserError(f"--tp {self.tp} needs --master: rank 0's address on the link between the hosts")
