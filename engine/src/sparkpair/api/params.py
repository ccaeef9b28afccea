# SPDX-License-Identifier: Apache-2.0
"""A request's fields, checked by hand: what is honoured, what is refused by name, and what is ignored and
said so.

All checks run before anything is rendered or queued, so a refusal is always a plain 400, streamed or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sparkpair.api.errors import invalid, model_not_found, unsupported
from sparkpair.api.fields import Fields
from sparkpair.api.functions import FunctionParams, function_params
from sparkpair.api.options import ANY_MODEL, ApiOptions
from sparkpair.api.structured import AnswerForm, answer_form
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.chat.messages import BadMessages, normalise_messages
from sparkpair.chat.template import RESERVED
from sparkpair.request import SamplingParams

MOST_STOPS = 64
LONGEST_STOP = 1024
# Below this temperature the likeliest token is certain, and dividing by it would overflow.
COLDEST = 1e-4
SEED_BITS = 63

EFFORTS = {"minimal": "low", "low": "low", "medium": "high", "high": "high", "xhigh": "max", "max": "max", "none": None}
"""The effort that the template is given for each that a client may ask for; `none` turns thinking off."""

HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "verbosity",
    }
)
"""Fields that many clients send and that would not change a reply here; not worth a line in the log."""

GRAMMARS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
NO_NAMES: Mapping[str, str] = MappingProxyType({})

MEDIA = ("audio", "image", "images", "video", "videos")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplyParams:
    """What every route lets a client choose. `max_tokens` None: the server's default, cut to what the
    window leaves.
    """

    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    min_tokens: int
    sampling: SamplingParams
    stops: tuple[str, ...]
    ignore_eos: bool
    background: bool
    draft: bool
    return_token_ids: bool
    form: AnswerForm | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChatParams(ReplyParams):
    """A chat request. `effort` is what the template is given; `extra` are further template variables.

    `thinking_budget` is the number of the token that ends the thinking at the latest; None: no limit.
    """

    messages: list[dict[str, Any]]
    functions: FunctionParams
    thinking: bool
    thinking_budget: int | None
    effort: str | None
    clear_thinking: bool
    extra: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompletionParams(ReplyParams):
    """A completion request: text, or token ids to run as they are. `markers`: markers written in the text
    become ids.
    """

    prompt: str | tuple[int, ...]
    markers: bool


def chat_params(
    fields: Fields, options: ApiOptions, checkpoint: CheckpointText, names: Mapping[str, str] = NO_NAMES
) -> ChatParams:
    """Check a chat request. `names` are those that the client knows its fields by, where they are others. Raises
    ApiError.
    """
    common = _reply_params(fields, options, checkpoint)
    if fields.get("modalities") not in (None, ["text"]):
        raise invalid('modalities: only ["text"] is supported by this engine', "modalities")
    for name in MEDIA:
        if fields.get(name) is not None:
            raise unsupported(name)
    try:
        messages = normalise_messages(fields.get("messages"), vision=options.vision)
    except BadMessages as error:
        raise invalid(str(error), "messages") from None
    thinking, effort, clear, extra = _thinking(fields, options)
    budget = fields.integer("thinking_budget")
    if budget is not None and budget < 0:
        raise invalid("thinking_budget: expected 0 or more", "thinking_budget")
    functions = function_params(fields, checkpoint.tokenizer)
    form: AnswerForm | None = common["form"]
    if form is not None and functions.must_call:
        raise invalid(f"{form.param}: an answer cannot have a form and be a call; leave one of them out", form.param)
    return ChatParams(
        **{**common, "form": form and form.renamed(names)},
        messages=messages,
        functions=functions,
        thinking=thinking,
        thinking_budget=budget or None,
        effort=effort,
        clear_thinking=clear,
        extra=extra,
    )


def completion_params(fields: Fields, options: ApiOptions, checkpoint: CheckpointText) -> CompletionParams:
    """Check a completion request. Raises ApiError."""
    common = _reply_params(fields, options, checkpoint)
    best_of = fields.integer("best_of")
    if best_of not in (None, 1):
        raise invalid("best_of: only 1 is supported by this engine", "best_of")
    if fields.boolean("echo", False):
        raise unsupported("echo")
    if fields.string("suffix"):
        raise unsupported("suffix")
    return CompletionParams(
        **common, prompt=_prompt(fields.get("prompt"), checkpoint), markers=fields.boolean("add_special_tokens", False)
    )


def _reply_params(fields: Fields, options: ApiOptions, checkpoint: CheckpointText) -> dict[str, Any]:
    model = model_name(fields, options)
    _refuse_alternatives(fields)
    stream_options = Fields(fields.object("stream_options"), "stream_options.")
    min_tokens = fields.integer("min_tokens") or 0
    if min_tokens < 0:
        raise invalid("min_tokens: expected 0 or more", "min_tokens")
    return {
        "model": model,
        "stream": fields.boolean("stream", False),
        "include_usage": stream_options.boolean("include_usage", False),
        "max_tokens": _max_tokens(fields),
        "min_tokens": min_tokens,
        "sampling": _sampling(fields, checkpoint),
        "stops": _stops(fields.get("stop")),
        "ignore_eos": fields.boolean("ignore_eos", False),
        "background": fields.get("priority") == "background",
        "draft": fields.boolean("draft", True),
        "return_token_ids": fields.boolean("return_token_ids", False),
        "form": answer_form(fields),
    }


def model_name(fields: Fields, options: ApiOptions) -> str:
    """The model name to put on the reply. Raises ApiError 404 for a name that is not served."""
    name = fields.string("model")
    if name is None:
        return options.model_name
    if name == options.model_name or (name in options.aliases and name != ANY_MODEL):
        return name
    if ANY_MODEL in options.aliases:
        return options.model_name
    raise model_not_found(name)


def _max_tokens(fields: Fields) -> int | None:
    """The first budget that is neither absent, null nor 0; a negative one is 1."""
    budgets = [fields.integer("max_tokens"), fields.integer("max_completion_tokens")]
    budget = next((budget for budget in budgets if budget), None)
    return None if budget is None else max(budget, 1)


def _sampling(fields: Fields, checkpoint: CheckpointText) -> SamplingParams:
    default = checkpoint.sampling
    temperature, top_p, min_p = (fields.number(name) for name in ("temperature", "top_p", "min_p"))
    top_k = fields.integer("top_k")
    seed = fields.integer("seed")
    temperature = default.temperature if temperature is None else temperature
    if top_p is not None and not 0 < top_p <= 1:
        raise invalid("top_p: expected more than 0 and at most 1", "top_p")
    if min_p is not None and not 0 <= min_p <= 1:
        raise invalid("min_p: expected 0 to 1", "min_p")
    if seed is not None and not -(2**SEED_BITS) <= seed < 2**SEED_BITS:
        raise invalid("seed: expected a 64-bit whole number", "seed")
    return SamplingParams(
        temperature=temperature if temperature >= COLDEST else 0.0,
        top_p=default.top_p if top_p is None else top_p,
        top_k=default.top_k if top_k is None else min(max(top_k, 0), checkpoint.vocab_size),
        min_p=default.min_p if min_p is None else min_p,
        seed=seed,
    )


def _stops(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise invalid("stop: expected a non-empty string or a list of them", "stop")
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        raise invalid(f"stop: expected at most {MOST_STOPS} strings of at most {LONGEST_STOP} characters", "stop")
    return tuple(stops)


def _refuse_alternatives(fields: Fields) -> None:
    """Several replies and token probabilities are not offered."""
    count = fields.get("n")
    if count is not None and (isinstance(count, bool) or count != 1):
        raise invalid("n: only 1 is supported by this engine", "n")
    logprobs = fields.get("logprobs")
    if logprobs is not None and not isinstance(logprobs, bool):
        raise invalid("logprobs: expected true or false; token probabilities are not supported", "logprobs")
    if logprobs:
        raise unsupported("logprobs")
    if fields.get("top_logprobs") is not None:
        raise unsupported("top_logprobs")


def _thinking(fields: Fields, options: ApiOptions) -> tuple[bool, str | None, bool, Mapping[str, Any]]:
    """Switch, effort, whether to clear past reasoning, and further template variables."""
    kwargs = Fields(fields.object("chat_template_kwargs"), "chat_template_kwargs.")
    name = fields.string("reasoning_effort")
    fallback = kwargs.string("reasoning_effort")
    asked = fallback if name is None else name
    if asked is not None and asked not in EFFORTS:
        raise invalid(f"reasoning_effort: expected one of {', '.join(EFFORTS)}", "reasoning_effort")
    thinking = options.thinking_default if asked is None else EFFORTS[asked] is not None
    switch = kwargs.get("thinking")
    if isinstance(switch, dict):
        switch = {"enabled": True, "disabled": False}.get(str(switch.get("type")))
    if isinstance(switch, bool):
        thinking = switch
    thinking = kwargs.boolean("enable_thinking", thinking)
    effort = options.default_effort if asked is None else EFFORTS[asked]
    clear = kwargs.boolean("clear_thinking", False)
    extra = {key: kwargs.get(key) for key in kwargs.unknown()}
    if reserved := sorted(RESERVED & extra.keys()):
        raise invalid(f"chat_template_kwargs.{reserved[0]}: may not be set here", "chat_template_kwargs")
    return thinking, effort or options.default_effort, clear, extra


def _prompt(value: Any, checkpoint: CheckpointText) -> str | tuple[int, ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(token_id) is int for token_id in value):
        if not all(0 <= token_id < checkpoint.vocab_size for token_id in value):
            raise invalid(f"prompt: token ids must be 0 to {checkpoint.vocab_size - 1}", "prompt")
        return tuple(value)
    raise invalid("prompt: expected a non-empty string or a non-empty list of token ids", "prompt")
