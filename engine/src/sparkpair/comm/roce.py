# SPDX-License-Identifier: Apache-2.0
"""Small all-gathers as one-shot RDMA writes: every rank writes its part into every peer's registered table.

The protocol is in `ring.py`, the calls are in `verbs.py`, which also says why libibverbs is called without a compiled
helper. A write carries an immediate value, and its arrival is taken from the completion queue rather than by looking
at memory: a completion is the one thing by which the InfiniBand specification promises that the data is there, and the
driver puts the barrier behind it that Arm processors need.

A peer whose part does not come is late or lost. It is late while its queue pairs work and its control channel is open:
that is said once, and once more when the part came. It is lost when a queue pair failed or the limit passed; then the
ranks end, and the message names the rank, the rail and what to do.

Needs no torch: what a gather takes and gives is memory. `roce_group.py` makes tensors of it.
"""

from __future__ import annotations

import errno
import resource
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkpair.comm.rails import Rail, port_state
from sparkpair.comm.ring import SLOTS, OutOfStep, Ring
from sparkpair.comm.verbs import SONAME, Completion, Device, Memory, QueuePair, VerbsError, load_library
from sparkpair.errors import PeerLost, UserError

# How long to poll before the thread sleeps until the device wakes it. Waking costs tens of microseconds; ranks that
# compute the same are rarely further apart than this.
SPIN_S = 0.0003
# While asleep, how often to see whether the peers are alive.
LOOK_S = 0.25
# A part that is this late is worth a line in the log.
LATE_S = 5.0
# How long a control channel may take to say that its rank is gone, after a queue pair failed.
VERDICT_S = 1.0
# A receive is posted again when its write is seen, and credits keep the writes not seen yet to the slots.
RECEIVES = 2 * SLOTS
_COMPLETIONS = 512


@dataclass(frozen=True, slots=True)
class _Pair:
    """A queue pair and what it leads to."""

    peer: int
    rail: int
    pair: QueuePair


class OneShotGather:
    """One rank's place in the gathers. Open it on every rank, give each all `endpoint`s, `connect`, meet, gather.

    `payload` is the largest part in bytes, `wait_s` how long a peer may keep one back. `log` takes lines for people.
    `gone` is to be set before the first gather: it waits so many seconds for a control channel to close, and says
    whether one has.
    """

    def __init__(
        self, rank: int, world: int, rails: list[Rail], payload: int, wait_s: float, log: Callable[[str], None]
    ) -> None:
        self.gone: Callable[[float], bool] = lambda seconds: False
        self._rails = rails
        self._wait_s = wait_s
        self._log = log
        self._ring = Ring(rank, world, len(rails), payload)
        self._memory = Memory(self._ring.table_bytes)
        self._devices: list[Device] = []
        self._keys: list[tuple[int, int]] = []
        self._pairs: dict[int, list[QueuePair]] = {peer: [] for peer in self._ring.peers}
        # By rail: what its queue pairs' numbers mean, which are unique on one device only.
        self._known: list[dict[int, _Pair]] = []
        library = find_library()
        for rail in rails:
            try:
                self._open(library, rail)
            except VerbsError as error:
                raise UserError(f"--comm roce: rail {rail}: {_advice(error, self._memory.size)}") from None
        self._poller = select.poll()
        for device in self._devices:
            self._poller.register(device.fd, select.POLLIN)
        self._remote: dict[int, dict[str, Any]] = {}
        # Devices that have been asked to wake us and have not yet, by descriptor.
        self._armed: dict[int, Device] = {}

    def _open(self, library: Any, rail: Rail) -> None:
        device = Device(library, rail.name.device, _COMPLETIONS)
        self._devices.append(device)
        self._keys.append(device.register(self._memory))
        known = {}
        for peer, pairs in self._pairs.items():
            # A gather's write and the one before may be on their way.
            pair = device.create_pair(sends=SLOTS + 1, receives=RECEIVES)
            pairs.append(pair)
            known[pair.number] = _Pair(peer, len(self._devices) - 1, pair)
        self._known.append(known)

    @property
    def endpoint(self) -> dict[str, Any]:
        """What the other ranks need to write here, as JSON has it."""
        return {
            "host": socket.gethostname(),
            "table": self._memory.address,
            "rails": [
                {
                    "name": str(rail),
                    "gid": rail.gid.hex(),
                    "mtu": device.mtu,
                    "rkey": keys[1],
                    "pairs": {str(peer): (pairs[at].number, pairs[at].first) for peer, pairs in self._pairs.items()},
                }
                for at, (rail, device, keys) in enumerate(zip(self._rails, self._devices, self._keys, strict=True))
            ],
        }

    def connect(self, endpoints: list[dict[str, Any]]) -> None:
        """Connect to every peer; `endpoints` are all ranks', in rank order. No gather before every rank is through.

        Raises UserError when a rail cannot lead to a peer.
        """
        own = endpoints[self._ring.rank]["rails"]
        for peer, pairs in self._pairs.items():
            self._remote[peer] = endpoints[peer]
            theirs = endpoints[peer]["rails"]
            if len(theirs) != len(own):
                raise UserError(
                    f"--comm roce: rank {peer} has {len(theirs)} rails and this rank {len(own)}: name as many "
                    "on every rank"
                )
            for at, pair in enumerate(pairs):
                number, first = theirs[at]["pairs"][str(self._ring.rank)]
                gid = bytes.fromhex(theirs[at]["gid"])
                mtu = min(self._devices[at].mtu, theirs[at]["mtu"])
                try:
                    pair.connect(self._rails[at].name.gid_index, mtu, gid, number, first)
                except VerbsError as error:
                    raise UserError(
                        f"--comm roce: rail {self._rails[at]} of this rank cannot reach {theirs[at]['name']} of rank "
                        f"{peer} ({error}). Both ends of a rail need addresses in one subnet, and the rails of all "
                        "ranks are paired in the order in which they are named"
                    ) from None

    def try_rails(self) -> None:
        """One full-size gather over all rails, so that one that carries nothing is found now.

        Raises UserError naming the rail.
        """
        try:
            self.begin(self._ring.payload)
            self.finish()
        except PeerLost as lost:
            raise UserError(f"--comm roce: a first try of the rails failed: {lost}") from None

    @property
    def payload(self) -> int:
        """The largest part in bytes."""
        return self._ring.payload

    @property
    def table(self) -> memoryview:
        """All slots."""
        return self._memory.view

    def begin(self, nbytes: int) -> int:
        """Open a gather in which every rank has `nbytes`; where in the table the own part is to be put."""
        self._wait(self._ring.sendable)
        try:
            self._ring.begin(self._memory.view, nbytes)
        except OutOfStep as error:
            raise self._out_of_step(error) from None
        return self._ring.part(self._ring.rank)

    def finish(self) -> list[int]:
        """Write the own part to every peer and wait for theirs; where each rank's part is, until the next `begin`.

        Raises PeerLost naming the rank, the rail and what to do; RuntimeError when a control channel has closed, which
        then has the reason.
        """
        number = self._ring.number
        for peer, pairs in self._pairs.items():
            remote = self._remote[peer]
            for stripe in self._ring.stripes():
                rail = stripe.rail
                try:
                    pairs[rail].write(
                        self._memory.address + stripe.offset,
                        self._keys[rail][0],
                        stripe.length,
                        remote["table"] + stripe.offset,
                        remote["rails"][rail]["rkey"],
                        stripe.immediate,
                        number,
                    )
                except VerbsError as error:
                    raise self._broken(peer, rail, str(error)) from None
                self._ring.posted()
        try:
            self._wait(self._all_here)
        except OutOfStep as error:
            raise self._out_of_step(error) from None
        return [self._ring.part(rank) for rank in range(self._ring.world)]

    def _all_here(self) -> bool:
        return not self._missing()

    def _missing(self) -> list[int]:
        return self._ring.missing(self._memory.view)

    def _wait(self, done: Callable[[], bool]) -> None:
        if done():
            return
        began = time.monotonic()
        told = False
        while True:
            # `done` changes only with what arrives.
            if self._take_all():
                if done():
                    break
                continue
            waited = time.monotonic() - began
            if waited < SPIN_S:
                continue
            if self.gone(0):
                raise RuntimeError("a rank's control channel has closed")
            if waited > self._wait_s:
                raise self._lost()
            if waited > LATE_S and not told:
                told = True
                self._log(
                    f"late: {self._named(self._missing())} in gather {self._ring.number} for {waited:.1f} s; its "
                    f"control channel is open, so it is late and not lost; after {self._wait_s:g} s it counts as lost"
                )
            self._sleep()
        if told:
            self._log(f"late: gather {self._ring.number} is whole after {time.monotonic() - began:.1f} s")

    def _sleep(self) -> None:
        """Let the devices wake this thread, or return after a while; at first only ask them to."""
        if len(self._armed) < len(self._devices):
            for device in self._devices:
                if device.fd not in self._armed:
                    device.arm()
                    self._armed[device.fd] = device
            # What came before is not announced, and has to be looked for once more.
            return
        for fd, _ in self._poller.poll(LOOK_S * 1000):
            self._armed.pop(fd).take_event()

    def _take_all(self) -> bool:
        """Take note of everything that has happened; whether anything has."""
        some = False
        for rail, device in enumerate(self._devices):
            for completion in device.poll():
                some = True
                self._take(rail, completion)
        return some

    def _take(self, rail: int, completion: Completion) -> None:
        known = self._known[rail][completion.pair]
        if completion.failure:
            raise self._broken(known.peer, rail, completion.failure)
        if completion.received:
            known.pair.post_receive()
            self._ring.arrived(known.peer, rail, completion.immediate)
        else:
            self._ring.sent(completion.tag)

    def _named(self, peers: list[int]) -> str:
        return " and ".join(f"rank {peer} on {self._remote[peer]['host']}" for peer in peers)

    def _rail_in_words(self, peer: int, rail: int) -> str:
        theirs = self._remote[peer]["rails"][rail]["name"]
        state = port_state(self._rails[rail].name)
        return f"rail {self._rails[rail]} to {theirs}, whose port here is {state}"

    def _broken(self, peer: int, rail: int, why: str) -> Exception:
        """What to raise when a queue pair has failed."""
        # A rank that ended takes its queue pairs with it, and its control channel says so better.
        if self.gone(VERDICT_S):
            return RuntimeError("a rank's control channel has closed")
        return PeerLost(
            f"{self._named([peer])} is lost in gather {self._ring.number} over {self._rail_in_words(peer, rail)}: "
            f"{why}. Check the cable, and that both ends of this rail have addresses in one subnet and the same MTU; "
            "then start all ranks again, without this rail in --roce-rails if need be"
        )

    def _lost(self) -> Exception:
        """What to raise when the limit has passed."""
        missing = self._missing() or self._ring.peers
        rails = "; ".join(self._rail_in_words(missing[0], rail) for rail in range(len(self._rails)))
        return PeerLost(
            f"{self._named(missing)} is lost: nothing came in gather {self._ring.number} for {self._wait_s:g} s, "
            f"though no queue pair failed and its control channel is open ({rails}). Look at its log, and whether its "
            "process is stopped; if it is only slow, raise --roce-wait"
        )

    def _out_of_step(self, error: OutOfStep) -> PeerLost:
        return PeerLost(f"{self._named([error.peer])} is out of step: {error}. Its gathers cannot be trusted any more")


def find_library() -> Any:
    """libibverbs. Raises UserError saying how to get it."""
    try:
        return load_library()
    except VerbsError as error:
        raise UserError(
            f"--comm roce: {SONAME} cannot be loaded ({error}). Install libibverbs1 and ibverbs-providers, in the "
            "image where ranks are containers, or use --comm torch"
        ) from None


def _advice(error: VerbsError, size: int) -> str:
    """What was tried and failed, and what a person can do."""
    if error.number == errno.ENOMEM:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft // 1024} KiB"
        return (
            f"{error}. {size // 1024} KiB have to be locked for it, and this process may lock {limit} "
            "(RLIMIT_MEMLOCK). Set LimitMEMLOCK=infinity for a service, --ulimit memlock=-1 and --cap-add IPC_LOCK for "
            "a container, memlock in /etc/security/limits.conf for a login, or a smaller --roce-max-kb"
        )
    return (
        f"{error}. The device needs its driver in libibverbs (package ibverbs-providers) and /dev/infiniband, which a "
        "container gets with --device /dev/infiniband"
    )
