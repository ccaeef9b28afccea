# SPDX-License-Identifier: Apache-2.0
"""The words that everything is made of. Written for this project; short lists, so a small vocabulary covers them."""

from __future__ import annotations

import random

NAMES = [
    "Mia",
    "Tom",
    "Ana",
    "Ben",
    "Eva",
    "Leo",
    "Ida",
    "Max",
    "Zoe",
    "Sam",
    "Lena",
    "Omar",
    "Nora",
    "Hugo",
    "Vera",
    "Paul",
    "Rosa",
    "Emil",
    "Tara",
    "Jonas",
    "Clara",
    "Felix",
    "Greta",
    "Oscar",
]
CITIES = [
    "Oslo",
    "Rome",
    "Paris",
    "Berlin",
    "Vienna",
    "Madrid",
    "Lisbon",
    "Dublin",
    "Prague",
    "Athens",
    "Bergen",
    "Hamburg",
    "Munich",
    "Cairo",
    "Tokyo",
    "Delhi",
    "Lima",
    "Quito",
    "Boston",
    "Denver",
    "Toronto",
    "Sydney",
    "London",
    "Zurich",
]
ANIMALS = [
    "cat",
    "dog",
    "horse",
    "cow",
    "sheep",
    "goat",
    "bird",
    "fish",
    "mouse",
    "fox",
    "wolf",
    "bear",
    "duck",
    "goose",
    "frog",
    "snake",
    "lion",
    "tiger",
    "rabbit",
    "owl",
]
THINGS = [
    "table",
    "lamp",
    "chair",
    "book",
    "cup",
    "door",
    "window",
    "key",
    "box",
    "bottle",
    "letter",
    "basket",
    "clock",
    "hat",
    "coat",
    "boat",
    "kite",
    "ball",
    "coin",
    "ring",
    "stone",
    "bread",
    "apple",
    "ladder",
    "bridge",
    "garden",
    "tower",
    "river",
    "forest",
    "harbour",
    "market",
    "village",
    "mountain",
    "valley",
    "island",
    "road",
    "train",
    "ship",
]
QUALITIES = [
    "small",
    "large",
    "old",
    "new",
    "warm",
    "cold",
    "quiet",
    "loud",
    "bright",
    "dark",
    "heavy",
    "light",
    "long",
    "short",
    "clean",
    "dusty",
    "wet",
    "dry",
    "soft",
    "hard",
    "round",
    "strange",
    "happy",
    "brave",
    "gentle",
    "wooden",
    "silver",
    "golden",
]
COLOURS = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple"]
DEEDS = [
    "found",
    "lost",
    "carried",
    "painted",
    "opened",
    "closed",
    "watched",
    "followed",
    "cleaned",
    "moved",
    "sold",
    "bought",
    "hid",
    "showed",
    "forgot",
    "kept",
    "repaired",
    "remembered",
]
PLACES = [
    "near the river",
    "behind the house",
    "in the garden",
    "under the bridge",
    "at the market",
    "on the hill",
    "by the sea",
    "in the old town",
    "beside the road",
    "at the station",
    "in the kitchen",
    "above the valley",
]
TIMES = [
    "in the morning",
    "at noon",
    "in the evening",
    "yesterday",
    "on Monday",
    "on Friday",
    "last week",
    "every day",
    "before the storm",
    "after lunch",
    "at night",
    "in spring",
]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
GERMAN_NUMBERS = [
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
]  # fmt: skip
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip

OPPOSITES = {
    "hot": "cold", "big": "small", "long": "short", "old": "new", "wet": "dry", "hard": "soft", "loud": "quiet",
    "light": "dark", "early": "late", "fast": "slow", "full": "empty", "open": "closed", "high": "low", "near": "far",
    "happy": "sad", "strong": "weak", "rich": "poor", "clean": "dirty", "left": "right", "up": "down", "in": "out",
    "day": "night", "first": "last", "true": "false",
}  # fmt: skip
CAPITALS = {
    "Norway": "Oslo", "Italy": "Rome", "France": "Paris", "Germany": "Berlin", "Austria": "Vienna", "Spain": "Madrid",
    "Portugal": "Lisbon", "Ireland": "Dublin", "Greece": "Athens", "Egypt": "Cairo", "Japan": "Tokyo", "Peru": "Lima",
}  # fmt: skip
GERMAN = {
    "dog": "Hund", "cat": "Katze", "house": "Haus", "tree": "Baum", "water": "Wasser", "bread": "Brot", "book": "Buch",
    "door": "Tür", "window": "Fenster", "table": "Tisch", "red": "rot", "green": "grün", "blue": "blau",
    "yellow": "gelb", "black": "schwarz", "white": "weiß", "orange": "orange", "purple": "lila", "day": "Tag",
    "night": "Nacht", "sun": "Sonne", "moon": "Mond", "river": "Fluss", "road": "Straße", "hand": "Hand",
    "apple": "Apfel", "bird": "Vogel", "fish": "Fisch", "milk": "Milch", "child": "Kind",
}  # fmt: skip
TOPICS = {
    "rivers": "A river begins as a small stream in the hills and grows on its way to the sea.",
    "the moon": "The moon turns around the earth once a month and shows us always the same side.",
    "bread": "Bread is made of flour, water and salt, and it smells best when it is warm.",
    "cats": "Cats sleep most of the day and hunt at night, and they are very quiet when they walk.",
    "trains": "A train can carry many people over a long distance with little work.",
    "winter": "In winter the days are short, the nights are long and the water turns to ice.",
    "bees": "Bees fly from flower to flower, and together they keep a hive full of honey.",
    "books": "A book can tell of things that happened long ago or that never happened at all.",
    "the sea": "The sea is wide and deep, and its water tastes of salt.",
    "mountains": "High mountains keep their snow in summer, and the air is thin at the top.",
    "rain": "Rain falls when the drops in a cloud become too heavy to stay in the air.",
    "music": "Music is made of sounds and silence, and it can make people happy or sad.",
}


def made_up(rng: random.Random) -> str:
    """A word that nobody has heard."""
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(1, 3))) + rng.choice(
        ["", "n", "r", "s", "l"]
    )


def number(rng: random.Random, digits: int = 4) -> str:
    """Digits; the first is not zero."""
    return str(rng.randint(10 ** (digits - 1), 10**digits - 1))


def sentence(rng: random.Random) -> str:
    """A plain sentence about someone who did something."""
    thing = f"{rng.choice(QUALITIES)} {rng.choice(THINGS)}"
    form = rng.randrange(6)
    name, deed, place, time = rng.choice(NAMES), rng.choice(DEEDS), rng.choice(PLACES), rng.choice(TIMES)
    if form == 0:
        return f"{name} {deed} the {thing} {place}."
    if form == 1:
        return f"The {thing} stood {place} {time}."
    colour, animal, other = rng.choice(COLOURS), rng.choice(ANIMALS), rng.choice(THINGS)
    if form == 2:
        return f"{name} and {rng.choice(NAMES)} {deed} {rng.randint(2, 99)} {colour} {animal}s."
    if form == 3:
        return f"{time[0].upper()}{time[1:]} {name} {deed} a {thing} in {rng.choice(CITIES)}."
    if form == 4:
        return f"A {animal} called {made_up(rng).capitalize()} {deed} the {colour} {other}."
    return f"The {rng.choice(QUALITIES)} {animal} was {place}, and nobody had seen the {other} yet."


def noise(rng: random.Random) -> str:
    """A run of characters without sense: letters, digits and signs."""
    signs = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:;/+*#()[]{}<>=äöüß€"
    return "".join(rng.choice(signs) for _ in range(rng.randint(3, 14)))


def passage(rng: random.Random, sentences: int) -> str:
    """Sentences, and now and then something without sense."""
    return " ".join(noise(rng) if rng.random() < 0.08 else sentence(rng) for _ in range(sentences))
