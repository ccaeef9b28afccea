# SPDX-License-Identifier: Apache-2.0
"""What is served and how it fares: models, health, metrics. Nothing here waits for the engine."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from sparkpair import __version__
from sparkpair.api.errors import model_not_found
from sparkpair.api.gate import IDENTIFIED
from sparkpair.api.metrics import CONTENT_TYPE
from sparkpair.api.options import ANY_MODEL
from sparkpair.api.serving import Serving

router = APIRouter()


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


def _models(serving: Serving) -> list[dict[str, Any]]:
    names = [serving.options.model_name, *(name for name in serving.options.aliases if name != ANY_MODEL)]
    return [
        {
            "id": name,
            "object": "model",
            "created": serving.started,
            "owned_by": "sparkpair",
            "max_model_len": serving.engine.context_length,
        }
        for name in names
    ]


@router.api_route("/models", methods=["GET", "HEAD"])
async def list_models(request: Request) -> Response:
    """The served name, then its aliases."""
    return JSONResponse({"object": "list", "data": _models(_serving(request))})


@router.api_route("/models/{name:path}", methods=["GET", "HEAD"])
async def get_model(request: Request, name: str) -> Response:
    """One served name."""
    for model in _models(_serving(request)):
        if model["id"] == name:
            return JSONResponse(model)
    raise model_not_found(name)


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> Response:
    """State and counters, or whether it lives and no more where a key is needed; 503 once the engine has died."""
    serving = _serving(request)
    figures = serving.engine.health()
    if not request.scope.get(IDENTIFIED, True):
        bare = ("ok", 200) if figures.error is None else ("failed", 503)
        return JSONResponse({"status": bare[0]}, bare[1])
    state: dict[str, Any] = {
        "ok": figures.error is None,
        "backend": "sparkpair",
        "version": __version__,
        "model": serving.options.model_name,
        "busy": figures.requests_running > 0,
        "requests_running": figures.requests_running,
        "requests_waiting": figures.requests_waiting,
        "requests_total": figures.requests_total,
        "prompt_tokens_total": figures.prompt_tokens_total,
        # Of this total, running replies are a part: rates are made of it.
        "completion_tokens_total": figures.completion_tokens_generated,
        "cached_tokens_total": figures.cached_tokens_total,
        "rounds_total": figures.rounds_total,
        "drafted_total": figures.drafted_total,
        "accepted_total": figures.accepted_total,
        "kept_prompts": figures.kept_prompts,
        "kept_bytes": figures.kept_bytes,
        "pool_tokens": figures.pool_tokens,
        "pool_free_tokens": figures.pool_free_tokens,
        "prefill_seconds_total": round(figures.prefill_seconds_total, 6),
        "decode_seconds_total": round(figures.decode_seconds_total, 6),
        "context_length": serving.engine.context_length,
        "vision": serving.options.vision,
        "world_size": serving.engine.world_size,
        "step": figures.step,
        "iteration_s": round(figures.iteration_s, 6),
        "streams": {
            "decoding": figures.decoding,
            "filling": figures.filling,
            "prefilling": figures.filling,
            "paused": figures.paused,
            "max": figures.max_streams,
        },
        "ranks": [{"rank": rank.rank, "step": rank.step} for rank in figures.ranks],
    }
    if figures.error is not None:
        state["error"] = figures.error
    return JSONResponse(state, 200 if figures.error is None else 503)


@router.api_route("/streams", methods=["GET", "HEAD"])
async def streams(request: Request) -> Response:
    """What every request that was taken has had so far, the oldest first, and the tokens generated since the start.

    `waiting` is what has no token yet: it is queued, or its prompt is being read.
    """
    serving = _serving(request)
    generations = serving.generations()
    listed = [
        {
            "id": generation.id,
            "state": "writing" if generation.tokens_so_far else "waiting",
            "age_s": round(generation.age_s, 3),
            "prompt_tokens": generation.prompt_tokens,
            "completion_tokens": generation.tokens_so_far,
        }
        for generation in generations
    ]
    done = serving.engine.health().completion_tokens_total
    total = done + sum(generation.tokens_so_far for generation in generations)
    return JSONResponse({"streams": listed, "generated_tokens": total})


@router.api_route("/metrics", methods=["GET", "HEAD"])
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(_serving(request).metrics.render(), headers={"content-type": CONTENT_TYPE})
