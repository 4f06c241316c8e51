"""Families of inferences: requests with tensors or values. Written by the server as each request ends."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter

from headway._native import HistogramCounts
from headway.observe.encoder_metrics import Outcome
from headway.observe.engine_families import PREFIX
from headway.observe.loop_histogram import LoopHistogram

_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 240)


class InferMetrics:
    """What the doors of inferences count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            PREFIX + "infer_requests",
            "Inferences that ended, by how: success, error, abort.",
            ("model_name", "outcome"),
            registry=registry,
        )
        self.latency = LoopHistogram(
            PREFIX + "infer_request_seconds",
            "Of an inference: arrival to answer, the wait for a cold model's load too.",
            _BUCKETS,
            "model_name",
        )
        registry.register(self.latency)
        self._ended: dict[tuple[str, Outcome], tuple[Counter, HistogramCounts]] = {}

    def end(self, model: str, outcome: Outcome, seconds: float) -> None:
        """An inference is over; `model` must be the name of one that is served."""
        requests, latency = self._ended.get((model, outcome)) or self._find(model, outcome)
        requests.inc()
        latency.observe(seconds)

    def _find(self, model: str, outcome: Outcome) -> tuple[Counter, HistogramCounts]:
        """Those of the labels, which are looked up once."""
        found = self.requests.labels(model, outcome), self.latency.labels(model)
        self._ended[model, outcome] = found
        return found
