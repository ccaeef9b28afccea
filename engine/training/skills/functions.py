# SPDX-License-Identifier: Apache-2.0
"""Functions: called with typed arguments, their results told, and left alone where nothing asks for them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from training import words
from training.cases import Case, Message, Said, exactly, same_calls, user

Arguments = dict[str, Any]
_TEXT, _WHOLE, _NUMBER, _FLAG = ({"type": name} for name in ("string", "integer", "number", "boolean"))
_LIST = {"type": "array", "items": {"type": "string"}}


class _Tool:
    """A function: its definition, requests for it with arguments, and what it may give back with how that is told."""

    def __init__(
        self,
        name: str,
        description: str,
        properties: dict[str, Any],
        ask: Callable[[random.Random], tuple[str, Arguments]],
        result: Callable[[random.Random, Arguments], tuple[Any, str]],
    ) -> None:
        self.name = name
        self.ask = ask
        self.result = result
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        self.definition = {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters},
        }


def _forecast(rng: random.Random) -> tuple[str, Arguments]:
    city, days = rng.choice(words.CITIES), rng.randint(1, 14)
    form = rng.choice([
        "What will the weather be in {} over the next {} days?", "How is the weather in {} for the next {} days?",
        "Give me the forecast for {} for {} days.", "I travel to {} for {} days. What will the weather be?",
    ])  # fmt: skip
    return form.format(city, days), {"city": city, "days": days}


def _mail(rng: random.Random) -> tuple[str, Arguments]:
    name, text = rng.choice(words.NAMES), words.sentence(rng)
    urgent = rng.random() < 0.5
    ask = rng.choice(["Send {} this message: {}", "Write to {}: {}"]).format(name, text)
    return ask + (" It is urgent." if urgent else ""), {"to": name, "text": text, "urgent": urgent}


def _timer(rng: random.Random) -> tuple[str, Arguments]:
    minutes = rng.randint(1, 90)
    form = rng.choice(["Set a timer for {} minutes.", "Wake me in {} minutes.", "Start a timer of {} minutes."])
    return form.format(minutes), {"minutes": minutes}


def _convert(rng: random.Random) -> tuple[str, Arguments]:
    amount = rng.randint(10, 9999) / 100
    units = rng.sample(["euro", "dollar", "krone", "pound"], 2)
    form = rng.choice(["Convert {} {} to {}.", "How much is {} {} in {}?"])
    return form.format(amount, *units), {"amount": amount, "source": units[0], "target": units[1]}


def _shop(rng: random.Random) -> tuple[str, Arguments]:
    things = rng.sample(words.THINGS, rng.randint(1, 4))
    form = rng.choice(["Put {} on the list.", "Add {} to my list.", "I have to buy {}."])
    return form.format(", ".join(things)), {"items": things}


def _stock(rng: random.Random) -> tuple[str, Arguments]:
    thing, colour = rng.choice(words.THINGS), rng.choice(words.COLOURS)
    form = rng.choice(["How many {} {}s are left?", "Count the {} {}s in the store.", "Are there {} {}s in the store?"])
    return form.format(colour, thing), {"thing": thing, "colour": colour}


def _weather(rng: random.Random, asked: Arguments) -> tuple[Any, str]:
    degrees, sky = rng.randint(-9, 35), rng.choice(["rain", "sun", "snow", "wind", "clouds"])
    return {"degrees": degrees, "sky": sky}, f"In {asked['city']} it will be {degrees} degrees with {sky}."


def _converted(rng: random.Random, asked: Arguments) -> tuple[Any, str]:
    value = rng.randint(10, 9999) / 100
    return {"value": value}, f"{asked['amount']} {asked['source']} is {value} {asked['target']}."


def _counted(rng: random.Random, asked: Arguments) -> tuple[Any, str]:
    count = rng.randint(0, 99)
    return {"count": count}, f"There are {count} {asked['colour']} {asked['thing']}s."


TOOLS = (
    _Tool("forecast", "The weather of the next days in a city.", {"city": _TEXT, "days": _WHOLE}, _forecast, _weather),
    _Tool("send_message", "Send a message to someone.", {"to": _TEXT, "text": _TEXT, "urgent": _FLAG}, _mail,
          lambda rng, asked: ({"sent": True}, f"The message to {asked['to']} is sent.")),
    _Tool("set_timer", "Start a timer.", {"minutes": _WHOLE}, _timer,
          lambda rng, asked: ({"running": True}, f"The timer runs for {asked['minutes']} minutes.")),
    _Tool("convert", "Convert an amount of money.", {"amount": _NUMBER, "source": _TEXT, "target": _TEXT}, _convert,
          _converted),
    _Tool("add_items", "Put things on the shopping list.", {"items": _LIST}, _shop,
          lambda rng, asked: ({"items": len(asked["items"])}, f"The list has {len(asked['items'])} new things.")),
    _Tool("count_things", "How many things of a colour are in the store.", {"thing": _TEXT, "colour": _TEXT}, _stock,
          _counted),
)  # fmt: skip


def functions(rng: random.Random) -> Case:
    """A call, two calls, or the answer that follows from a call's result."""
    tool = rng.choice(TOOLS)
    offered = [tool, *rng.sample([other for other in TOOLS if other is not tool], rng.choice([0, 0, 1, 2]))]
    rng.shuffle(offered)
    definitions = [one.definition for one in offered]
    request, arguments = tool.ask(rng)
    hint = rng.choice(["", "", " Use the function.", f" Use {tool.name}."])
    thoughts = (f"I call {tool.name}.", ("A function can do this.", f"It is {tool.name}.", "All arguments are given."))
    kind = rng.random()
    if kind < 0.5:
        return _call(request + hint, [(tool.name, arguments)], thoughts, definitions)
    if kind < 0.62:
        more, further = tool.ask(rng)
        calls = [(tool.name, arguments), (tool.name, further)]
        return _call(f"{request} {more}", calls, thoughts, definitions)
    result, told = tool.result(rng, arguments)
    messages = [user(request + hint), *_answered(tool.name, arguments, json.dumps(result))]
    thoughts = ("I tell what came back.", ("The function has answered.", "The answer holds what was asked for."))
    key = request + json.dumps(result)
    return Case("functions", key, messages, Said(told), exactly(told), thoughts, tools=definitions)


def _call(
    request: str, calls: list[tuple[str, Arguments]], thoughts: tuple[str, tuple[str, ...]], tools: list[dict[str, Any]]
) -> Case:
    said = Said("", calls=tuple(calls))
    return Case("functions", request, [user(request)], said, same_calls(*calls), thoughts, tools=tools)


def _answered(name: str, arguments: Arguments, result: str) -> list[Message]:
    """A past call and its result."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    ]
