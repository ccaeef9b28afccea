# SPDX-License-Identifier: Apache-2.0
"""A case as the engine would see it: the prompt of its own template, then the reply token by token.

Pictures and clips go through the engine's preprocessing from their pixels; nothing is compressed and read again.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy
from PIL import Image
from sparkpair.chat.reasoning import THINK_CLOSE, THINK_OPEN
from sparkpair.chat.template import ChatTemplate
from sparkpair.chat.tokenizer import Segment, TextTokenizer
from sparkpair.media.canvas import TOKEN_FRAMES
from sparkpair.media.limits import FRAME_TOKENS, MediaLimits
from sparkpair.media.patches import MERGE, Grid, Pixels, cut
from sparkpair.media.pictures import fit_frame

from training.cases import Case, Message, Shown

IMAGE, CLIP = "<|image|>", "<|video|>"
ASSISTANT = "<|assistant|>"
TURNS = ("<|system|>", "<|user|>", ASSISTANT, "<|observation|>")

# Frames a second of a clip that is made here; twice what the engine looks at.
CLIP_RATE = 4

PROMPT_WEIGHT = 0.05
"""How much a prompt's token counts beside a reply's; less in prompts longer than PROMPT_TOKENS."""
PROMPT_TOKENS = 512

# Weights above this are a reply's: that of the longest is larger, and a prompt's smaller.
REPLY = 0.2


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A picture or clip in a document: its patches on their grid, and the positions of its tokens."""

    patches: Pixels
    grid: Grid
    positions: list[int]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Document:
    """Token ids; `weights` say how much it counts to foretell each; `prompt` ids are given, the others the reply."""

    ids: list[int]
    weights: list[float]
    prompt: int
    seen: list[Seen]


def patches_of(shown: Shown) -> tuple[Pixels, Grid, tuple[float, ...]]:
    """Patches, grid, and the seconds of a clip's pairs, as the engine has them of a lossless file."""
    limits = MediaLimits()
    images = [Image.fromarray(frame) for frame in shown.frames]
    if shown.kind == "picture":
        return *cut([fit_frame(images[0], TOKEN_FRAMES, limits.picture_tokens)] * TOKEN_FRAMES), ()
    each = round(shown.seconds * 2)  # two frames a second are looked at
    count = each * len(images)
    budget = min(limits.clip_tokens, FRAME_TOKENS * count // TOKEN_FRAMES)
    frames = [fit_frame(image, count, budget) for image in images for _ in range(each)]
    return *cut(frames), tuple(index / 2 for index in range(0, count, TOKEN_FRAMES))


class Encoder:
    """Encodes cases with the text files of a checkpoint."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.tokenizer = TextTokenizer.load(directory)
        self.template = ChatTemplate.load(directory, self.tokenizer)

    def prompt(self, case: Case) -> tuple[list[int], list[Seen]]:
        """The ids with which a request of this case begins."""
        ids, seen = self._ids(case, _for_template(case.messages), generate=True)
        return ids, seen

    def document(self, case: Case) -> Document:
        """The whole case; the token that ends the reply is the last."""
        said = case.wanted
        calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in said.calls]
        reply = {"role": "assistant", "content": said.content, "reasoning_content": said.reasoning, "tool_calls": calls}
        ids, seen = self._ids(case, [*_for_template(case.messages), reply], generate=False)
        markers = self.tokenizer.marker_ids
        ids.append(markers["<|observation|>" if calls else "<|user|>"])
        begin = len(ids) - 1 - ids[::-1].index(markers[ASSISTANT])
        prompt = 1 + ids.index(markers[THINK_OPEN if case.thinking else THINK_CLOSE], begin)
        return Document(ids, self._weights(ids, prompt), prompt, seen)

    def _weights(self, ids: list[int], prompt: int) -> list[float]:
        """Short replies count more a token, so that a long one does not outweigh ten of them."""
        markers = self.tokenizer.marker_ids
        weights = [PROMPT_WEIGHT * min(1.0, PROMPT_TOKENS / max(1, prompt))] * prompt
        reply = len(ids) - prompt
        weights += [4.0 * reply**-0.5] * reply
        for index in range(prompt):
            if ids[index] == markers[IMAGE]:
                weights[index] = 0.0
        # What was answered before is an answer too.
        turns = {markers[turn] for turn in TURNS}
        inside = False
        for index in range(prompt):
            if inside:
                weights[index] = 1.0
            if ids[index] in turns:
                inside = False
            elif ids[index] == markers[THINK_CLOSE]:
                inside = True
        return weights

    def _ids(self, case: Case, messages: list[Message], *, generate: bool) -> tuple[list[int], list[Seen]]:
        rendered = self.template.render(
            messages, tools=case.tools, thinking=case.thinking, effort=case.effort, add_generation_prompt=generate
        )
        return self._expand(rendered.segments, _shown(case.messages))

    def _expand(self, segments: Sequence[Segment], shown: list[Shown]) -> tuple[list[int], list[Seen]]:
        """Ids with every picture's and clip's tokens in the place of its marker."""
        ids: list[int] = []
        seen: list[Seen] = []
        markers = self.tokenizer.marker_ids
        for text, is_marker in segments:
            if not is_marker:
                ids += self.tokenizer.encode_text(text)
            elif text not in (IMAGE, CLIP):
                ids.append(markers[text])
            else:
                patches, grid, seconds = patches_of(shown[len(seen)])
                positions: list[int] = []
                tokens = grid[1] * grid[2] // MERGE**2
                for second in seconds or (None,):
                    if second is not None:
                        ids.append(markers["<|begin_of_image|>"])
                    positions += range(len(ids), len(ids) + tokens)
                    ids += [markers[IMAGE]] * tokens
                    if second is not None:
                        ids.append(markers["<|end_of_image|>"])
                        ids += self.tokenizer.encode_text(f"{second:.1f} seconds")
                seen.append(Seen(patches, grid, positions))
        return ids, seen


def _shown(messages: list[Message]) -> list[Shown]:
    return [
        part["shown"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "shown"
    ]


def _for_template(messages: list[Message]) -> list[Message]:
    """Messages as the template takes them: arguments of calls as objects, pictures and clips by their kind."""
    return [{name: _part_of(name, value) for name, value in message.items()} for message in messages]


def _part_of(name: str, value: Any) -> Any:
    if name == "tool_calls":
        calls = [call | {"function": dict(call["function"])} for call in value]
        for call in calls:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return calls
    if name == "content" and isinstance(value, list):
        kinds = {"picture": "image", "clip": "video"}
        return [part if part["type"] == "text" else {"type": kinds[part["shown"].kind]} for part in value]
    return value


def noisy(document: Document, generator: numpy.random.Generator) -> Document:
    """The document with its pictures a little off, as compression leaves them."""
    seen = []
    for one in document.seen:
        shift = generator.integers(-6, 7, (1, one.patches.shape[1] // 196, 1))
        values = one.patches.reshape(one.patches.shape[0], -1, 196) + shift
        values = values + generator.integers(-2, 3, values.shape)
        patches = numpy.clip(values, 0, 255).astype(numpy.uint8).reshape(one.patches.shape)
        seen.append(dataclasses.replace(one, patches=patches))
    return dataclasses.replace(document, seen=seen)
