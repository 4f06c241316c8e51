"""Prometheus metrics, in a registry of their own: families are named after vLLM's, with headway_ before them.

Counters and histograms are written by the server while it streams; the engines' gauges and counters are read from
the service's last stats at each scrape, so that a scrape loads no model and touches no worker. Labels are bounded:
model names are those that answered, routes are templates, methods and reasons are closed sets.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest

from headway._native import TokenTimes
from headway.core.output import Usage
from headway.observe.encoder_metrics import EncoderMetrics
from headway.observe.engine_families import PREFIX, ModelStats, StatsCollector
from headway.observe.infer_metrics import InferMetrics
from headway.observe.loop_histogram import LoopHistogram
from headway.observe.number_histogram import TOKENS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5, 10, 20, 40, 80, 160, 640)
_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10, 40)
_REQUEST_BUCKETS = (0.05, 0.1, 0.3, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960, 1920, 7680)


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
        self.prompt_source = self._counter(
            "prompt_tokens_by_source",
            "Prompt tokens of ended requests: local_compute, local_cache_hit.",
            model,
            "source",
        )
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
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Between the tokens of a choice.", _TOKEN_BUCKETS, model
        )
        self.latency = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _REQUEST_BUCKETS, model)
        self.time_per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Of a choice: first token to last token, over its tokens but one.",
            _TOKEN_BUCKETS,
            model,
        )
        self.request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS, model)
        self.request_generation = self._histogram(
            "request_generation_tokens", "Output tokens of a choice, as billed.", TOKENS, model
        )
        self.request_max_generation = self._histogram(
            "request_max_num_generation_tokens", "Output tokens of a request's longest choice.", TOKENS, model
        )
        self._add_http()
        self.on_render: Callable[[], None] | None = None
        """Called before the numbers are told: some are counted elsewhere."""
        self.grpc_requests = self._counter("grpc_requests", "Calls over gRPC that ended.", "method", "code")
        self.encoders = EncoderMetrics(self.registry)
        self.infer = InferMetrics(self.registry)
        self.registry.register(StatsCollector(stats))
        self._models: dict[str, ModelMetrics] = {}

    def _add_http(self) -> None:
        """The families of HTTP."""
        self.http_requests = self._counter("http_requests", "Answers, by route.", "handler", "method", "status")
        self.http_duration = self._histogram(
            "http_request_duration_seconds", "Arrival to the last byte.", _REQUEST_BUCKETS, "handler"
        )
        self.num_http_open = 0
        """HTTP requests being answered."""
        http_open = Gauge(PREFIX + "http_requests_open", "HTTP requests being answered.", registry=self.registry)
        http_open.set_function(lambda: self.num_http_open + self.num_native_open())
        self.num_native_open: Callable[[], int] = lambda: 0
        """HTTP requests that are answered by native code (server/native_door)."""
        self.native_requests = self._counter("http_native_requests", "Of the answers: those of native code.", "handler")
        self.http_disconnects = self._counter("http_disconnects", "Requests whose client left before the end.")

    def of_model(self, model: str) -> "ModelMetrics":
        """What is counted for each of its requests; its series exist from now on."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelMetrics(self, model)
        return found

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], label: str) -> LoopHistogram:
        histogram = LoopHistogram(PREFIX + name, text, buckets, label)
        self.registry.register(histogram)
        return histogram

    def render(self) -> bytes:
        """The exposition, in Prometheus' text format."""
        if self.on_render is not None:
            self.on_render()
        return generate_latest(self.registry)


class ModelMetrics:
    """One model's children of the families that a request is counted in: looked up once, and not at each request."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._finished = metrics.finished
        self._model = model
        self._by_reason: dict[str, Counter] = {}
        self.prompt_tokens = metrics.prompt_tokens.labels(model)
        self.cached_tokens = metrics.cached_tokens.labels(model)
        self.cache_hits = metrics.prompt_source.labels(model, "local_cache_hit")
        self.computed = metrics.prompt_source.labels(model, "local_compute")
        self.generation_tokens = metrics.generation_tokens.labels(model)
        self.first_token = metrics.first_token.labels(model)
        self.inter_token = metrics.inter_token.labels(model)
        self.latency = metrics.latency.labels(model)
        self.time_per_token = metrics.time_per_token.labels(model)
        self.request_prompt = metrics.request_prompt.labels(model)
        self.request_generation = metrics.request_generation.labels(model)
        self.request_max_generation = metrics.request_max_generation.labels(model)

    def finished(self, reason: str) -> Counter:
        """Of choices that ended so."""
        found = self._by_reason.get(reason)
        if found is None:
            found = self._by_reason[reason] = self._finished.labels(self._model, reason)
        return found


class RequestMeter:
    """Times and counts one accepted request of a model, choice by choice; told by whoever iterates its stream."""

    __slots__ = (
        "_arrived_s",
        "_inter_token",
        "_is_ended",
        "_metrics",
        "_open_choices",
        "_spans",
    )

    def __init__(self, metrics: Metrics, model: str, num_choices: int, arrived_s: float) -> None:
        """
        Args:
            arrived_s: monotonic seconds, of the clock that on_tokens() and end() are told.
        """
        self._metrics = metrics.of_model(model)
        self._arrived_s = arrived_s
        self._open_choices = set(range(num_choices))
        self._spans: dict[int, TokenTimes] = {}
        self._inter_token = self._metrics.inter_token
        self._is_ended = False

    def on_tokens(self, choice: int, num_tokens: int, now_s: float) -> None:
        """A choice gained tokens; a step's several tokens share its time equally."""
        span = self._spans.get(choice)
        if span is None:
            if not self._spans:
                self._metrics.first_token.observe(now_s - self._arrived_s)
            self._spans[choice] = TokenTimes(now_s, num_tokens, self._inter_token)
            return
        span.add(num_tokens, now_s)

    def times(self, choice: int) -> TokenTimes | None:
        """What on_tokens() tells more of; None before its first tokens."""
        return self._spans.get(choice)

    def on_finish(self, choice: int, reason: str) -> None:
        """A choice ended by itself."""
        if choice in self._open_choices:
            self._open_choices.remove(choice)
            self._metrics.finished(reason).inc()

    def end(self, usage: Usage, reason: str, now_s: float) -> None:
        """The request is over; choices that are still open ended by `reason`. Only the first call counts."""
        if self._is_ended:
            return
        self._is_ended = True
        metrics = self._metrics
        for choice in sorted(self._open_choices):
            self.on_finish(choice, reason)
        metrics.prompt_tokens.inc(usage.num_prompt_tokens)
        metrics.cached_tokens.inc(usage.num_cached_tokens)
        metrics.cache_hits.inc(usage.num_cached_tokens)
        metrics.computed.inc(usage.num_prompt_tokens - usage.num_cached_tokens)
        metrics.generation_tokens.inc(usage.num_output_tokens)
        metrics.latency.observe(now_s - self._arrived_s)
        metrics.request_prompt.observe(usage.num_prompt_tokens)
        self._end_choices()

    def _end_choices(self) -> None:
        metrics, longest = self._metrics, 0
        for span in self._spans.values():
            longest = max(longest, span.num_tokens)
            metrics.request_generation.observe(span.num_tokens)
            if span.num_tokens > 1:
                metrics.time_per_token.observe((span.last_s - span.first_s) / (span.num_tokens - 1))
        metrics.request_max_generation.observe(longest)
