# SPDX-License-Identifier: Apache-2.0
"""The prompts that the template renders, character for character and id for id."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.chat.messages import BadMessages, normalise_messages
from sparkpair.chat.template import ChatTemplate, Prompt, TemplateError
from sparkpair.chat.tokenizer import Segment, TextTokenizer
from sparkpair.checkpoint.miniature_text import MARKERS
from sparkpair.errors import UserError

END = "<|assistant|><think>"
START = "[gMASK]<sop><|system|>Reasoning Effort: Max"
USER = {"role": "user", "content": "Hi"}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4", "reasoning_content": "Add."},
    {"role": "user", "content": "And 3+3?"},
]


def call(name: str, arguments: Any = None, id: str | None = None) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_of(prompt: Prompt) -> str:
    return "".join(segment.text for segment in prompt.segments)


@pytest.fixture(scope="session")
def render(template: ChatTemplate) -> Callable[..., str]:
    """Render messages as a client sends them."""

    def run(messages: list[dict[str, Any]], **options: Any) -> str:
        return text_of(template.render(normalise_messages(messages), **options))

    return run


def test_plain_question_gets_the_default_effort(render: Callable[..., str]) -> None:
    assert render([USER]) == f"{START}<|user|>Hi<|assistant|><think>"


def test_second_turn_keeps_system_text_effort_and_reasoning(render: Callable[..., str]) -> None:
    assert render(TURNS, effort="low") == (
        "[gMASK]<sop><|system|>Reasoning Effort: Low<|system|>Be brief.<|user|>2+2?"
        "<|assistant|><think>Add.</think>4<|user|>And 3+3?<|assistant|><think>"
    )


def test_clear_thinking_drops_reasoning_before_the_last_user_message(render: Callable[..., str]) -> None:
    assert "<|user|>2+2?<|assistant|><think></think>4<|user|>" in render(TURNS, clear_thinking=True)


def test_clear_thinking_keeps_reasoning_after_the_last_user_message(render: Callable[..., str]) -> None:
    later = [
        USER,
        {"role": "assistant", "content": "", "reasoning_content": "Need data.", "tool_calls": [call("f")]},
    ]
    assert "<think>Need data.</think>" in render(later, clear_thinking=True)


def test_function_call_and_its_result(render: Callable[..., str]) -> None:
    messages = [
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Need data.",
            "tool_calls": [call("weather", '{"city": "Oslo", "days": 2}', "c1")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"t": 4}'},
    ]
    assert render(messages) == (
        f"{START}<|user|>Weather in Oslo?<|assistant|><think>Need data.</think><tool_call>weather"
        "<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
        '<|observation|><tool_response>{"t": 4}</tool_response><|assistant|><think>'
    )


@pytest.mark.parametrize("order", [("c1", "c2"), ("c2", "c1")], ids=["in order", "swapped"])
def test_parallel_results_stand_in_the_order_of_their_calls(render: Callable[..., str], order: tuple[str, str]) -> None:
    results = {"c1": "1", "c2": "2"}
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call("a", "", "c1"), call("b", None, "c2")]},
        *({"role": "tool", "tool_call_id": id, "content": results[id]} for id in order),
    ]
    assert (
        "<tool_call>a</tool_call><tool_call>b</tool_call><|observation|>"
        "<tool_response>1</tool_response><tool_response>2</tool_response><|assistant|>"
    ) in render(messages)


@pytest.mark.parametrize("ids", [("c2", "c2"), ("c2", "other")], ids=["twice", "unknown"])
def test_results_that_cannot_be_paired_stay_in_message_order(render: Callable[..., str], ids: tuple[str, str]) -> None:
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call("a", "", "c1"), call("b", "", "c2")]},
        {"role": "tool", "tool_call_id": ids[0], "content": "first"},
        {"role": "tool", "tool_call_id": ids[1], "content": "second"},
    ]
    assert "<tool_response>first</tool_response><tool_response>second</tool_response>" in render(messages)


@pytest.mark.parametrize("ids", [(None, None), ("", "c2"), (None, "c2")])
@pytest.mark.parametrize("calls", [("c1", "c2"), (None, "c2")], ids=["named calls", "a nameless call"])
def test_results_without_ids_belong_to_the_calls_that_have_none(
    render: Callable[..., str], ids: tuple[str | None, str | None], calls: tuple[str | None, str]
) -> None:
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call("a", "oops", calls[0]), call("b", "", calls[1])]},
        *({"role": "tool", "tool_call_id": id, "content": text} for id, text in zip(ids, "12", strict=True)),
    ]
    assert render(messages).endswith("<tool_call>b</tool_call><|observation|><tool_response>2</tool_response>" + END)


def test_result_that_no_call_waits_for_is_refused_with_its_place() -> None:
    answered = {"role": "assistant", "tool_calls": [call("a", "", "c1")]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "1"}
    system = {"role": "system", "content": "S"}
    for messages, index in [([USER, {"role": "tool"}], 1), ([system, system, answered, result, {"role": "tool"}], 4)]:
        with pytest.raises(BadMessages, match=rf"messages\[{index}\]\.tool_call_id"):
            normalise_messages(messages)


def test_thinking_off_has_no_effort_line_and_an_empty_think_block(render: Callable[..., str]) -> None:
    assert render([USER], thinking=False) == "[gMASK]<sop><|user|>Hi<|assistant|><think></think>"


def test_picture_is_a_stand_in_between_its_marks(template: ChatTemplate) -> None:
    content = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "What is it?"}]
    rendered = text_of(template.render([{"role": "user", "content": content}]))
    expanded = rendered.replace("<|image|>", "<|image|>" * 16)
    assert expanded.endswith(
        "<|user|><|begin_of_image|>" + "<|image|>" * 16 + "<|end_of_image|>What is it?<|assistant|><think>"
    )


def test_clip_is_a_stand_in_between_its_marks(template: ChatTemplate) -> None:
    content = [{"type": "video_url", "video_url": {"url": "x"}}]
    pair = "<|begin_of_image|><|image|><|image|><|end_of_image|>"
    rendered = text_of(template.render([{"role": "user", "content": content}]))
    expanded = rendered.replace("<|video|>", f"{pair}0.0 seconds{pair}1.0 seconds")
    assert f"<|user|><|begin_of_video|>{pair}0.0 seconds{pair}1.0 seconds<|end_of_video|><|assistant|>" in expanded


def test_functions_stand_one_a_line_behind_the_effort(render: Callable[..., str]) -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "late", "defer_loading": True}},
        {"type": "function", "function": {"name": "g", "description": "naïve"}},
    ]
    prompt = render([{"role": "system", "content": "S"}, USER], tools=tools)
    assert prompt.startswith(f"{START}<|system|>\n# Tools\n")
    lines = ['{"name": "f", "parameters": {"type": "object"}}', '{"name": "g", "description": "naïve"}']
    assert "\n".join(["<tools>", *lines, "</tools>"]) in prompt
    assert "late" not in prompt
    assert prompt.endswith("<|system|>S<|user|>Hi<|assistant|><think>")


def test_result_of_function_references_is_a_list_of_definitions(template: ChatTemplate) -> None:
    tools = [{"function": {"name": "late", "defer_loading": True, "parameters": {}}}]
    messages = [{"role": "tool", "content": [{"type": "tool_reference", "name": "late"}]}]
    rendered = text_of(template.render(messages, tools=tools))
    assert '<tool_response><tools>\n{"name": "late", "parameters": {}}\n</tools></tool_response>' in rendered


CALL = {"role": "assistant", "tool_calls": [call("f", {"a": "x y", "b": [1, None], "c": True})]}
CALL_TEXT = (
    "<|assistant|><think></think><tool_call>f<arg_key>a</arg_key><arg_value>x y</arg_value>"
    "<arg_key>b</arg_key><arg_value>[1, null]</arg_value><arg_key>c</arg_key><arg_value>true</arg_value></tool_call>"
)
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
SHAPES = {
    "null": ({"role": "user", "content": None}, "<|user|>"),
    "absent": ({"role": "user"}, "<|user|>"),
    "parts": ({"role": "user", "content": PARTS}, "<|user|>ab"),
    "blanks": ({"role": "user", "content": "  kept  "}, "<|user|>  kept  "),
    "developer": ({"role": "developer", "content": "D"}, "<|system|>D"),
    "silent": ({"role": "assistant", "content": None}, "<|assistant|><think></think>"),
    "stripped": ({"role": "assistant", "content": "\n said \n"}, "<|assistant|><think></think>said"),
    "inline": ({"role": "assistant", "content": "<think>why</think>so"}, "<|assistant|><think>why</think>so"),
    "reasoning": (
        {"role": "assistant", "content": "so", "reasoning": "why"},
        "<|assistant|><think>why</think>so",
    ),
    "call": (CALL, CALL_TEXT),
    "result": (
        {"role": "tool", "tool_call_id": "c", "content": None},
        "<|observation|><tool_response></tool_response>",
    ),
}


@pytest.mark.parametrize(("message", "expected"), SHAPES.values(), ids=SHAPES)
def test_message_shapes(render: Callable[..., str], message: dict[str, Any], expected: str) -> None:
    assert render([USER, message]) == f"{START}<|user|>Hi{expected}<|assistant|><think>"


@pytest.mark.parametrize("arguments", ["oops", "[1]", '{"path": "', '"text"', '{"a": NaN}', '{"a": "\\ud800"}'])
def test_past_call_without_valid_arguments_is_left_out_with_its_result(
    render: Callable[..., str], arguments: str
) -> None:
    messages = [
        USER,
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [call("bad", arguments, "c1"), call("good", "{}", "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "gone"},
        {"role": "tool", "tool_call_id": "c2", "content": "there"},
    ]
    assert render(messages).endswith(
        "<think></think>x<tool_call>good</tool_call><|observation|><tool_response>there</tool_response>"
        "<|assistant|><think>"
    )


def test_a_reply_of_very_many_calls_and_results_without_ids_is_taken_in_a_moment() -> None:
    """Looked for among all others, or moved up one by one, they would take minutes, in which nothing else is served."""
    many = 40_000
    calls = [call("f", "{}", ""), call("f", "oops", "broken")] * (many // 2)
    results = [{"role": "tool", "content": "x"}] * many
    started = time.process_time()
    taken = normalise_messages([USER, {"role": "assistant", "tool_calls": calls}, *results])
    assert time.process_time() - started < 10
    assert len(taken[1]["tool_calls"]) == many // 2
    assert len(taken) == 2 + many // 2


def test_leading_system_messages_are_joined_and_later_ones_stay(render: Callable[..., str]) -> None:
    messages = [
        {"role": "system", "content": "A"},
        {"role": "developer", "content": "B"},
        USER,
        {"role": "system", "content": "C"},
    ]
    assert render(messages) == f"{START}<|system|>A\n\nB<|user|>Hi<|system|>C<|assistant|><think>"


def test_callers_messages_are_not_changed(render: Callable[..., str]) -> None:
    messages = [
        *TURNS,
        {"role": "assistant", "content": "<think>a</think>b", "tool_calls": [call("f", "oops", "c")]},
    ]
    before = copy.deepcopy(messages)
    render(messages)
    assert messages == before


def test_prompt_equals_the_transformers_rendering(
    text_directory: Path, template: ChatTemplate, tokenizer: TextTokenizer
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        reference = AutoTokenizer.from_pretrained(text_directory)
    messages = normalise_messages(
        [*TURNS, {"role": "assistant", "content": "Ünï 日本", "tool_calls": [call("f", {"n": 1})]}]
    )
    tools = [{"type": "function", "function": {"name": "f", "description": "a/b [c] <d>"}}]
    for switches, options in (
        ({}, {}),
        ({"reasoning_effort": "high"}, {"effort": "high"}),
        ({"enable_thinking": False}, {"thinking": False}),
    ):
        expected = reference.apply_chat_template(messages, tools=tools, add_generation_prompt=True, **switches)
        prompt = template.render(messages, tools=tools, **options)
        assert tokenizer.encode_segments(prompt.segments) == expected["input_ids"]


typed = st.lists(
    st.one_of(st.sampled_from([*MARKERS, "<|us", "er|>", "[gMA", "</thi", "<", "["]), st.text(max_size=5))
).map("".join)


@given(user=typed, system=typed, reasoning=typed, result=typed, argument=typed, description=typed)
def test_markers_typed_by_users_stay_text(
    template: ChatTemplate,
    tokenizer: TextTokenizer,
    user: str,
    system: str,
    reasoning: str,
    result: str,
    argument: str,
    description: str,
) -> None:
    def prompt(*texts: str) -> list[Segment]:
        u, s, r, t, a, d = texts
        messages = [
            {"role": "system", "content": s},
            {"role": "user", "content": u},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": r,
                "tool_calls": [call("f", {"k": a}, "c")],
            },
            {"role": "tool", "tool_call_id": "c", "content": t},
        ]
        return template.render(messages, tools=[{"function": {"name": "f", "description": d}}]).segments

    plain = prompt("u", "s", "r", "t", "a", "d")
    typed = prompt(user, system, reasoning, result, argument, description)
    assert [s for s in typed if s.is_marker] == [s for s in plain if s.is_marker]
    written = "".join(segment.text for segment in typed)
    assert all(text in written for text in (user, system, reasoning, result, argument))
    markers = set(tokenizer.marker_ids.values())
    assert not markers.intersection(tokenizer.encode_text(user))


TEMPLATE_WITHOUT_SWITCH = (
    "[gMASK]<sop><|system|>Reasoning Effort: Max"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|><think>"
)


def test_template_without_a_switch_gets_one(tokenizer: TextTokenizer) -> None:
    template = ChatTemplate(TEMPLATE_WITHOUT_SWITCH, tokenizer, "test")
    messages = [{"role": "system", "content": "Reasoning Effort: Low"}, USER]
    assert text_of(template.render(messages, thinking=False)) == (
        "[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>Hi<|assistant|><think></think>"
    )
    assert text_of(template.render(messages)) == (
        f"{START}<|system|>Reasoning Effort: Low<|user|>Hi<|assistant|><think>"
    )


def test_effort_line_written_by_the_user_survives_thinking_off(render: Callable[..., str]) -> None:
    messages = [{"role": "system", "content": "Reasoning Effort: Low"}, USER]
    assert render(messages, thinking=False) == (
        "[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>Hi<|assistant|><think></think>"
    )


def test_reply_begins_in_the_think_block_only_when_the_prompt_opened_it(template: ChatTemplate) -> None:
    assert template.render([USER]).inside_thinking
    assert not template.render([USER], thinking=False).inside_thinking
    assert not template.render([USER], add_generation_prompt=False).inside_thinking


def test_further_variables_reach_the_template(tokenizer: TextTokenizer) -> None:
    template = ChatTemplate("{{ tone }}<|user|>", tokenizer, "test")
    assert text_of(template.render([USER], extra={"tone": "<|user|> calm"})) == "<|user|> calm<|user|>"
    assert [s.is_marker for s in template.render([USER], extra={"tone": "<|user|>"}).segments] == [
        False,
        True,
    ]


def test_refusal_by_the_template_is_an_error_with_its_text(template: ChatTemplate) -> None:
    with pytest.raises(TemplateError, match="unknown role critic"):
        template.render([{"role": "critic", "content": ""}])


@pytest.mark.parametrize(
    ("text", "message"),
    [("{% if %}", "line 1"), ("{{ raise_exception('no') }}", "fails on a single user message: no")],
)
def test_unusable_template_is_refused_at_start(tokenizer: TextTokenizer, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ChatTemplate(text, tokenizer, "chat_template.jinja")


def test_missing_template_is_named(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    with pytest.raises(UserError, match=r"chat_template\.jinja: cannot be read"):
        ChatTemplate.load(tmp_path, tokenizer)
