# SPDX-License-Identifier: Apache-2.0
"""Reasoning that a client drops comes back, and what is remembered stays bounded."""

from __future__ import annotations

from typing import Any

from sparkpair.chat import memory
from sparkpair.chat.memory import ReasoningMemory


def turn(*ids: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id} for id in ids], **fields}


def restored(remembered: ReasoningMemory, *ids: str) -> Any:
    return remembered.restore([turn(*ids)])[0].get("reasoning_content")


def test_reasoning_comes_back_by_any_call_of_its_reply() -> None:
    remembered = ReasoningMemory()
    remembered.remember(["a", "b"], "why")
    assert restored(remembered, "b") == "why"
    assert restored(remembered, "x", "a") == "why"
    assert restored(remembered, "x") is None
    assert restored(remembered) is None


def test_what_a_client_says_itself_stands() -> None:
    remembered = ReasoningMemory()
    remembered.remember(["a"], "why")
    for reasoning in ("because", ""):
        message = turn("a", reasoning_content=reasoning)
        assert remembered.restore([message]) == [message]


def test_messages_of_the_caller_are_not_changed() -> None:
    remembered = ReasoningMemory()
    remembered.remember(["a"], "why")
    message = turn("a")
    remembered.restore([message])
    assert message == turn("a")


def test_only_the_newest_replies_are_remembered() -> None:
    remembered = ReasoningMemory()
    for number in range(memory.MOST_REPLIES + 1):
        remembered.remember([f"a{number}", f"b{number}"], "why")
    assert restored(remembered, "b0") is None
    assert restored(remembered, "b1") == "why"


def test_only_so_many_characters_are_remembered() -> None:
    remembered = ReasoningMemory()
    long = "x" * (memory.MOST_CHARACTERS // 2)
    for id in "abc":
        remembered.remember([id], long)
    assert [restored(remembered, id) is None for id in "abc"] == [True, False, False]
    remembered.remember(["d"], long * 3)
    assert all(restored(remembered, id) is None for id in "abcd")


def test_old_replies_are_forgotten() -> None:
    now = [0.0]
    remembered = ReasoningMemory(lambda: now[0])
    remembered.remember(["a"], "why")
    now[0] = memory.OLDEST_S
    assert restored(remembered, "a") == "why"
    now[0] += 1
    assert restored(remembered, "a") is None


def test_reply_without_reasoning_takes_no_room() -> None:
    remembered = ReasoningMemory()
    remembered.remember(["a"], "")
    assert restored(remembered, "a") is None
