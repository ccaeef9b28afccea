# SPDX-License-Identifier: Apache-2.0
"""Prometheus figures under the names that dashboards for this model already read.

What the engine counts is read from it at scrape time; what only the HTTP side sees is counted here. A
figure that cannot be known is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from sparkpair.request import Engine, ReplyStats

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PREFIX = "tensorfold:"
HEALTH_PREFIX = "tensorfold_health:"

BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

LATENCIES = ("request_latency_seconds", "e2e_request_latency_seconds")
FIRST_TOKENS = ("time_to_first_token_seconds",)
PREFILLS = ("request_prefill_seconds", "request_prefill_time_seconds")
DECODES = ("request_decode_seconds", "request_decode_time_seconds")
"""Each figure under its own name and, where there is one, under the name that vLLM's dashboards read."""

HELP: dict[tuple[str, ...], str] = {
    LATENCIES: "Arrival of a request to the end of its reply",
    FIRST_TOKENS: "Arrival of a request to its first generated token",
    PREFILLS: "Time in which a prompt was read",
    DECODES: "Time in which a reply was generated",
}


Tokens = tuple[int, int]
"""Of a running request: tokens of its prompt, and those of its reply so far."""


class Metrics:
    """The registry of one application."""

    def __init__(self, engine: Engine, running: Callable[[], Sequence[Tokens]]) -> None:
        """`running` gives the tokens of every request that runs."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.client_disconnections = 0
        self._registry = CollectorRegistry()
        self._replies: Counter | None = None
        self._histograms = {
            names: [Histogram(PREFIX + name, text, registry=self._registry, buckets=BUCKETS) for name in names]
            for names, text in HELP.items()
        }
        self._registry.register(_Figures(engine, running, lambda: self.client_disconnections))

    def observe(self, latency_s: float, first_token_s: float | None, stats: ReplyStats) -> None:
        """Count one finished reply; times in seconds."""
        values: dict[tuple[str, ...], float] = {
            LATENCIES: latency_s,
            PREFILLS: stats.prefill_s,
            DECODES: stats.decode_s,
        }
        if first_token_s is not None:
            values[FIRST_TOKENS] = first_token_s
        for names, seconds in values.items():
            for histogram in self._histograms[names]:
                histogram.observe(seconds)

    def count_reply(self, key: str, status: int) -> None:
        """Count one HTTP reply under the label of its key. The family exists only where there are keys."""
        if self._replies is None:
            text = "HTTP replies by the label of the key and status"
            self._replies = Counter(PREFIX + "requests", text, ["key", "status"], registry=self._registry)
        self._replies.labels(key, str(status)).inc()

    def render(self) -> bytes:
        """Everything in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


class _Figures(Collector):
    """Counters and gauges as they are at the moment of a scrape."""

    def __init__(
        self, engine: Engine, running: Callable[[], Sequence[Tokens]], disconnections: Callable[[], int]
    ) -> None:
        self._engine = engine
        self._running = running
        self._disconnections = disconnections

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client.registry.Collector."""
        health = self._engine.health()
        running, waiting = health.requests_running, health.requests_waiting
        for name in ("requests_running", "num_requests_running"):
            yield _gauge(PREFIX + name, "Requests prefilling or decoding", running)
        for name in ("requests_waiting", "num_requests_waiting"):
            yield _gauge(PREFIX + name, "Requests queued", waiting)
        yield _gauge(PREFIX + "requests_running_max", "Requests that may run at once", health.max_streams)
        yield _counter(PREFIX + "prompt_tokens", "Prompt tokens of finished requests", health.prompt_tokens_total)
        yield _counter(
            PREFIX + "generation_tokens", "Tokens generated for finished requests", health.completion_tokens_total
        )
        replies = self._running()
        so_far = sum(tokens for _, tokens in replies)
        yield _gauge(PREFIX + "generation_tokens_running", "Tokens of running replies so far", so_far)
        yield from self._windows(replies)
        yield _counter(
            PREFIX + "prompt_tokens_cached", "Prompt tokens resumed from kept states", health.cached_tokens_total
        )
        yield _counter(
            PREFIX + "client_disconnections", "Clients that left before their reply ended", self._disconnections()
        )
        yield _counter(PREFIX + "decode_rounds", "Rounds that verified windows", health.rounds_total)
        for name in ("mtp_drafted", "spec_decode_num_draft_tokens"):
            yield _counter(PREFIX + name, "Draft tokens verified", health.drafted_total)
        for name in ("mtp_accepted", "spec_decode_num_accepted_tokens"):
            yield _counter(PREFIX + name, "Draft tokens that became part of a reply", health.accepted_total)
        yield from self._health_figures()

    def _windows(self, replies: Sequence[Tokens]) -> Iterable[Metric]:
        """How much of its window each reply fills; before its first token that is not known."""
        filled = [(prompt + so_far) / self._engine.context_length for prompt, so_far in replies if so_far]
        for name, label in (("kv_cache_usage_ratio", "pool"), ("kv_cache_usage_perc", "stream")):
            family = GaugeMetricFamily(PREFIX + name, "Tokens of a running stream over the window", labels=[label])
            for number, share in enumerate(filled or [0.0]):
                family.add_metric([str(number)], share)
            yield family

    def _health_figures(self) -> Iterable[Metric]:
        health = self._engine.health()
        yield _counter(HEALTH_PREFIX + "requests", "Finished requests", health.requests_total)
        yield _counter(
            HEALTH_PREFIX + "completion_tokens",
            "Tokens generated, those of running replies too",
            health.completion_tokens_generated,
        )
        yield _counter(HEALTH_PREFIX + "cached_tokens", "Prompt tokens found cached", health.cached_tokens_total)
        yield _counter(HEALTH_PREFIX + "prefill_seconds", "Seconds spent on prompts", health.prefill_seconds_total)
        yield _counter(HEALTH_PREFIX + "decode_seconds", "Seconds spent on replies", health.decode_seconds_total)
        streams = GaugeMetricFamily(HEALTH_PREFIX + "streams", "Requests by state", labels=["state"])
        streams.add_metric(["decoding"], health.decoding)
        streams.add_metric(["filling"], health.filling)
        streams.add_metric(["paused"], health.paused)
        yield streams
        yield _counter(HEALTH_PREFIX + "rounds", "Rounds that verified windows", health.rounds_total)
        yield _gauge(HEALTH_PREFIX + "kept_prompts", "Prompt states that can be resumed", health.kept_prompts)
        yield _gauge(HEALTH_PREFIX + "pool_tokens", "Tokens of the pool", health.pool_tokens)
        yield _gauge(HEALTH_PREFIX + "pool_free_tokens", "Tokens of the pool that nobody has", health.pool_free_tokens)
        yield _gauge(HEALTH_PREFIX + "streams_max", "Requests that may run at once", health.max_streams)
        yield _gauge(
            HEALTH_PREFIX + "context_length", "Prompt-plus-reply window in tokens", self._engine.context_length
        )
