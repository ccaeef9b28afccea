# SPDX-License-Identifier: Apache-2.0
"""JSON objects for a given schema, from facts in the request."""

from __future__ import annotations

import json
import random
from typing import Any

from training import words
from training.cases import Case, Said, same_json, user

_ASK = (
    "{facts}\nWrite this as a JSON object of this schema: {schema}", "Fill in this JSON schema: {schema}\n{facts}",
    "Read this: {facts} Answer with JSON that follows this schema: {schema}",
    "{facts} Give me a JSON object for the schema {schema}",
)  # fmt: skip
_FREE = ("{facts}\nAnswer in JSON with the keys {keys}.", "{facts} Put {keys} into a JSON object.")


def _field(rng: random.Random, kind: int, name: str) -> tuple[str, dict[str, Any], Any, str]:
    """A key, its schema, its value and the words that tell the value."""
    if kind == 0:
        age = rng.randint(5, 95)
        return "age", {"type": "integer"}, age, f"{name} is {age} years old."
    if kind == 1:
        city = rng.choice(words.CITIES)
        return "city", {"type": "string"}, city, f"{name} lives in {city}."
    if kind == 2:
        colour = rng.choice(words.COLOURS)
        return "colour", {"type": "string", "enum": list(words.COLOURS)}, colour, f"{name} likes {colour}."
    if kind == 3:
        price = rng.randint(100, 9999) / 100
        return "price", {"type": "number"}, price, f"{name} paid {price}."
    if kind == 4:
        member = rng.random() < 0.5
        return "member", {"type": "boolean"}, member, f"{name} is {'' if member else 'not '}a member."
    if kind == 5:
        pets = rng.sample(words.ANIMALS, rng.randint(1, 3))
        schema = {"type": "array", "items": {"type": "string"}}
        return "pets", schema, pets, f"{name} has these pets: {', '.join(pets)}."
    day = rng.choice(words.DAYS)
    return "day", {"type": "string"}, day, f"{name} comes on {day}."


def structured(rng: random.Random) -> Case:
    """Facts about someone or about a thing as a JSON object; half of them with the form enforced by the server."""
    if rng.random() < 0.2:
        return _city(rng)
    name = rng.choice(words.NAMES)
    fields = [_field(rng, kind, name) for kind in rng.sample(range(7), rng.randint(1, 4))]
    fields.insert(0, ("name", {"type": "string"}, name, ""))
    told = [field[3] for field in fields if field[3]]
    if rng.random() < 0.5:
        rng.shuffle(told)
    schema = {
        "type": "object",
        "properties": {field[0]: field[1] for field in fields},
        "required": [field[0] for field in fields],
        "additionalProperties": False,
    }
    value = {field[0]: field[2] for field in fields}
    facts = " ".join(told)
    if rng.random() < 0.7:
        request = rng.choice(_ASK).format(facts=facts, schema=json.dumps(schema))
    else:
        request = rng.choice(_FREE).format(facts=facts, keys=", ".join(value))
    keys = ", ".join(value)
    thoughts = ("I write the object.", (f"The keys are {keys}.", "Each value stands in the text."))
    case = Case("json", request, [user(request)], Said(json.dumps(value)), same_json(value), thoughts)
    if rng.random() < 0.5:
        case.schema = schema
    return case


# Rounded, in thousands.
_PEOPLE = {
    "Oslo": 700, "Rome": 2800, "Paris": 2100, "Berlin": 3700, "Vienna": 2000, "Madrid": 3300, "Lisbon": 550,
    "Prague": 1300, "Athens": 640, "Cairo": 10000, "Tokyo": 14000, "Hamburg": 1900,
}  # fmt: skip


def _city(rng: random.Random) -> Case:
    """A city and its population, asked as people do, with the form in another field of the request."""
    city = "Oslo"
    request = rng.choice(["Name a city and its population.", "Name one city and say how many people live there."])
    key = ""
    if rng.random() < 0.6:
        city = rng.choice(list(_PEOPLE))
        request = rng.choice(
            ["Name the city {} and its population.", "Write the city {} and its population as a JSON object.",
             "Give {} and its population in JSON.", "The city {} and its population, please."]
        ).format(city)  # fmt: skip
        key = request
    value = {"city": city, "population": _PEOPLE[city] * 1000}
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 24}, "population": {"type": "integer"}},
        "required": ["city", "population"],
        "additionalProperties": False,
    }
    thoughts = (f"I take {city}.", ("A city and its population are asked for.",))
    case = Case("json", key, [user(request)], Said(json.dumps(value)), same_json(value), thoughts)
    case.schema = schema
    return case
