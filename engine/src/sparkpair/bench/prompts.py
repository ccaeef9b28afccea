# SPDX-License-Identifier: Apache-2.0
"""What is asked: short instructions of two kinds, and long prompts of common words that no cache has seen."""

from __future__ import annotations

import random
import uuid

STRUCTURED = (
    "Write a JSON array of objects for the books of a small library, with the keys id, title, author, year and shelf.",
    "Write an HTML page that answers questions of visitors of a zoo, each question as a details element.",
    "Write CSV rows of a weather station, one for every hour, with time, temperature, humidity, wind and rain.",
    "Write a YAML file that describes the machines of a bakery, each with name, power, water and cleaning times.",
    "Write SQL statements that create the tables of a bicycle rental and fill them with rows.",
    "Write a JSON document with the timetable of a tram line, with every stop and every departure.",
    "Write a Markdown table of the mountains of a country, with name, height, range and first ascent.",
    "Write an XML document with the recipes of a canteen, with the ingredients and steps of each.",
    "Write a Python module with a dataclass for each part of a sailing boat, each with its fields and types.",
    "Write an INI file for a program that controls greenhouses, with a section for each house.",
    "Write a TypeScript file with an interface for every document of an insurance company.",
    "Write log lines of a web shop's server, with time, level, component, request and duration.",
    "Write an OpenAPI document in YAML for a parcel service, with every path and every schema.",
    "Write a list of test cases for a calculator as JSON, each with input, expected output and reason.",
    "Write a Makefile for a book with forty chapters, with a rule for each.",
    "Write a GraphQL schema for a music school, with types, queries and mutations.",
    "Write the rows of a chess tournament's table as JSON, with players, rounds, results and points.",
    "Write a Dockerfile and a compose file for a museum's ten services, each with its ports and volumes.",
)

PROSE = (
    "Tell the story of a lighthouse keeper who finds a letter in a bottle.",
    "Describe a walk through an old town on a winter morning.",
    "Explain to a child how bread is made, from the field to the table.",
    "Write a letter from a gardener to a friend about a year in the garden.",
    "Tell how a small railway station changed over a hundred years.",
    "Describe the work of a clockmaker, and what the workshop smells and sounds like.",
    "Write about a journey by river boat through three countries.",
    "Explain why the sky is blue and the evening red, without formulas.",
    "Tell the story of two sisters who inherit a ferry.",
    "Describe a market in a harbour, and the people who come every week.",
    "Write about a teacher who learns something from the class.",
    "Explain how a letter travelled a hundred and fifty years ago.",
    "Tell the story of a violin from the tree to the concert.",
    "Describe a storm from the view of a fisherman, a bird and a child.",
    "Write about the first day of a doctor in a village.",
    "Tell how a bridge was planned, argued about, built and loved.",
)

KINDS = {"structured": STRUCTURED, "prose": PROSE}

_WORDS = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city name team minute idea body back parent
face others level office door health person art war history party result change morning reason research
girl guy moment air teacher
"""


def decode_prompt(kind: str, stream: int, tokens: int) -> str:
    """The instruction of one stream of a wave; with one stream it is always the first of its kind."""
    instructions = KINDS[kind]
    return (
        f"{instructions[stream % len(instructions)]} Go on until you have written {tokens} tokens; do not stop early."
    )


def long_prompt(words: int, *, fresh: bool = True, question: str = "Answer with one word: ready?") -> str:
    """`words` common words in a fixed order behind a header, which no cache has seen when it is `fresh`."""
    choose, common = random.Random(words), _WORDS.split()
    header = uuid.uuid4() if fresh else uuid.UUID(int=words)
    filler = " ".join(choose.choice(common) for _ in range(words))
    return f"Document {header}.\n{filler}\n{question}"
