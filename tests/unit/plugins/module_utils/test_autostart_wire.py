# SPDX-License-Identifier: Apache-2.0
"""Only who knows the pair's secret can speak to a supervisor, and nobody can repeat what was said."""

from __future__ import annotations

import concurrent.futures
import socket
from collections.abc import Iterator

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_wire import GREETING, Line, WireError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    for one in pair:
        one.settimeout(20)
    yield pair
    for one in pair:
        one.close()


def lines(ends: tuple[socket.socket, socket.socket], *given: str) -> list[concurrent.futures.Future[Line]]:
    """What comes of both sides greeting each other, each with its secret."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        sides = zip(ends, given, (b"client", b"server"), strict=True)
        return [pool.submit(Line, *one) for one in sides]


def test_who_knows_the_secret_is_heard(ends: tuple[socket.socket, socket.socket]) -> None:
    head, agent = [one.result() for one in lines(ends, "the pair's", "the pair's")]
    head.say({"verb": "look"})
    assert agent.hear() == {"verb": "look"}
    agent.say({"state": "running"})
    assert head.hear() == {"state": "running"}
    head.close()
    agent.close()


def test_another_secret_is_refused_by_both_sides_before_anything_is_asked(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    for one in lines(ends, "the pair's", "somebody else's"):
        with pytest.raises(WireError, match="does not know the secret of this pair"):
            one.result()


def test_a_line_that_is_said_again_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    head, agent = [one.result() for one in lines(ends, "the pair's", "the pair's")]
    head.say({"verb": "stop"})
    sent = ends[1].recv(4096, socket.MSG_PEEK)
    assert agent.hear() == {"verb": "stop"}
    ends[0].sendall(sent)
    with pytest.raises(WireError, match="does not know the secret"):
        agent.hear()
    head.close()
    agent.close()


def test_what_does_not_greet_as_a_supervisor_is_told_apart(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].sendall(b"HTTP/1.1 400 Bad Request\r\n".ljust(len(GREETING) + 32, b" "))
    with pytest.raises(WireError, match="something else than a supervisor"):
        Line(ends[0], "the pair's", b"client")
