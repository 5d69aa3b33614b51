"""Prometheus metrics, by vLLM's names and meanings with our prefix: gauges and counters that the engine published
last, and what only the API sees (latencies and how requests ended) observed as it happens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.errors import EngineDeadError
from headrace.core.request import FinishReason
from headrace.engine.client_protocol import EngineClient
from headrace.engine.wire import Stats
from headrace.policy.histogram import HistogramCounts
from headrace.server.counts import Counts, Histogram

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
E2E_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


HISTOGRAMS = (
    ("time_to_first_token_seconds", "Time from arrival to the first token.", TTFT_BUCKETS),
    ("inter_token_latency_seconds", "Time between tokens of one request.", ITL_BUCKETS),
    ("request_time_per_output_token_seconds", "Mean time of a request's tokens after its first.", ITL_BUCKETS),
    ("e2e_request_latency_seconds", "Time from arrival to the last token.", E2E_BUCKETS),
    ("request_prompt_tokens", "Prompt tokens of a request.", TOKEN_BUCKETS),
    ("request_generation_tokens", "Tokens generated for a request.", TOKEN_BUCKETS),
)
_REASONS = tuple(FinishReason)
COUNTS_WIDTH = len(_REASONS) + sum(Histogram.width(bounds) for _, _, bounds in HISTOGRAMS)


class Metrics(Collector):
    """What API processes count, this one in its row of counts. Times are in seconds."""

    def __init__(self, model_name: str, counts: Counts | None = None) -> None:
        self.model_name = model_name
        self._counts = Counts(COUNTS_WIDTH) if counts is None else counts
        self._histograms: list[Histogram] = []
        start = len(_REASONS)
        for _, _, bounds in HISTOGRAMS:
            self._histograms.append(Histogram(self._counts, start, bounds))
            start += Histogram.width(bounds)
        observers = [histogram.observe for histogram in self._histograms]
        self.first_token, self.next_token, self.per_token, *others = observers
        self._last_token, self._prompt, self._generation = others

    def ended(self, reason: FinishReason, seconds: float, prompt_tokens: int, generated_tokens: int) -> None:
        """One sequence ended; aborted ones count as such and leave the latency histogram alone."""
        self._counts.own[_REASONS.index(reason)] += 1.0
        self._prompt(prompt_tokens)
        self._generation(generated_tokens)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._last_token(seconds)

    def collect(self) -> Iterator[Metric]:
        """What all API processes counted."""
        success = CounterMetricFamily(
            "headrace:request_success",
            "Requests that ended, by finish reason.",
            labels=["model_name", "finished_reason"],
        )
        for index, reason in enumerate(_REASONS):
            success.add_metric([self.model_name, reason.value], self._counts.total(index))
        yield success
        for (name, text, _), histogram in zip(HISTOGRAMS, self._histograms, strict=True):
            yield _histogram(name, text, histogram.read(), self.model_name)

    def exposition(self, client: EngineClient) -> bytes:
        """The text format. An engine that is gone leaves its own metrics out, not the rest."""
        registry = CollectorRegistry()
        registry.register(self)
        with suppress(EngineDeadError):
            registry.register(_EngineStats(client.stats(), self.model_name))
        return generate_latest(registry)


class _EngineStats(Collector):
    """The engine's Stats as metric families."""

    def __init__(self, stats: Stats, model_name: str) -> None:
        self.stats = stats
        self.model_name = model_name

    def collect(self) -> Iterator[Metric]:
        s = self.stats
        gauges = (
            ("spec_decode_saved_seconds", "Time that guessing ahead has saved, by the latency model.", s.saved_seconds),
            ("num_requests_running", "Requests that run in the engine.", s.running),
            ("num_requests_waiting", "Requests that wait for a place.", s.waiting),
            ("kv_cache_usage_perc", "Part of the KV blocks in use, 0 to 1.", s.blocks_used / max(1, s.blocks_total)),
            ("num_tokens_waiting", "Tokens to compute of requests that wait.", s.waiting_tokens),
            ("predicted_wait_seconds", "How long a new request would wait, as far as can be told.", s.predicted_wait),
            ("oldest_wait_seconds", "How long the one has waited that came first.", s.oldest_wait),
        )
        counters = (
            ("num_preemptions", "Preemptions.", s.preemptions),
            ("prompt_tokens", "Prompt tokens of requests taken.", s.prompt_tokens),
            ("generation_tokens", "Tokens generated.", s.generated_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", s.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", s.cached_tokens),
            ("spec_decode_num_drafts", "Times that tokens were guessed ahead for a request.", s.drafts),
            ("spec_decode_num_draft_tokens", "Tokens guessed ahead.", s.drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Guessed tokens that were kept.", s.accepted_tokens),
        )
        for family_of, values in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, text, value in values:
                family = family_of(f"headrace:{name}", text, labels=["model_name"])
                family.add_metric([self.model_name], value)
                yield family
        yield self._by(
            GaugeMetricFamily,
            "num_requests_waiting_by_priority",
            "Requests that wait for a place, by priority.",
            "priority",
            s.waiting_by_priority,
        )
        yield self._by(
            CounterMetricFamily,
            "prefix_cache_hits_by_tier",
            "Prompt tokens found in the prefix cache, by where they were.",
            "tier",
            s.hits_by_tier,
        )
        preemptions = CounterMetricFamily(
            "headrace:num_preemptions_by_kind",
            "Preemptions by kind (swap, recompute) and cause (blocks, priority).",
            labels=["model_name", "kind", "cause"],
        )
        for kind, cause, count in s.preemptions_by_kind:
            preemptions.add_metric([self.model_name, kind, cause], count)
        yield preemptions
        yield self._by(
            CounterMetricFamily,
            "spec_decode_num_accepted_tokens_per_pos",
            "Guessed tokens that were kept, by how far ahead.",
            "position",
            dict(enumerate(s.accepted_by_position)),
        )
        yield self._by(CounterMetricFamily, "requests_refused", "Requests told to come back later.", "code", s.refused)
        if s.latency_error is not None:
            text = "Median of |predicted - taken| / taken of the last steps."
            error = GaugeMetricFamily("headrace:step_time_prediction_error", text, labels=["model_name"])
            error.add_metric([self.model_name], s.latency_error)
            yield error
        yield _histogram(
            "request_queue_time_seconds", "Time from arrival to the first step.", s.queue_seconds, self.model_name
        )
        yield _histogram(
            "request_inference_time_seconds",
            "Time from the first step to the end.",
            s.inference_seconds,
            self.model_name,
        )

    def _by(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        label: str,
        values: Mapping[Any, int],
    ) -> Metric:
        """A family with one metric for each key of values."""
        family = kind(f"headrace:{name}", text, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self.model_name, str(key)], value)
        return family


def _histogram(name: str, text: str, counts: HistogramCounts, model_name: str) -> Metric:
    family = HistogramMetricFamily(f"headrace:{name}", text, labels=["model_name"])
    bounds = [*map(floatToGoString, counts.bounds), "+Inf"]
    buckets = list(zip(bounds, itertools.accumulate(counts.counts), strict=True))
    family.add_metric([model_name], buckets, counts.total)
    return family


async def metrics(request: Request) -> Response:
    service = request.app.state.service
    return Response(service.metrics.exposition(service.client), media_type=CONTENT_TYPE_PLAIN_0_0_4)
