"""The families that are read at a scrape: the engines' and the pool's numbers, as the service's stats() gives them."""

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.observe.infer_families import infer_families
from headway.observe.number_histogram import (
    ENGINE_HISTOGRAMS,
    INFER_BATCH_SIZE,
    POOL_WAIT,
    HistogramSpec,
    bucket_counts,
)
from headway.observe.pool_families import model_families, pool_families
from headway.observe.upstream_families import upstream_families

PREFIX: Final = "headway_"

ModelStats = Mapping[str, Mapping[str, Mapping[str, float]]]
"""{"models": {model id: numbers}, "pool": {"pool": numbers}}: what service/protocol's stats() gives."""

ENGINE_GAUGES: Mapping[str, tuple[str, str]] = {
    "num_running": ("headway_num_requests_running", "Sequences that run."),
    "num_waiting": ("headway_num_requests_waiting", "Sequences that wait for their first step."),
    "kv_cache_usage": ("headway_kv_cache_usage_perc", "KV blocks that sequences use, over all blocks: 0 to 1."),
    "num_blocks": ("headway_kv_blocks", "Blocks of the KV cache."),
    "num_free_blocks": ("headway_kv_blocks_free", "KV blocks that hold nothing."),
    "num_pinned_blocks": ("headway_kv_blocks_pinned", "KV blocks of prefixes that are kept for good."),
    "num_cached_blocks": ("headway_kv_blocks_cached", "KV blocks that only the prefix cache holds."),
    "num_waiting_for_grammars": ("headway_requests_compiling", "Requests whose grammars are being compiled."),
    "client_open_requests": ("headway_requests_open", "Requests that the worker has accepted and not ended."),
}
"""A number of a model's stats to its gauge."""

ENGINE_COUNTERS: Mapping[str, tuple[str, str]] = {
    "preemptions_total": ("headway_num_preemptions", "Sequences taken off to make room."),
    "prefix_cache_queries_total": ("headway_prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits_total": ("headway_prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "computed_tokens_total": ("headway_computed_tokens", "Tokens that went through the model."),
    "padding_tokens_total": (
        "headway_padding_tokens",
        "Tokens computed for rows of a static batch whose sequences had ended.",
    ),
    "steps_total": ("headway_engine_steps", "Steps of the engine."),
    "client_overshoot_tokens_total": ("headway_overshoot_tokens", "Tokens computed after the end of their choice."),
    "forced_tokens_total": ("headway_forced_tokens", "Output tokens that a constraint left no choice about."),
    "grammars_total": ("headway_grammars", "Constrained requests, each asking for its grammar."),
    "grammar_hits_total": ("headway_grammar_hits", "Of them: the grammar was compiled, or on its way."),
    "grammar_failures_total": ("headway_grammar_failures", "Grammars that could not be compiled."),
    "grammar_compile_seconds_total": (
        "headway_grammar_compile_seconds",
        "Time in which side threads compiled grammars.",
    ),
    "wire_cpu_seconds_total": ("headway_wire_cpu_seconds", "Processor time of models' processes in messages."),
    "accepted_total": ("headway_requests_accepted", "Requests that the worker accepted."),
    "refused_total": ("headway_requests_refused", "Requests that the worker refused."),
    "failed_steps_total": ("headway_engine_steps_failed", "Steps of the engine that failed as a whole."),
    "client_aborts_total": ("headway_request_aborts", "Aborts sent to the worker, one a request or choice."),
    "client_unreadable_calls_total": (
        "headway_unreadable_tool_calls",
        "Tool calls that a parser could not read, and that were answered as text.",
    ),
}
"""A number of a model's stats to its counter, _total left out."""

POOL_GAUGES: Mapping[str, tuple[str, str]] = {
    "waiting_requests": ("headway_pool_requests_waiting", "Requests that wait for a model to become ready."),
    "leases": ("headway_pool_leases", "Uses that keep a model resident."),
}
POOL_COUNTERS: Mapping[str, tuple[str, str]] = {
    "worker_starts_total": ("headway_worker_starts", "Starts of worker processes."),
    "worker_restarts_total": ("headway_worker_restarts", "Starts of worker processes after a failure or a death."),
    "worker_failures_total": ("headway_worker_failures", "Worker processes that failed to load or died."),
}


class StatsCollector(Collector):
    """The engines' and the pool's numbers, as families, at the moment of a scrape."""

    def __init__(self, stats: Callable[[], ModelStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        stats = self._stats()
        models = stats.get("models", {})
        pool = stats.get("pool", {}).get("pool", {})
        for key, (name, text) in ENGINE_GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=("model_name",))
            for model, numbers in models.items():
                gauge.add_metric((model,), numbers.get(key, 0.0))
            yield gauge
        for key, (name, text) in ENGINE_COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=("model_name",))
            for model, numbers in models.items():
                counter.add_metric((model,), numbers.get(key, 0.0))
            yield counter
        yield from (make_histogram(spec, models) for spec in (*ENGINE_HISTOGRAMS, POOL_WAIT, INFER_BATCH_SIZE))
        yield from infer_families(models)
        yield from upstream_families(models)
        yield from model_families(models)
        yield from pool_families(pool)
        yield _waiting_by_reason(models)
        yield _cache_config(models)
        for key, (name, text) in POOL_GAUGES.items():
            yield GaugeMetricFamily(name, text, value=pool.get(key, 0.0))
        for key, (name, text) in POOL_COUNTERS.items():
            yield CounterMetricFamily(name, text, value=pool.get(key, 0.0))


def make_histogram(spec: HistogramSpec, models: Mapping[str, Mapping[str, float]]) -> Metric:
    """A family of the numbers that NumberHistogram.values() gave, by model."""
    family = HistogramMetricFamily(PREFIX + spec.family, spec.text, labels=("model_name",))
    names = [*(str(float(bound)) for bound in spec.bounds), "+Inf"]
    for model, numbers in models.items():
        buckets = list(zip(names, accumulate(bucket_counts(spec, numbers)), strict=True))
        family.add_metric((model,), buckets, numbers.get(spec.sum_key, 0.0))
    return family


def _waiting_by_reason(models: Mapping[str, Mapping[str, float]]) -> Metric:
    """What waits in a worker waits for a row, for KV blocks or for the step's tokens: for capacity."""
    family = GaugeMetricFamily(
        PREFIX + "num_requests_waiting_by_reason", "Sequences that wait, by what for.", labels=("model_name", "reason")
    )
    for model, numbers in models.items():
        family.add_metric((model, "capacity"), numbers.get("num_waiting", 0.0))
    return family


def _cache_config(models: Mapping[str, Mapping[str, float]]) -> Metric:
    """The KV cache's shape as labels, which differ only between starts."""
    family = GaugeMetricFamily(
        PREFIX + "cache_config_info",
        "Shape of the KV cache; always 1.",
        labels=("model_name", "block_size", "num_blocks"),
    )
    for model, numbers in models.items():
        if "block_size" in numbers:
            shape = (str(int(numbers[key])) for key in ("block_size", "num_blocks"))
            family.add_metric((model, *shape), 1.0)
    return family
