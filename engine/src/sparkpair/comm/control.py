# SPDX-License-Identifier: Apache-2.0
"""The control channel: ranks join rank 0, agree on what they serve, and notice at once when one of them leaves.

Rank 0 keeps one connection to every follower. A connection that closes is the event that a rank is gone: no polling,
and the rank is known by name. A follower that ends on purpose says why first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Set

from sparkpair.comm.stuck import REPORT_S, describe_stuck
from sparkpair.comm.wire import Message, Wire, WireError
from sparkpair.errors import PeerLost, UserError

PROTOCOL = 2

# A connection that has not introduced itself within this many seconds is not a rank.
HELLO_TIMEOUT = 10.0

# Seconds between two attempts of a follower to reach rank 0.
RETRY_S = 0.2

# After a tensor exchange failed, how long to wait for the control channel to say which rank is gone.
VERDICT_S = 10.0

Facts = dict[str, str]

# What a rank can serve, by name; of every number the smallest of all ranks holds.
Offer = dict[str, int]


def first_difference(ours: Facts, theirs: Facts) -> tuple[str, str, str] | None:
    """The first fact (in our order) that differs: name, our value, their value."""
    for name, value in ours.items():
        found = theirs.get(name, "nothing")
        if found != value:
            return name, value, found
    return None


@dataclasses.dataclass(slots=True)
class _Follower:
    rank: int
    wire: Wire
    host: str
    ready: threading.Event = dataclasses.field(default_factory=threading.Event)


class Leader:
    """Rank 0's side of the control channel."""

    def __init__(self, address: str, port: int, world: int) -> None:
        self.world = world
        self._followers: dict[int, _Follower] = {}
        self._lost: str | None = None
        self._lost_event = threading.Event()
        # By rank: the step in which it says that it is stuck, and whether it waits for the others there.
        self._stuck: dict[int, tuple[int, bool]] = {}
        self._stuck_news = threading.Condition()
        self._closing = False
        self._listener = listen(address, port, "--master-port")
        self.address = str(self._listener.getsockname()[0])

    def join(self, facts: Facts, offer: Offer, timeout_s: float, log: Callable[[str], None]) -> Offer:
        """Wait for every other rank, compare facts, and return what all ranks can serve.

        Raises PeerLost when a rank does not come within `timeout_s` or disagrees; the others are told why.
        """
        deadline = time.monotonic() + timeout_s
        offers = [offer]
        while len(self._followers) < self.world - 1:
            self._listener.settimeout(max(0.0, deadline - time.monotonic()) or 0.001)
            try:
                connection, peer = self._listener.accept()
            except TimeoutError:
                missing = sorted(set(range(1, self.world)) - set(self._followers))
                raise self._refuse_all(
                    f"rank {', '.join(map(str, missing))} did not join within {timeout_s:.0f} s. Look at its own log, "
                    f"and check that {self.address} and the master port can be reached from its host."
                ) from None
            follower, their_facts, their_offer = self._introduce(connection, peer[0], offer.keys(), log)
            if follower is None:
                continue
            difference = first_difference(facts, their_facts)
            if difference is not None:
                name, ours, found = difference
                self._followers[follower.rank] = follower
                raise self._refuse_all(
                    f"rank {follower.rank} on {follower.host} disagrees with rank 0 about {name}: "
                    f"rank 0 has {ours}, rank {follower.rank} has {found}. Both must be started alike."
                )
            self._followers[follower.rank] = follower
            offers.append(their_offer)
        self._listener.close()
        for follower in self._followers.values():
            threading.Thread(
                target=self._watch, args=(follower,), name=f"watch rank {follower.rank}", daemon=True
            ).start()
        return {name: min(one[name] for one in offers) for name in offer}

    def _introduce(
        self, connection: socket.socket, peer: str, offered: Set[str], log: Callable[[str], None]
    ) -> tuple[_Follower | None, Facts, Offer]:
        """Read one hello. Strangers and ranks that cannot be are turned away with a line in the log."""
        wire = Wire(connection)
        wire.timeout(HELLO_TIMEOUT)
        try:
            received = wire.receive()
            if received is None:
                raise WireError("nothing")
            hello = received[0]
            rank, protocol = hello.get("rank"), hello.get("sparkpair")
            facts, offer = hello.get("facts"), hello.get("offer")
            if (
                protocol != PROTOCOL
                or not isinstance(rank, int)
                or not isinstance(facts, dict)
                or not isinstance(offer, dict)
                or offer.keys() != offered
                or not all(isinstance(number, int) for number in offer.values())
            ):
                raise WireError("a greeting that is not a rank's")
        except (OSError, WireError) as error:
            log(f"turned away a connection from {peer}: it sent {error or 'nothing in time'}")
            wire.close()
            return None, {}, {}
        refusal = None
        if not 0 < rank < self.world:
            refusal = f"rank {rank} is not one of the {self.world} ranks of this world"
        elif rank in self._followers:
            refusal = f"rank {rank} has already joined from {self._followers[rank].host}"
        if refusal is not None:
            log(f"turned away a connection from {peer}: {refusal}")
            self._tell(wire, {"refused": refusal})
            wire.close()
            return None, {}, {}
        wire.timeout(None)
        return _Follower(rank, wire, str(hello.get("host", peer))), facts, offer

    def _refuse_all(self, reason: str) -> PeerLost:
        for follower in self._followers.values():
            self._tell(follower.wire, {"refused": reason})
        self.close()
        return PeerLost(reason)

    @staticmethod
    def _tell(wire: Wire, message: Message) -> None:
        # A peer that is gone cannot be told; that is usually what the message would have been about.
        with contextlib.suppress(OSError):
            wire.send(message)

    def _watch(self, follower: _Follower) -> None:
        """Read what a follower says until its connection ends; runs in a thread of its own."""
        reason = "its connection closed; look at its log for the cause"
        try:
            while (received := follower.wire.receive()) is not None:
                message = received[0]
                if "ready" in message:
                    follower.ready.set()
                elif "leaving" in message:
                    reason = str(message["leaving"])
                elif "stuck" in message:
                    with self._stuck_news:
                        self._stuck[follower.rank] = (int(message["stuck"]), bool(message["waiting"]))
                        self._stuck_news.notify_all()
        except (OSError, WireError) as error:
            reason = str(error)
        if not self._closing and self._lost is None:
            self._lost = f"rank {follower.rank} on {follower.host} left: {reason}"
            self._lost_event.set()
            for other in self._followers.values():
                other.ready.set()

    @property
    def lost_event(self) -> threading.Event:
        """Set when a follower is gone."""
        return self._lost_event

    def check(self) -> None:
        """Raise PeerLost when a follower is gone."""
        if self._lost is not None:
            raise PeerLost(self._lost)

    def verdict(self) -> PeerLost:
        """Why a tensor exchange failed: the rank that left, when that becomes known in a moment."""
        if self._lost_event.wait(VERDICT_S) and self._lost is not None:
            return PeerLost(self._lost)
        # A machine whose power or cable is gone says nothing, and its connection stays as it was.
        silent = " and ".join(f"rank {rank} on {one.host}" for rank, one in sorted(self._followers.items()))
        return PeerLost(
            f"the exchange with {silent} failed, and no rank has said that it leaves: "
            "a machine or the link may be down; look at the other ranks' logs"
        )

    def stuck_ranks(self, step: int, *, waiting: bool) -> str:
        """Which ranks to look at in a step that does not end, and why; `waiting` says whether rank 0 waits for them."""

        def reports() -> dict[int, bool]:
            return {0: waiting} | {rank: waits for rank, (number, waits) in self._stuck.items() if number == step}

        with self._stuck_news:
            self._stuck_news.wait_for(lambda: len(reports()) == self.world, REPORT_S)
            found = reports()
        hosts = {rank: f"rank {rank} on {follower.host}" for rank, follower in sorted(self._followers.items())}
        return describe_stuck({0: "rank 0"} | hosts, found)

    def wait_ready(self) -> None:
        """Wait until every follower has loaded its weights. Raises PeerLost when one leaves first."""
        for follower in self._followers.values():
            follower.ready.wait()
            self.check()

    def broadcast(self, message: Message) -> int:
        """Send a message to every follower and return its checksum. Raises PeerLost naming the rank that is gone."""
        self.check()
        checksum = 0
        for follower in self._followers.values():
            try:
                checksum = follower.wire.send(message)
            except OSError:
                raise self.verdict() from None
        return checksum

    def close(self, farewell: Message | None = None) -> None:
        """Say `farewell` to every follower and close. Followers that are gone are passed over."""
        self._closing = True
        self._listener.close()
        for follower in self._followers.values():
            if farewell is not None:
                self._tell(follower.wire, farewell)
            follower.wire.close()


class FollowerLink:
    """A follower's side of the control channel."""

    def __init__(self, rank: int, address: str, port: int, timeout_s: float) -> None:
        self.rank = rank
        self._wire = _connect(rank, address, port, timeout_s)
        self.local_address = self._wire.local_address

    def join(self, facts: Facts, offer: Offer, timeout_s: float) -> Message:
        """Introduce this rank and return rank 0's welcome. Raises PeerLost with rank 0's reason when refused."""
        hello = {
            "sparkpair": PROTOCOL,
            "rank": self.rank,
            "host": socket.gethostname(),
            "facts": facts,
            "offer": offer,
        }
        try:
            self._wire.send(hello)
            self._wire.timeout(timeout_s)
            welcome = self.receive()[0]
        except TimeoutError:
            raise PeerLost(f"rank 0 did not answer within {timeout_s:.0f} s: other ranks may be missing") from None
        except OSError as error:
            raise PeerLost(f"rank 0 was lost while joining: {error.strerror or error}") from None
        self._wire.timeout(None)
        return welcome

    def ready(self, seconds: float) -> None:
        """Tell rank 0 that this rank's weights are loaded."""
        try:
            self._wire.send({"ready": seconds})
        except OSError:
            raise self.verdict() from None

    def receive(self) -> tuple[Message, int]:
        """The next message and its checksum. Raises PeerLost when rank 0 refused, failed or is gone."""
        try:
            received = self._wire.receive()
        except TimeoutError:
            raise
        except (OSError, WireError) as error:
            raise self._lost(f"rank 0 was lost: {error}") from None
        if received is None:
            raise self._lost("rank 0 left: its connection closed; look at its log for the cause")
        for word in ("refused", "failed"):
            if word in received[0]:
                raise self._lost(str(received[0][word]))
        return received

    def _lost(self, reason: str) -> PeerLost:
        self._wire.close()
        return PeerLost(reason)

    def gone(self, seconds: float) -> bool:
        """Wait so long for rank 0 to close the connection; whether it has."""
        return self._wire.gone(seconds)

    def verdict(self) -> PeerLost:
        """Why a tensor exchange failed, in rank 0's words where it has any."""
        self._wire.timeout(VERDICT_S)
        try:
            while True:
                self.receive()
        except PeerLost as lost:
            return lost
        except TimeoutError:
            return PeerLost("the exchange between the ranks failed; rank 0 is still there. Look at its log.")

    def stuck(self, step: int, *, waiting: bool) -> None:
        """Tell rank 0 that this rank's step does not end, and whether it waits for other ranks in it."""
        with contextlib.suppress(OSError):
            self._wire.send({"stuck": step, "waiting": waiting})

    def leave(self, reason: str) -> None:
        """Tell rank 0 why this rank ends, and close."""
        with contextlib.suppress(OSError):
            self._wire.send({"leaving": reason})
        self._wire.close()


def listen(address: str, port: int, flag: str) -> socket.socket:
    """A listening socket. Raises UserError naming the flag when the address or port cannot be had."""
    try:
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen()
    except OSError as error:
        raise UserError(
            f"{address}:{port} cannot be listened on ({error.strerror}). Stop the program that uses the port, or "
            f"choose another with {flag}."
        ) from None
    return listener


def _connect(rank: int, address: str, port: int, timeout_s: float) -> Wire:
    """Connect to rank 0, which may not be listening yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return Wire(socket.create_connection((address, port), timeout=5.0))
        except socket.gaierror as error:
            raise UserError(f"--master {address}: {error.strerror}. Give rank 0's address on the link.") from None
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeerLost(
                    f"rank {rank} could not reach rank 0 at {address}:{port} within {timeout_s:.0f} s "
                    f"({error.strerror or error}). Look at rank 0's log, and check the address and the port."
                ) from None
        time.sleep(RETRY_S)
