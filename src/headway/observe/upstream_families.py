"""What clients of other servers counted, and the state of their circuit breakers, as families at a scrape."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

UPSTREAM_STATE = (
    "headway_upstream_state",
    "The circuit breaker before a model's server: 0 closed, 1 half open (one request tries), 2 open (left alone).",
)
UPSTREAM_COUNTERS: Mapping[str, tuple[str, str]] = {
    "upstream_requests_total": ("headway_upstream_requests", "Calls of other servers, those made again too."),
    "upstream_failures_total": (
        "headway_upstream_failures",
        "Of them: not reached, timed out, broken off, or answered 502 to 504.",
    ),
    "upstream_retries_total": ("headway_upstream_retries", "Calls that were made again."),
    "upstream_openings_total": ("headway_upstream_openings", "How often a circuit breaker opened."),
}
"""A number of a model's stats (service/remote/upstream) to its counter, _total left out."""


def upstream_families(models: Mapping[str, Mapping[str, float]]) -> Iterable[Metric]:
    """Of those models alone that other servers compute."""
    numbers = {model: it for model, it in models.items() if "upstream_state" in it or "upstream_requests_total" in it}
    gauge = GaugeMetricFamily(*UPSTREAM_STATE, labels=("model_name",))
    for model, its in numbers.items():
        gauge.add_metric((model,), its.get("upstream_state", 0.0))
    yield gauge
    for key, (name, text) in UPSTREAM_COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=("model_name",))
        for model, its in numbers.items():
            counter.add_metric((model,), its.get(key, 0.0))
        yield counter
