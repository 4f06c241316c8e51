"""Families of requests to encoders: embeddings, rerank, score. Written by the server as each request ends."""

from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter

from headway.observe.engine_families import PREFIX
from headway.observe.loop_histogram import LoopHistogram

EncoderTask = Literal["embeddings", "rerank", "score"]
Outcome = Literal["success", "error", "abort"]
"""abort: its client left."""

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 240, 960)


class EncoderMetrics:
    """What the routes of encoders count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            PREFIX + "encoder_requests",
            "Requests to encoders that ended, by how: success, error, abort.",
            ("model_name", "task", "outcome"),
            registry=registry,
        )
        self.prompt_tokens = Counter(
            PREFIX + "encoder_prompt_tokens",
            "Tokens of the texts of successful requests to encoders.",
            ("model_name", "task"),
            registry=registry,
        )
        self.latency = LoopHistogram(
            PREFIX + "encoder_request_seconds",
            "Of a request to an encoder: arrival to answer.",
            _BUCKETS,
            "model_name",
            "outcome",
        )
        registry.register(self.latency)

    def end(self, model: str, task: EncoderTask, outcome: Outcome, *, num_tokens: int, seconds: float) -> None:
        """A request is over; `model` must be the name of one that is served."""
        self.requests.labels(model, task, outcome).inc()
        self.latency.labels(model, outcome).observe(seconds)
        if num_tokens:
            self.prompt_tokens.labels(model, task).inc(num_tokens)

    def count_native(self, model: str, task: EncoderTask, num_requests: int, *, num_tokens: int) -> None:
        """So many have succeeded whose seconds are in `latency` already (server/native_door)."""
        self.requests.labels(model, task, "success").inc(num_requests)
        self.prompt_tokens.labels(model, task).inc(num_tokens)
