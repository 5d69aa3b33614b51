"""Metrics as Prometheus reads them, by vLLM's names and meanings with our prefix: what API processes counted, and the
gauges and counters that the engine published last.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from headrace.core.errors import EngineDeadError
from headrace.engine.client_protocol import EngineClient
from headrace.engine.wire import Stats
from headrace.policy.histogram import HistogramCounts
from headrace.server.metrics import Metrics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def text(metrics: Metrics, client: EngineClient) -> bytes:
    """The text format. An engine that is gone leaves its own metrics out, not the rest."""
    registry = CollectorRegistry()
    registry.register(_Counted(metrics))
    with suppress(EngineDeadError):
        registry.register(_EngineStats(client.stats(), metrics.model_name))
    return generate_latest(registry)


class _Counted(Collector):
    """What API processes counted, as metric families."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        model_name = self.metrics.model_name
        success = CounterMetricFamily(
            "headrace:request_success",
            "Requests that ended, by finish reason.",
            labels=["model_name", "finished_reason"],
        )
        for reason, count in self.metrics.ends():
            success.add_metric([model_name, reason.value], count)
        yield success
        for name, text, counts in self.metrics.histograms():
            yield _histogram(name, text, counts, model_name)


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
