# SPDX-License-Identifier: Apache-2.0
"""The training loop: as many steps as fit into some minutes, from where the last run ended.

In a directory whose experts are EXL3 it finishes the model: these stay, the rest learns to live with their rounding, at
a rate that rises and falls once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pathlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from sparkpair.checkpoint.miniature import place_token_ids
from torch import Tensor, nn

from training import experts, state
from training.losses import Losses, Stepper, measure
from training.mixture import Rows
from training.optimiser import Optimiser
from training.packing import Batches, loader, shape_of
from training.plan import Size, model_document
from training.twin.batch import Batch
from training.twin.model import Twin, products_dtype
from training.twin.moe import balance
from training.vocabulary import SAMPLE, write_text_files

# Shares of steps by kind of rows, and from which part of the whole plan on.
CURRICULUM: tuple[tuple[float, dict[Rows, float]], ...] = (
    (0.0, {"short": 1.0}),
    (0.12, {"short": 0.8, "middle": 0.2}),
    (0.3, {"short": 0.7, "middle": 0.16, "long": 0.14}),
)

# Of a model that is being finished.
FINISHING: dict[Rows, float] = {"short": 0.84, "middle": 0.1, "long": 0.06}

# Until this part of the plan half of the longer rows attend to everything, for the indexers to learn from.
SHOWN_EVERYTHING = 0.5

# The highest rates of training and of finishing.
RATE = 4e-3
FINISHING_RATE = 1e-3

# How far the routers' biases move in a step at the highest rate.
BALANCE_RATE = 0.002
WARM_UP_STEPS = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """`work` holds text files, state and log. `minutes` of this run, `plan` minutes of all runs together.

    `tokens` of a batch; `rate`, the highest, None for the usual one; `workers` processes that make batches. `length`,
    for tests: all rows are short ones of so many tokens. `steps` ends a run early. Figures are told every `log_every`
    seconds, and everything is saved every `save_every`.
    """

    work: pathlib.Path
    minutes: float
    plan: float
    size: Size = "full"
    tokens: int = 32768
    rate: float | None = None
    workers: int = 0
    device: str = "cpu"
    seed: int = 1
    capture: bool = True
    steps: int | None = None
    length: int | None = None
    log_every: float = 5.0
    save_every: float = 60.0


def prepare(work: pathlib.Path, size: Size) -> dict[str, Any]:
    """The text files in `work`, made once, and the config.json document that goes with them."""
    document = model_document(size)
    target = work / "text"
    if not (target / "config.json").exists():
        target.mkdir(parents=True, exist_ok=True)
        sample = SAMPLE if size == "full" else SAMPLE // 10
        layout = write_text_files(target, document["text_config"]["vocab_size"], sample=sample)
        place_token_ids(document, layout)
        (target / "config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    whole: dict[str, Any] = json.loads((target / "config.json").read_text(encoding="utf-8"))
    return whole


def rate_at(part: float, steps: int, peak: float) -> float:
    """The learning rate at a part of the plan: a short rise in each run, then down along a cosine to a fiftieth."""
    rise = min(1.0, (steps + 1) / WARM_UP_STEPS)
    fall = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))
    return peak * rise * fall


def drawn(shares: dict[Rows, float], rng: random.Random) -> Rows:
    """A kind of rows, drawn by the shares."""
    (kind,) = rng.choices(list(shares), list(shares.values()))
    return kind


def kind_at(part: float, rng: random.Random) -> tuple[Rows, bool]:
    """The kind of the next batch's rows, and whether they attend to everything."""
    kind = drawn(next(shares for start, shares in reversed(CURRICULUM) if part >= start), rng)
    return kind, kind != "short" and part < SHOWN_EVERYTHING and rng.random() < 0.5


class Subject(Protocol):
    """What a run trains: a model whose parameters are stepped, the directory of its state, its usual highest rate."""

    model: nn.Module
    home: pathlib.Path
    rate: float

    def measure(self, batch: Batch, *, everything: bool) -> Losses:
        """The losses of a batch, by which the model is stepped."""

    def settle(self, share: float) -> None:
        """After a step at this share of the highest rate."""

    def next_rows(self, part: float, rng: random.Random) -> tuple[Rows, bool]:
        """At a part of the plan: the kind of the next batch's rows, and whether they attend to everything."""


class WholeModel:
    """The miniature itself with its MTP head and tower; experts that are EXL3 stay. Implements Subject."""

    def __init__(self, settings: Settings) -> None:
        document = prepare(settings.work, settings.size)
        twin = Twin(document, products_dtype(settings.device)).to(settings.device)
        self._finishing = experts.encoded(settings.work)
        if self._finishing:
            experts.freeze(twin)
        self._twin = twin.train()
        self.model: nn.Module = twin
        self.home = settings.work
        self.rate = FINISHING_RATE if self._finishing else RATE

    def measure(self, batch: Batch, *, everything: bool) -> Losses:
        """See Subject."""
        return measure(self._twin, batch, everything=everything)

    def settle(self, share: float) -> None:
        """See Subject."""
        balance(self._twin, BALANCE_RATE * share)

    def next_rows(self, part: float, rng: random.Random) -> tuple[Rows, bool]:
        """See Subject."""
        return (drawn(FINISHING, rng), False) if self._finishing else kind_at(part, rng)


class Run:
    """A run of the loop. The model is seeded, but which batch comes at which learning rate depends on the clock."""

    def __init__(
        self,
        settings: Settings,
        batches: Callable[[Rows], Iterator[Batch]] | None = None,
        subject: Callable[[Settings], Subject] = WholeModel,
    ) -> None:
        """`batches` makes the batches of a kind, by default from all skills; `subject` makes what is trained."""
        self.settings = settings
        self.device = torch.device(settings.device)
        torch.manual_seed(settings.seed)
        self.subject = subject(settings)
        self.model = self.subject.model
        self.optimiser = Optimiser(self.model, self.device)
        self.progress = state.load(self.subject.home, self.model, self.optimiser) or state.Progress()
        self.stepper = Stepper(self.model, self.subject.measure, self.device, capture=settings.capture)
        self._make = batches or self._loader
        self._sources: dict[Rows, Iterator[Batch]] = {}
        self._rng = random.Random(f"{settings.seed} {self.progress.steps}")

    def _loader(self, kind: Rows) -> Iterator[Batch]:
        settings = self.settings
        share = {"short": 0.5, "middle": 0.25, "long": 0.25}[kind]
        workers = max(1, round(settings.workers * share)) if settings.workers else 0
        shape = shape_of(kind, settings.tokens, settings.length)
        seed = settings.seed + 1000 * self.progress.steps
        batches = Batches(kind, shape, settings.work / "text", seed)
        return loader(batches, workers, pin=self.device.type == "cuda")

    def batch(self, kind: Rows) -> Batch:
        """The next batch of a kind; its workers start with the first."""
        if kind not in self._sources:
            self._sources[kind] = self._make(kind)
        return next(self._sources[kind])

    def train(self, say: Callable[[dict[str, Any]], None]) -> None:
        """Step until the minutes are over, telling `say` the figures and saving now and then, and at the end."""
        settings, progress = self.settings, self.progress
        peak = settings.rate or self.subject.rate
        begun = told = saved = time.monotonic()
        before = progress.minutes
        first, tokens = progress.steps, progress.tokens
        while time.monotonic() - begun < settings.minutes * 60:
            if settings.steps is not None and progress.steps - first >= settings.steps:
                break
            part = progress.minutes / settings.plan
            kind, everything = self.subject.next_rows(part, self._rng) if settings.length is None else ("short", False)
            batch = self.batch(kind)
            rate = rate_at(part, progress.steps - first, peak)
            parts = self.stepper.backward(batch, everything=everything)
            self.optimiser.step(rate, pictures=kind == "short")
            self.subject.settle(rate / peak)
            progress.steps += 1
            progress.tokens += batch.tokens.numel()
            now = time.monotonic()
            progress.minutes = before + (now - begun) / 60
            if now - told >= settings.log_every:
                speed = (progress.tokens - tokens) / (now - told)
                say(self._figures(parts, kind, rate) | {"tokens_per_s": round(speed)})
                told, tokens = now, progress.tokens
                # Only after figures: they are where a loss that is no number ends the run.
                if now - saved >= settings.save_every:
                    state.save(self.subject.home, self.model, self.optimiser, progress)
                    saved = now
        state.save(self.subject.home, self.model, self.optimiser, progress)

    def _figures(self, told: dict[str, Tensor], kind: Rows, rate: float) -> dict[str, Any]:
        progress = self.progress
        parts = {name: round(float(part), 4) for name, part in told.items()}
        for name, part in parts.items():
            if not math.isfinite(part):
                raise FloatingPointError(f"{name} is {part} at step {progress.steps}")
        notes = {"notes": self.stepper.notes[:]} if self.stepper.notes else {}
        self.stepper.notes.clear()
        return {"minutes": round(progress.minutes, 3), "step": progress.steps, "rows": kind, "rate": round(rate, 6)} | (
            parts | notes
        )


def log_to(path: pathlib.Path) -> contextlib.AbstractContextManager[Callable[[dict[str, Any]], None]]:
    """A file of JSON lines, which are printed too."""

    @contextlib.contextmanager
    def opened() -> Iterator[Callable[[dict[str, Any]], None]]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:

            def say(figures: dict[str, Any]) -> None:
                line = json.dumps(figures)
                print(line, flush=True)
                file.write(line + "\n")
                file.flush()

            yield say

    return opened()
