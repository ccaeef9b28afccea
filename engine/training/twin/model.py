# SPDX-License-Identifier: Apache-2.0
"""The whole twin: backbone with hyper-connections, MTP head, vision tower. Parameters have the checkpoint's names."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from sparkpair.model.config import TextConfig, parse_text_config
from sparkpair.model.vision_config import parse_vision_config
from torch import Tensor, nn
from torch.nn import functional

from training.twin.batch import Batch
from training.twin.dsa import Dsa, Scope
from training.twin.hyper import hyper_enter, hyper_spread
from training.twin.kda import Kda
from training.twin.moe import Mlp, Moe
from training.twin.rows import Linear, Norm
from training.twin.vision import Tower

# How strongly a new model's streams keep to themselves.
APART = 3.0


def products_dtype(device: torch.device | str) -> torch.dtype:
    """The dtype in which sublayers run on a device."""
    return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32


class Layer(nn.Module):
    """Attention, then feed-forward, each inside its hyper-connection."""

    def __init__(self, config: TextConfig, index: int) -> None:
        super().__init__()
        self.config = config
        self.self_attn = Kda(config) if config.attention[index] == "kda" else Dsa(config)
        if config.feed_forward[index] == "dense":
            self.mlp: nn.Module = Mlp(config.hidden_size, config.intermediate_size, config.swiglu_limit)
        else:
            self.mlp = Moe(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        for kind in ("attn", "ffn"):
            self._add_hyper(kind)

    def _add_hyper(self, kind: str) -> None:
        count = self.config.hc_mult
        rows = 2 * count + count**2
        fn = torch.randn(rows, count * self.config.hidden_size) * (count * self.config.hidden_size) ** -0.5
        base = torch.randn(rows) * 0.5
        base[:count] -= torch.log(torch.tensor(count - 1.0))  # about one stream's worth of all
        base[2 * count :] += APART * torch.eye(count).flatten()
        self.register_parameter(f"hc_{kind}_fn", nn.Parameter(fn))
        self.register_parameter(f"hc_{kind}_base", nn.Parameter(base))
        self.register_parameter(f"hc_{kind}_scale", nn.Parameter(torch.full((3,), 0.1)))

    def forward(self, streams: Tensor, scope: Scope, dtype: torch.dtype) -> Tensor:
        """`streams` [B T, S, d] fp32 -> the streams after this layer; sublayers run in `dtype`."""
        x, post, comb = hyper_enter(streams, self._hyper("attn"), self.input_layernorm, self.config, dtype)
        branch = self.self_attn(x, scope.position) if isinstance(self.self_attn, Kda) else self.self_attn(x, scope)
        streams = hyper_spread(streams, branch, post, comb)
        x, post, comb = hyper_enter(streams, self._hyper("ffn"), self.post_attention_layernorm, self.config, dtype)
        return hyper_spread(streams, self.mlp(x), post, comb)

    def _hyper(self, kind: str) -> tuple[Tensor, Tensor, Tensor]:
        fn, base, scale = (self.get_parameter(f"hc_{kind}_{part}") for part in ("fn", "base", "scale"))
        return fn, base, scale


class _SharedHead(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class MtpLayer(nn.Module):
    """The layer behind the last: guesses the token after next from the final row and the next token."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = Norm(width, eps)
        self.hnorm = Norm(width, eps)
        self.eh_proj = Linear(2 * width, width)
        self.input_layernorm = Norm(width, eps)
        self.self_attn = Dsa(config)
        self.post_attention_layernorm = Norm(width, eps)
        self.mlp = Moe(config)
        self.shared_head = _SharedHead(config)

    def forward(self, hidden: Tensor, after: Tensor, scope: Scope, dtype: torch.dtype) -> Tensor:
        """`hidden`, `after` (embeddings of the tokens that follow) [B T, d] -> normed rows [B T, d]."""
        x = self.eh_proj(torch.cat([self.enorm(after, dtype), self.hnorm(hidden, dtype)], dim=-1)).float()
        x = x + self.self_attn(self.input_layernorm(x, dtype), scope).float()
        x = x + self.mlp(self.post_attention_layernorm(x, dtype)).float()
        normed: Tensor = self.shared_head.norm(x)
        return normed


class _Embedding(nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width))


class _LanguageModel(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.embed_tokens = _Embedding(config.vocab_size, config.hidden_size)
        layers: list[nn.Module] = [Layer(config, index) for index in range(config.num_layers)]
        layers += [MtpLayer(config) for _ in range(config.mtp_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class _Model(nn.Module):
    def __init__(self, config: TextConfig, document: dict[str, Any]) -> None:
        super().__init__()
        self.language_model = _LanguageModel(config)
        projection = document["vision_config"]["projection_intermediate_size"]
        self.visual = Tower(parse_vision_config(document, "config.json"), projection)


@dataclasses.dataclass(slots=True)
class Passed:
    """What a forward pass leaves: the final rows, the embeddings, taps of layers, the indexers' losses."""

    hidden: Tensor
    embedded: Tensor
    taps: Tensor | None
    lessons: list[Tensor]


class Twin(nn.Module):
    """The model of a config.json document. `dtype` is that of sublayers; streams and norms are fp32."""

    def __init__(self, document: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = parse_text_config(document, "config.json")
        self.dtype = dtype
        self.model = _Model(self.config, document)
        self.lm_head = Linear(self.config.hidden_size, self.config.vocab_size)

    @property
    def backbone(self) -> list[Layer]:
        """The layers without the MTP head's."""
        return [layer for layer in self.model.language_model.layers if isinstance(layer, Layer)]

    @property
    def mtp(self) -> MtpLayer | None:
        """The MTP head's layer, if there is one."""
        last = self.model.language_model.layers[-1]
        return last if isinstance(last, MtpLayer) else None

    def embed(self, batch: Batch) -> Tensor:
        """The rows that go in, [B, T, d] fp32, pictures' among them."""
        embedded = functional.embedding(batch.tokens, self.model.language_model.embed_tokens.weight)
        if batch.patches.shape[1] == 0:
            return embedded
        seen = self.model.visual(batch.patches, batch.frame, batch.place, self.dtype).flatten(0, 1).float()
        return torch.where(
            (batch.media >= 0).unsqueeze(-1), functional.embedding(batch.media.clamp(min=0), seen), embedded
        )

    def forward(self, batch: Batch, *, everything: bool = False, taps: tuple[int, ...] = ()) -> Passed:
        """Run the backbone; `taps` are layers whose mean stream is wanted, side by side in [B, T, taps d]."""
        scope = Scope(batch.document, batch.position, everything)
        embedded = self.embed(batch)
        streams = embedded.flatten(0, 1).unsqueeze(1).expand(-1, self.config.hc_mult, -1).contiguous()
        tapped, lessons = [], []
        for index, layer in enumerate(self.backbone):
            streams = layer(streams, scope, self.dtype)
            if index in taps:
                tapped.append(streams.mean(1).view_as(embedded))
            if isinstance(layer.self_attn, Dsa) and layer.self_attn.lesson is not None:
                lessons.append(layer.self_attn.lesson)
        hidden = self.model.language_model.norm(streams.mean(1)).view_as(embedded)
        return Passed(hidden, embedded, torch.cat(tapped, dim=-1) if tapped else None, lessons)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., vocab] fp32 of normed rows [..., d]."""
        return functional.linear(hidden.to(self.dtype), self.lm_head.weight.to(self.dtype)).float()

    def guess(self, passed: Passed, batch: Batch, *, everything: bool = False) -> Tensor:
        """The MTP head's normed rows, [B, T, d]: row i guesses token i + 2. Passes no gradient to the backbone."""
        layer = self.mtp
        if layer is None:
            raise ValueError("the model has no MTP head")
        after = torch.roll(passed.embedded.detach(), -1, dims=1)
        scope = Scope(batch.document, batch.position, everything)
        rows: Tensor = layer(passed.hidden.detach().flatten(0, 1), after.flatten(0, 1), scope, self.dtype)
        return rows.view_as(after)
