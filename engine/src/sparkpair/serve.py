# SPDX-License-Identifier: Apache-2.0
"""The life of a rank: estimate, join, load, serve or follow, end.

The order is the point: everything that can be refused is refused before the ranks join, and everything on which the
ranks could disagree is compared before a weight is loaded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import torch

from sparkpair import __version__
from sparkpair.api.app import create_app
from sparkpair.api.options import ApiOptions
from sparkpair.api.server import bind, serve_http
from sparkpair.cache.keeper import PoolKeeper
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.checked import check_model
from sparkpair.checkpoint.rank_weights import Layout, RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.control import FollowerLink, Leader, Offer, listen
from sparkpair.comm.group import Group, SoloGroup, TensorGroup, host_store, reach_store
from sparkpair.comm.lockstep import StepRunner
from sparkpair.comm.roce import OneShotGather
from sparkpair.comm.roce_group import open_group, open_rails
from sparkpair.comm.stuck import REPORT_S, StepWatch
from sparkpair.drafting.orders import DraftOrders
from sparkpair.drafting.policy import CopyDrafting
from sparkpair.drafting.source import DrafterSource, source_of
from sparkpair.engine import CHUNK_ROWS, EngineSettings, LeaderEngine, follow
from sparkpair.errors import DoesNotFit, PeerLost, UserError
from sparkpair.http_side import api_options, warnings
from sparkpair.identity import code_digest
from sparkpair.memory import (
    GIB,
    MIB,
    MemoryPlan,
    PoolSettings,
    estimate_line,
    mem_available,
    plan_memory,
    pool_lines,
    settle_window,
)
from sparkpair.model.config import TextConfig
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.media_encoder import MediaEncoder
from sparkpair.model.tower_source import TowerSource
from sparkpair.settings import ServeSettings
from sparkpair.stop_signals import Signals

# What `--dtype` names. In fp32 every number of ranks gives the same greedy tokens.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# After a rank was lost, how long the step that was running may take to notice.
LAST_STEP_S = 3.0

# How long after it began to serve rank 0 gets ready for answers with a form, which takes it a second or more.
FORMS_AFTER_S = 5.0


def say(line: str) -> None:
    """One line of the log, at once."""
    print(line, flush=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Loadable:
    """A checkpoint and a drafter that have been checked, and the plan of this rank's memory."""

    checkpoint: Checkpoint
    config: TextConfig
    drafter: DrafterSource | None
    tower: TowerSource | None
    plan: MemoryPlan
    window: int

    def offer(self) -> Offer:
        """What this rank can serve."""
        pool = self.plan.pool(self.window)
        return {"window": self.window, "pool_tokens": pool.tokens, "kept_prompts": pool.entries}


def prepare(settings: ServeSettings) -> Loadable:
    """Check the checkpoint and the memory, print the estimate. Raises UserError or DoesNotFit."""
    checked = check_model(settings)
    config, checkpoint = checked.config, checked.checkpoint
    drafter = source_of(checked.drafter) if checked.drafter else None
    tower = TowerSource(checkpoint, config, checked.tower) if checked.tower else None
    available = mem_available()
    reserve = settings.memory_reserve_gib
    layout = Layout(settings.tp, settings.rank, DTYPES[settings.dtype], settings.forms)
    plan = plan_memory(
        checkpoint,
        config,
        layout,
        PoolSettings(
            parallel=settings.parallel,
            window_rows=settings.window,
            form=settings.kv,
            cache_bytes=int(settings.cache_gib * GIB),
            cache_entries=settings.cache_entries,
        ),
        chunk_rows=CHUNK_ROWS,
        available=available,
        reserve_gib=available / 10 / GIB if reserve is None else reserve,
        drafter=drafter.need(layout) if drafter else None,
        tower=tower.need(layout.dtype) if tower else None,
    )
    try:
        window = settle_window(plan, settings.context, config.max_position_embeddings)
    except DoesNotFit:
        say(estimate_line(plan, settings.context or config.max_position_embeddings))
        say(f"largest fitting prompt-plus-reply window: {plan.largest_window(config.max_position_embeddings)} tokens")
        raise
    say(estimate_line(plan, window))
    for line in pool_lines(plan, window):
        say(line)
    return Loadable(checkpoint, config, drafter, tower, plan, window)


def facts_to_compare(settings: ServeSettings, loadable: Loadable) -> dict[str, str]:
    """What every rank must have alike, by the name a person would look for."""
    return {
        "the engine's code": code_digest()[:16],
        "the version of torch": torch.__version__,
        "the checkpoint's files": loadable.checkpoint.digest()[:16],
        "the drafter": loadable.drafter.digest() if loadable.drafter else "none",
        "--tp": str(settings.tp),
        "--context": str(settings.context),
        "--parallel": str(settings.parallel),
        "--dtype": settings.dtype,
        "--kv": settings.kv,
        "--comm": settings.roce.describe() if settings.roce else "torch",
        "--dense": settings.forms.dense,
        "--experts": settings.forms.experts,
    }


def load(
    loadable: Loadable, settings: ServeSettings, group: Group, pool_tokens: int, check: Callable[[], None]
) -> tuple[StepRunner, MediaEncoder | None]:
    """Load this rank's weights and take the pool; it is then ready to execute steps, and rank 0 to look at pictures.

    `check` runs after every tensor and may raise.
    """
    stored = loadable.plan.stored_weights
    whole = sum(entry.nbytes for entry in loadable.checkpoint.entries.values())
    say(f"loading weights: {stored / MIB:.1f} MiB of {whole / MIB:.1f} MiB on this rank")
    weights = RankWeights(
        loadable.checkpoint,
        loadable.config,
        world=settings.tp,
        rank=settings.rank,
        dtype=DTYPES[settings.dtype],
        device=torch.device(settings.device),
        forms=settings.forms,
        progress=lambda _: check(),
    )
    model = Glm5NextRank(loadable.config, weights, group)
    drafter = loadable.drafter.load(model, weights) if loadable.drafter else None
    pool = model.new_pool(pool_tokens, settings.kv, drafter_layers=drafter.pool_layers if drafter else 0)
    return StepRunner(model, pool, drafter), loadable.tower.load(weights) if loadable.tower else None


def serve(settings: ServeSettings) -> int:
    """Run one rank to its end; the exit code. Raises UserError for what a person can fix before serving."""
    signals = Signals()
    torch.set_num_threads(settings.threads)
    started = time.monotonic()
    say(f"sparkpair {__version__}, rank {settings.rank} of {settings.tp}, model {settings.model}")
    rails = open_rails(settings.roce, settings.rank, settings.tp)
    loadable = prepare(settings)
    if settings.rank == 0:
        return _lead(settings, loadable, rails, signals, started)
    return _follow(settings, loadable, rails, signals, started)


def _lead(
    settings: ServeSettings, loadable: Loadable, rails: OneShotGather | None, signals: Signals, started: float
) -> int:
    # What only serving needs is tried before the long work. The port is taken and given back, so that clients that come
    # before this rank can answer are refused and not left waiting.
    options = api_options(settings, vision=loadable.tower is not None)
    sockets = bind(settings.host, settings.port)
    for warning in warnings(settings, options.keys, sockets):
        print(warning, file=sys.stderr, flush=True)
    for sock in sockets:
        sock.close()
    checkpoint = CheckpointText.load(settings.model)
    leader: Leader | None = None
    group: Group = SoloGroup()
    offer = loadable.offer()
    if settings.tp > 1:
        leader, group, offer = _gather(settings, loadable, rails)
    check = leader.check if leader else lambda: None
    runner, encoder = load(loadable, settings, group, offer["pool_tokens"], check)
    say(f"rank 0 ready in {time.monotonic() - started:.1f} s")
    try:
        if leader is not None:
            leader.wait_ready()
        return asyncio.run(
            _serve_requests(settings, options, checkpoint, loadable.plan, runner, encoder, leader, offer, signals)
        )
    except Exception as error:
        if leader is not None:
            leader.close({"failed": str(error) if isinstance(error, PeerLost) else f"rank 0 failed: {error}"})
        raise


def _gather(
    settings: ServeSettings, loadable: Loadable, rails: OneShotGather | None
) -> tuple[Leader, TensorGroup, Offer]:
    """Wait for the other ranks and open the tensor group with them."""
    leader = Leader(settings.master, settings.master_port, settings.tp)
    say(f"waiting for {settings.tp - 1} other rank(s) at {settings.master}:{settings.master_port}")
    facts = facts_to_compare(settings, loadable)
    offer = leader.join(facts, loadable.offer(), settings.join_timeout, say)
    meeting = listen(leader.address, 0, "--master")
    port = meeting.getsockname()[1]
    leader.broadcast({"welcome": {**offer, "store_port": port}})
    store = host_store(meeting, settings.tp)
    try:
        group = open_group(settings, rails, leader.lost_event.wait, store, leader.address)
    except RuntimeError:
        raise leader.verdict() from None
    except UserError as error:
        leader.close({"failed": str(error)})
        raise
    return leader, group, offer


async def _serve_requests(
    settings: ServeSettings,
    options: ApiOptions,
    checkpoint: CheckpointText,
    plan: MemoryPlan,
    runner: StepRunner,
    encoder: MediaEncoder | None,
    leader: Leader | None,
    offer: Offer,
    signals: Signals,
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    deaths: list[Exception] = []
    policy = settings.policy()

    def on_death(error: Exception) -> None:
        deaths.append(error)
        loop.call_soon_threadsafe(stop.set)

    engine = LeaderEngine(
        runner,
        leader,
        EngineSettings(
            context=offer["window"],
            lanes=settings.parallel,
            window_rows=settings.window,
            fill_budget_s=settings.fill_budget_ms / 1000,
        ),
        CopyDrafting(settings.copy_max),
        PoolKeeper(
            offer["pool_tokens"],
            most_kept=offer["kept_prompts"],
            entry_bytes=plan.entry_bytes,
            token_bytes=plan.row_bytes,
        ),
        DraftOrders(policy) if policy else None,
        world=settings.tp,
        on_death=on_death,
        encoder=encoder,
    )
    engine.start()
    if leader is not None:
        threading.Thread(target=_watch_peers, args=(leader, engine), name="watch peers", daemon=True).start()

    def stuck(step: int) -> None:
        who = leader.stuck_ranks(step, waiting=runner.waiting) if leader else "rank 0 waits for no other rank"
        found = PeerLost(f"{who}: step {step} has taken {settings.stuck_after:g} s and more")
        if not settings.stuck_exit:
            print(f"warning: {found}", file=sys.stderr, flush=True)
        elif runner.running is not None and runner.running[0] == step:
            engine.fail(found)

    _watch_steps(settings, runner, stuck)

    def request_stop() -> None:
        loop.call_soon_threadsafe(stop.set)

    signals.on_stop = request_stop
    app = create_app(engine, options, checkpoint)
    where = f"http://{settings.host}:{settings.port}"

    def ready() -> None:
        say(f"serving {settings.name} at {where}")
        # Those who have waited for the server come first.
        loop.call_later(FORMS_AFTER_S, app.state.serving.guide.warm_up)

    # What is here now stays: the collector need not walk it again, which would stop every stream for as long.
    gc.collect()
    gc.freeze()
    await serve_http(app, settings.host, settings.port, on_ready=ready, stop=stop)
    if deaths:
        if not engine.stop(LAST_STEP_S) and leader is not None:
            leader.close({"failed": str(deaths[0])})
            end_now(PeerLost(str(deaths[0])))
        raise deaths[0]
    engine.stop()
    if leader is not None:
        leader.close({"stop": True})
    say("stopped")
    return 0


def _watch_steps(settings: ServeSettings, runner: StepRunner, on_stuck: Callable[[int], None]) -> None:
    """Report this rank's steps that take too long, for as long as the process lives."""
    if settings.stuck_after:
        StepWatch(settings.rank, settings.stuck_after, lambda: runner.running, on_stuck).start()


def end_now(error: PeerLost) -> NoReturn:
    """End this process although a thread is inside a step: leaving in the usual way would wait for that thread."""
    print(f"{error.label}: {error}", file=sys.stderr, flush=True)
    os._exit(error.exit_code)


def _watch_peers(leader: Leader, engine: LeaderEngine) -> None:
    """A follower that leaves while no step runs ends the engine too."""
    leader.lost_event.wait()
    engine.fail(leader.verdict())


def _follow(
    settings: ServeSettings, loadable: Loadable, rails: OneShotGather | None, signals: Signals, started: float
) -> int:
    link = FollowerLink(settings.rank, settings.master, settings.master_port, settings.join_timeout)

    leaving = threading.Event()

    def leave() -> None:
        leaving.set()
        link.leave("it was asked to stop (SIGTERM)")
        os._exit(0)

    signals.on_stop = leave
    try:
        welcome = link.join(facts_to_compare(settings, loadable), loadable.offer(), settings.join_timeout)["welcome"]
        store = reach_store(settings.master, int(welcome["store_port"]), settings.tp)
        group = open_group(settings, rails, link.gone, store, link.local_address)
        runner, _ = load(loadable, settings, group, int(welcome["pool_tokens"]), lambda: None)
        seconds = time.monotonic() - started
        say(f"rank {settings.rank} ready in {seconds:.1f} s")
        link.ready(seconds)

        def stuck(step: int) -> None:
            link.stuck(step, waiting=runner.waiting)
            if settings.stuck_exit:
                # Rank 0 knows more, and ends this rank with its reason, unless it is rank 0 that is stuck.
                threading.Event().wait(2 * REPORT_S)
                if runner.running is not None and runner.running[0] == step:
                    end_now(
                        PeerLost(f"rank 0 does not answer: step {step} has taken {settings.stuck_after:g} s and more")
                    )

        _watch_steps(settings, runner, stuck)
        follow(runner, link.receive)
    except RuntimeError:
        raise link.verdict() from None
    except UserError as error:
        link.leave(str(error))
        raise
    except Exception as error:
        link.leave(f"it failed: {error}")
        raise
    finally:
        if leaving.is_set():
            # What was lost is what this rank has let go itself; the signals' thread is about to end the process.
            threading.Event().wait()
    say("stopped")
    return 0
