"""Prometheus metrics, in a registry of their own: families are named after vLLM's, with headway_ before them.

Counters and histograms are written by the server while it streams; the engines' gauges and counters are read from
the service's last stats at each scrape, so that a scrape loads no model and touches no worker. Labels are bounded:
model names are those that answered, routes are templates, methods and reasons are closed sets.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.core.output import Usage

PREFIX: Final = "headway_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5, 10, 20, 40, 80, 160, 640)
_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10, 40)
_REQUEST_BUCKETS = (0.05, 0.1, 0.3, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960, 1920, 7680)

ModelStats = Mapping[str, Mapping[str, Mapping[str, float]]]
"""{"models": {model id: numbers}, "pool": {"pool": numbers}}: what service/protocol's stats() gives."""

ENGINE_GAUGES: Mapping[str, tuple[str, str]] = {
    "num_running": ("headway_num_requests_running", "Sequences that run."),
    "num_waiting": ("headway_num_requests_waiting", "Sequences that wait for their first step."),
    "kv_cache_usage": ("headway_kv_cache_usage_perc", "KV blocks that sequences use, over all blocks: 0 to 1."),
    "num_blocks": ("headway_kv_blocks", "Blocks of the KV cache."),
    "num_free_blocks": ("headway_kv_blocks_free", "KV blocks that hold nothing."),
    "num_cached_blocks": ("headway_kv_blocks_cached", "KV blocks that only the prefix cache holds."),
    "client_open_requests": ("headway_requests_open", "Requests that the worker has accepted and not ended."),
}
"""A number of a model's stats to its gauge."""

ENGINE_COUNTERS: Mapping[str, tuple[str, str]] = {
    "preemptions_total": ("headway_num_preemptions", "Sequences taken off to make room."),
    "prefix_cache_queries_total": ("headway_prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits_total": ("headway_prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "computed_tokens_total": ("headway_computed_tokens", "Tokens that went through the model."),
    "steps_total": ("headway_engine_steps", "Steps of the engine."),
    "client_overshoot_tokens_total": ("headway_overshoot_tokens", "Tokens computed after the end of their choice."),
    "wire_cpu_seconds_total": ("headway_wire_cpu_seconds", "Processor time of engine threads in sending events."),
    "client_aborts_total": ("headway_request_aborts", "Aborts sent to the worker, one a request or choice."),
}
"""A number of a model's stats to its counter, _total left out."""

POOL_GAUGES: Mapping[str, tuple[str, str]] = {
    "waiting_requests": ("headway_pool_requests_waiting", "Requests that wait for a model to become ready."),
    "leases": ("headway_pool_leases", "Uses that keep a model resident."),
}
POOL_COUNTERS: Mapping[str, tuple[str, str]] = {
    "worker_starts_total": ("headway_worker_starts", "Starts of worker processes."),
    "worker_failures_total": ("headway_worker_failures", "Worker processes that failed to load or died."),
}


class Metrics:
    """All families of one server. Methods cost about a microsecond and never raise for a new label value."""

    def __init__(self, stats: Callable[[], ModelStats]) -> None:
        """
        Args:
            stats: read at each scrape; must not block.
        """
        self.registry = CollectorRegistry(auto_describe=False)
        model = "model_name"
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests.", model)
        self.cached_tokens = self._counter("prompt_tokens_cached", "Prompt tokens not computed again.", model)
        self.generation_tokens = self._counter("generation_tokens", "Output tokens as billed.", model)
        self.finished = self._counter(
            "request_success", "Choices that ended, by how: stop, length, abort, error.", model, "finished_reason"
        )
        self.rejections = self._counter(
            "admission_rejections", "Requests refused or failed, by the error's code.", "reason"
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN_BUCKETS, model
        )
        self.inter_token = TokenHistogram(
            PREFIX + "inter_token_latency_seconds", "Between the tokens of a choice.", _TOKEN_BUCKETS, model
        )
        self.registry.register(self.inter_token)
        self.latency = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _REQUEST_BUCKETS, model)
        self.http_requests = self._counter("http_requests", "Answers, by route.", "handler", "method", "status")
        self.http_duration = self._histogram(
            "http_request_duration_seconds", "Arrival to the last byte.", _REQUEST_BUCKETS, "handler"
        )
        self.http_open = Gauge(PREFIX + "http_requests_open", "HTTP requests being answered.", registry=self.registry)
        self.http_disconnects = self._counter("http_disconnects", "Requests whose client left before the end.")
        self.registry.register(StatsCollector(stats))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], label: str) -> Histogram:
        return Histogram(PREFIX + name, text, (label,), buckets=buckets, registry=self.registry)

    def render(self) -> bytes:
        """The exposition, in Prometheus' text format."""
        return generate_latest(self.registry)


class TokenHistogram(Collector):
    """A histogram that is told of every token: without the lock of prometheus_client's, since one thread owns it."""

    def __init__(self, name: str, text: str, buckets: tuple[float, ...], label: str) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._bounds = buckets
        self._children: dict[str, TokenCounts] = {}

    def labels(self, value: str) -> "TokenCounts":
        """The counts of one label's value."""
        return self._children.setdefault(value, TokenCounts(self._bounds))

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        family = HistogramMetricFamily(self._name, self._text, labels=(self._label,))
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for value, counts in self._children.items():
            buckets = list(zip(names, accumulate(counts.in_bucket), strict=True))
            family.add_metric((value,), buckets, counts.sum)
        yield family


class TokenCounts:
    """One label's counts in a TokenHistogram."""

    __slots__ = ("_bounds", "in_bucket", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.in_bucket = [0] * (len(bounds) + 1)
        """Of each bucket alone; the last one has no bound."""
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """The same value so many times."""
        self.in_bucket[bisect_left(self._bounds, value)] += count
        self.sum += value * count


class RequestMeter:
    """Times and counts one accepted request of a model, choice by choice; told by whoever iterates its stream."""

    def __init__(self, metrics: Metrics, model: str, num_choices: int, arrived_s: float) -> None:
        """
        Args:
            arrived_s: monotonic seconds, of the clock that on_tokens() and end() are told.
        """
        self._metrics = metrics
        self._model = model
        self._arrived_s = arrived_s
        self._open_choices = set(range(num_choices))
        self._last_token_s: dict[int, float] = {}
        self._inter_token = metrics.inter_token.labels(model)
        self._is_ended = False

    def on_tokens(self, choice: int, num_tokens: int, now_s: float) -> None:
        """A choice gained tokens; a step's several tokens share its time equally."""
        if not self._last_token_s:
            self._metrics.first_token.labels(self._model).observe(now_s - self._arrived_s)
        last_s = self._last_token_s.get(choice)
        if last_s is not None:
            self._inter_token.observe((now_s - last_s) / num_tokens, num_tokens)
        self._last_token_s[choice] = now_s

    def on_finish(self, choice: int, reason: str) -> None:
        """A choice ended by itself."""
        if choice in self._open_choices:
            self._open_choices.remove(choice)
            self._metrics.finished.labels(self._model, reason).inc()

    def end(self, usage: Usage, reason: str, now_s: float) -> None:
        """The request is over; choices that are still open ended by `reason`. Only the first call counts."""
        if self._is_ended:
            return
        self._is_ended = True
        for choice in sorted(self._open_choices):
            self.on_finish(choice, reason)
        self._metrics.prompt_tokens.labels(self._model).inc(usage.num_prompt_tokens)
        self._metrics.cached_tokens.labels(self._model).inc(usage.num_cached_tokens)
        self._metrics.generation_tokens.labels(self._model).inc(usage.num_output_tokens)
        self._metrics.latency.labels(self._model).observe(now_s - self._arrived_s)


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
        for key, (name, text) in POOL_GAUGES.items():
            yield GaugeMetricFamily(name, text, value=pool.get(key, 0.0))
        for key, (name, text) in POOL_COUNTERS.items():
            yield CounterMetricFamily(name, text, value=pool.get(key, 0.0))
