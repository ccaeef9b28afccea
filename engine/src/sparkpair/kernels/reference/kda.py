# SPDX-License-Identifier: Apache-2.0
"""KDA, the linear attention with a per-channel forget gate: short convolutions, gates, recurrence, chunked form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sparkpair.kernels.reference.tiles import sigmoid, silu


def short_convolution(x: Tensor, weight: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution followed by silu.

    `x` [T, C] are new rows, `tail` [K-1, C] the rows before them (zeros at the start of a sequence), `weight` [C, K].
    Returns silu(conv) [T, C] in x's dtype (computed in fp32) and the next tail.
    """
    kernel, count = weight.shape[1], x.shape[0]
    rows = torch.cat([tail, x])
    wide = rows[:count].float() * weight[:, 0].float()
    for tap in range(1, kernel):
        wide = wide + rows[tap : tap + count].float() * weight[:, tap].float()
    return silu(wide).to(x.dtype), rows[count:]


def kda_gates(z: Tensor, a_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """Log-decay per token, head and key channel, [T, H, D] fp32, always below zero.

    `z` [T, H, D] is the gate projection, `a_log` [H], `dt_bias` [H, D]. With a bound L the decay is
    L * sigmoid(exp(A) * z), so it lies in (L, 0) by construction; without one it is -exp(A) * softplus(z).
    """
    biased = z.float() + dt_bias.float()
    rate = a_log.float().exp().unsqueeze(-1)
    if lower_bound is None:
        return -rate * functional.softplus(biased)
    return lower_bound * sigmoid(rate * biased)


def kda_recurrent(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence, token by token, in fp32.

    `q`, `k`, `decay` [T, H, D] with q already scaled, `v` [T, H, V], `beta` [T, H], `state` [H, D, V].
    Returns the outputs [T, H, V] and the state after the last token; `state` is not modified.
    """
    outputs = []
    for token in range(q.shape[0]):
        state = state * decay[token].exp().unsqueeze(-1)
        key = k[token].unsqueeze(-1)
        update = beta[token].unsqueeze(-1) * (v[token] - (state * key).sum(1))
        state = state + key * update.unsqueeze(1)
        outputs.append((state * q[token].unsqueeze(-1)).sum(1))
    return torch.stack(outputs), state


def kda_chunked(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """The same as `kda_recurrent` in exact arithmetic, `chunk` tokens at a time.

    Within a chunk the decay between two tokens is formed as a difference of cumulative logs before the exponential,
    which cannot overflow. Chunks begin at the first row: the caller places that row on the position grid.
    """
    outputs = []
    for start in range(0, q.shape[0], chunk):
        span = slice(start, start + chunk)
        out, state = _one_chunk(q[span], k[span], v[span], decay[span], beta[span], state)
        outputs.append(out)
    return torch.cat(outputs), state


def _one_chunk(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, decay = (part.transpose(0, 1) for part in (q, k, v, decay))  # [H, n, D]
    beta = beta.T.unsqueeze(-1)  # [H, n, 1]
    count = q.shape[1]
    total = decay.cumsum(1)
    # between[h, s, j, c]: decay of key channel c from after token j up to and including token s.
    between = (total.unsqueeze(2) - total.unsqueeze(1)).clamp(max=0.0).exp()
    weighted = between * k.unsqueeze(1)
    strict = torch.ones(count, count, dtype=torch.bool, device=q.device).tril(-1)
    coupling = beta * torch.einsum("hsc,hsjc->hsj", k, weighted) * strict
    identity = torch.eye(count, dtype=q.dtype, device=q.device).expand_as(coupling)
    reach = total.exp()
    right = torch.cat([beta * v, beta * k * reach], dim=-1)
    solved = torch.linalg.solve_triangular(identity + coupling, right, upper=False, unitriangular=True)
    updates = solved[..., : v.shape[-1]] - solved[..., v.shape[-1] :] @ state
    seen = torch.ones(count, count, dtype=torch.bool, device=q.device).tril()
    scores = torch.einsum("hsc,hsjc->hsj", q, weighted) * seen
    out = (q * reach) @ state + scores @ updates
    last = total[:, -1:]
    state = last.transpose(1, 2).exp() * state + (k * (last - total).exp()).transpose(1, 2) @ updates
    return out.transpose(0, 1), state
