# SPDX-License-Identifier: Apache-2.0
"""Joining over real sockets: ranks agree or are refused by name, strangers are turned away, a lost rank is named."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sparkpair.comm.control import FollowerLink, Leader, first_difference
from sparkpair.comm.wire import MAX_MESSAGE, Message, Wire, WireError
from sparkpair.errors import PeerLost

FACTS = {"the engine's code": "aa", "the checkpoint's files": "bb", "--context": "4096"}
OFFER = {"window": 9000, "pool_tokens": 20_000}
LOOPBACK = "127.0.0.1"
PATIENCE = 20.0


def port_of(leader: Leader) -> int:
    return int(leader._listener.getsockname()[1])


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


class Followers:
    """Ranks that join from threads; whatever they opened is closed in the end."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._links: list[FollowerLink] = []

    def join(
        self, rank: int, port: int, facts: dict[str, str] = FACTS, offer: dict[str, int] = OFFER
    ) -> Future[tuple[FollowerLink, Message]]:
        def run() -> tuple[FollowerLink, Message]:
            link = FollowerLink(rank, LOOPBACK, port, PATIENCE)
            self._links.append(link)
            return link, link.join(facts, offer, PATIENCE)

        return self._pool.submit(run)

    def close(self) -> None:
        for link in self._links:
            link.leave("the test is over")


@pytest.fixture
def followers(pool: ThreadPoolExecutor) -> Iterator[Followers]:
    party = Followers(pool)
    yield party
    party.close()


def joined(followers: Followers, world: int = 3) -> tuple[Leader, dict[int, FollowerLink]]:
    """A leader and its followers, joined and welcomed."""
    leader = Leader(LOOPBACK, 0, world)
    port = port_of(leader)
    joins = {rank: followers.join(rank, port) for rank in range(1, world)}
    leader.join(FACTS, OFFER, PATIENCE, lambda line: None)
    leader.broadcast({"welcome": {}})
    return leader, {rank: future.result()[0] for rank, future in joins.items()}


def test_what_every_rank_can_serve_is_agreed_on(followers: Followers) -> None:
    leader = Leader(LOOPBACK, 0, 3)
    port = port_of(leader)
    for rank, window, tokens in ((2, 8000, 10_000), (1, 5000, 30_000)):
        followers.join(rank, port, FACTS, {"window": window, "pool_tokens": tokens})
    agreed = leader.join(FACTS, OFFER, PATIENCE, lambda line: None)
    assert agreed == {"window": 5000, "pool_tokens": 10_000}
    leader.broadcast({"welcome": {}})
    leader.close({"stop": True})


def test_a_rank_that_disagrees_is_named_with_the_field_on_both_sides(followers: Followers) -> None:
    leader = Leader(LOOPBACK, 0, 2)
    other: Future[tuple[FollowerLink, Message]] = followers.join(
        1, port_of(leader), {**FACTS, "the checkpoint's files": "cc"}
    )
    expected = r"rank 1 on .* disagrees with rank 0 about the checkpoint's files: rank 0 has bb, rank 1 has cc"
    with pytest.raises(PeerLost, match=expected):
        leader.join(FACTS, OFFER, PATIENCE, lambda line: None)
    with pytest.raises(PeerLost, match=expected):
        other.result(PATIENCE)


def test_a_missing_rank_is_named_after_the_limit_and_the_others_are_told(followers: Followers) -> None:
    leader = Leader(LOOPBACK, 0, 3)
    other: Future[tuple[FollowerLink, Message]] = followers.join(1, port_of(leader))
    with pytest.raises(PeerLost, match=r"rank 2 did not join within 2 s"):
        leader.join(FACTS, OFFER, 2.0, lambda line: None)
    with pytest.raises(PeerLost, match=r"rank 2 did not join"):
        other.result(PATIENCE)


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"", (MAX_MESSAGE + 1).to_bytes(4, "big") + bytes(4)],
    ids=["http", "nothing", "a huge length"],
)
def test_a_stranger_is_turned_away_and_the_ranks_still_join(followers: Followers, sent: bytes) -> None:
    leader = Leader(LOOPBACK, 0, 2)
    port = port_of(leader)
    with socket.create_connection((LOOPBACK, port)) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        followers.join(1, port)
        lines: list[str] = []
        leader.join(FACTS, OFFER, PATIENCE, lines.append)
        assert len(lines) == 1
        assert "turned away a connection from 127.0.0.1" in lines[0]
    leader.broadcast({"welcome": {}})
    leader.close()


@pytest.mark.parametrize(("rank", "reason"), [(7, "not one of the 2 ranks"), (1, "already joined")])
def test_a_rank_that_cannot_be_is_refused(
    followers: Followers, pool: ThreadPoolExecutor, rank: int, reason: str
) -> None:
    leader = Leader(LOOPBACK, 0, 3 if rank == 1 else 2)
    port = port_of(leader)
    world = leader.world
    if rank == 1:
        followers.join(1, port)
    refused: Future[tuple[FollowerLink, Message]] = followers.join(rank, port)
    lines: list[str] = []
    told = threading.Event()

    def log(line: str) -> None:
        lines.append(line)
        told.set()

    result = pool.submit(leader.join, FACTS, OFFER, PATIENCE, log)
    assert told.wait(PATIENCE)
    assert reason in lines[0]
    if rank != 1:
        with pytest.raises(PeerLost, match=reason):
            refused.result(PATIENCE)
    followers.join(world - 1, port)
    result.result(PATIENCE)
    leader.broadcast({"welcome": {}})
    leader.close()


def test_a_follower_whose_connection_ends_is_named_at_once(followers: Followers) -> None:
    leader, links = joined(followers)
    links[2]._wire.close()
    assert leader.lost_event.wait(PATIENCE)
    with pytest.raises(PeerLost, match=r"rank 2 on .* left: its connection closed"):
        leader.broadcast({"step": {}})
    leader.close()


def test_a_follower_that_leaves_on_purpose_says_why(followers: Followers) -> None:
    leader, links = joined(followers)
    links[1].leave("it was asked to stop (SIGTERM)")
    assert leader.lost_event.wait(PATIENCE)
    with pytest.raises(PeerLost, match=r"rank 1 on .* left: it was asked to stop \(SIGTERM\)"):
        leader.check()
    leader.close()


def test_an_exchange_that_fails_while_nobody_leaves_names_whom_it_was_with(
    followers: Followers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkpair.comm.control.VERDICT_S", 0.1)
    leader, _ = joined(followers, 2)
    told = str(leader.verdict())
    assert told.startswith(f"the exchange with rank 1 on {socket.gethostname()} failed")
    assert "a machine or the link may be down" in told
    leader.close({"stop": True})


def test_a_follower_learns_why_rank_0_failed(followers: Followers) -> None:
    leader, links = joined(followers)
    leader.close({"failed": "rank 1 on here left: lightning"})
    for link in links.values():
        with pytest.raises(PeerLost, match="rank 1 on here left: lightning"):
            link.receive()


def test_a_follower_notices_that_rank_0_is_gone(followers: Followers) -> None:
    leader, links = joined(followers)
    leader.close()
    with pytest.raises(PeerLost, match="rank 0 left: its connection closed"):
        links[1].receive()


def test_a_rank_that_dies_while_loading_ends_the_wait_of_rank_0(followers: Followers, pool: ThreadPoolExecutor) -> None:
    leader, links = joined(followers)
    links[1].ready(1.0)
    waiting = pool.submit(leader.wait_ready)
    links[2].leave("it failed: no memory")
    with pytest.raises(PeerLost, match=r"rank 2 on .* left: it failed: no memory"):
        waiting.result(PATIENCE)
    leader.close()


def test_a_rank_that_cannot_reach_rank_0_says_where_it_looked() -> None:
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        port = unused.getsockname()[1]
        with pytest.raises(PeerLost, match=rf"rank 1 could not reach rank 0 at {LOOPBACK}:{port} within 0 s"):
            FollowerLink(1, LOOPBACK, port, 0.1)


@pytest.fixture
def wires() -> Iterator[tuple[Wire, socket.socket]]:
    with socket.create_server((LOOPBACK, 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        wire = Wire(accepted)
        wire.timeout(PATIENCE)
        with client, accepted:
            yield wire, client


def test_a_message_arrives_as_sent_with_its_checksum(wires: tuple[Wire, socket.socket]) -> None:
    wire, client = wires
    message = {"step": {"tokens": list(range(5000)), "text": "ü\u2028"}}
    checksum = Wire(client).send(message)
    assert wire.receive() == (message, checksum)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [(b'\x00\x00\x00\x07\x00\x00\x00\x00{"a":1}', "checksum"), (b"\xff" * 8, "a message of 4294967295 bytes")],
    ids=["wrong checksum", "absurd length"],
)
def test_a_damaged_message_is_refused(wires: tuple[Wire, socket.socket], sent: bytes, reason: str) -> None:
    wire, client = wires
    client.sendall(sent)
    with pytest.raises(WireError, match=reason):
        wire.receive()


def test_the_first_differing_fact_is_reported() -> None:
    assert first_difference({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == ("b", "2", "3")
    assert first_difference({"a": "1"}, {}) == ("a", "1", "nothing")
    assert first_difference({"a": "1"}, {"a": "1", "b": "2"}) is None
