# SPDX-License-Identifier: Apache-2.0
"""What the drafter learns from: the target's own probabilities behind anchors that are drawn from a batch's text.

The rows of a block are to give the tokens that the target finds likely, each by itself; the selector's scores of a
row's candidates, behind the token that really came before, are to fit the same probabilities.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from training.encode import REPLY
from training.losses import Losses
from training.twin.batch import Batch
from training.twin.drafter import Drafter, blocks_at
from training.twin.model import Twin

# Columns of a row for every anchor, and the most anchors of a row.
COLUMNS = 16
MOST = 128

PROMPT_CHANCE = 0.02
"""How often an anchor lies in a prompt, beside 1 for a reply: that text is hardly ever drafted."""

# How much a row of a block counts beside the row before it, which has to be right for it to be of use.
FURTHER = 0.85


@dataclasses.dataclass(frozen=True, slots=True)
class Lesson:
    """What the guesses [B, A, N] behind every anchor are measured by.

    `columns` of the batch's rows hold the tokens that come before the guessed ones; `counts` bool says which count.
    """

    anchors: Tensor
    columns: Tensor
    counts: Tensor


def draw_lesson(batch: Batch, guesses: int) -> Lesson:
    """Draw anchors on the batch's device; only with calls that a graph can hold."""
    length = batch.tokens.shape[1]
    chance = (batch.weights > REPLY).float() + PROMPT_CHANCE * ((batch.weights > 0) & (batch.weights <= REPLY))
    noise = -torch.log(-torch.log(torch.rand_like(chance).clamp(1e-7, 1 - 1e-6)))
    drawn, anchors = (torch.log(chance) + noise).topk(max(1, min(MOST, length // COLUMNS)), dim=1)
    ahead = anchors.unsqueeze(2) + torch.arange(guesses, device=anchors.device)
    columns = ahead.clamp(max=length - 1)

    def at(values: Tensor) -> Tensor:
        return values.gather(1, columns.flatten(1)).view(columns.shape)

    # A chain ends where the text does, or where something is shown.
    told = (at(batch.weights) > 0) & (at(batch.document) == batch.document.gather(1, anchors).unsqueeze(2))
    counts = (told & (ahead < length)).cumprod(2).bool() & torch.isfinite(drawn).unsqueeze(2)
    return Lesson(anchors, columns, counts)


def measure_drafts(target: Twin, drafter: Drafter, batch: Batch) -> Losses:
    """How far the guesses' probabilities are from the target's, without the selector and with it.

    `accepted` tokens of a round are those up to the first that the target would not say, `possible` all that count.
    """
    config = drafter.config
    guesses = config.block_size - 1
    with torch.no_grad():
        passed = target(batch, taps=config.taps)
        assert passed.taps is not None
        lesson = draw_lesson(batch, guesses)
        shape = lesson.columns.shape
        rows = torch.arange(shape[0], device=batch.tokens.device).view(-1, 1, 1)
        previous = batch.tokens[rows, lesson.columns]
        wanted = torch.log_softmax(target.logits(passed.hidden[rows, lesson.columns]), dim=-1)
        # A guess is of use only when those before it in its block are right.
        weights = lesson.counts * FURTHER ** torch.arange(guesses, device=rows.device)
        weights = weights / weights.sum().clamp(min=1e-6)
    blocks = blocks_at(lesson.anchors, batch.document, batch.position, config)
    embedding = target.model.language_model.embed_tokens.weight.detach()
    hidden = drafter(passed.taps, batch.position, batch.tokens.gather(1, lesson.anchors), blocks, embedding)[:, :, 1:]
    logits = target.logits(hidden)
    probable = wanted.exp()
    unary = (probable * (wanted - torch.log_softmax(logits, dim=-1))).sum(-1)
    values, candidates = logits.topk(config.selector_top_k, dim=-1)
    scores = values + drafter.candidate_selector(hidden, previous, candidates)
    among = probable.gather(-1, candidates)
    share = among.sum(-1)
    inside = among / share.clamp(min=1e-6).unsqueeze(-1)
    spread = (inside * (inside.clamp(min=1e-9).log() - torch.log_softmax(scores, dim=-1))).sum(-1)
    losses = {"unary": (weights * unary).sum(), "edges": (weights * share * spread).sum()}
    with torch.no_grad():
        picks = candidates.gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1)
        right = ((picks == wanted.argmax(-1)) & lesson.counts).cumprod(2)
        begun = lesson.counts[:, :, 0].sum().clamp(min=1)
        figures = {"accepted": right.sum() / begun, "possible": lesson.counts.sum() / begun}
    return Losses(losses["unary"] + losses["edges"], losses | figures)
