"""What the processes of models that take tensors counted, as families at a scrape."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

INFER_COUNTERS: Mapping[str, tuple[str, str]] = {
    "infer_batches_total": ("headway_infer_batches", "Batches that models of tensors computed."),
    "infer_failures_total": ("headway_infer_failures", "Requests whose model answered by an error."),
    "infer_compute_seconds_total": ("headway_infer_compute_seconds", "Time in which models computed batches."),
    "infer_queue_seconds_total": (
        "headway_infer_queue_seconds",
        "Time in which requests waited in a model's process, of all requests together.",
    ),
}
"""A number of a model's stats (headway_wire/infer_server) to its counter, _total left out."""
INFER_INSTANCES = ("headway_infer_instances", "Processes of a model that take requests.")


def infer_families(models: Mapping[str, Mapping[str, float]]) -> Iterable[Metric]:
    """Of those models alone that take tensors."""
    numbers = {model: it for model, it in models.items() if "infer_instances" in it or "infer_batches_total" in it}
    for key, (name, text) in INFER_COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=("model_name",))
        for model, its in numbers.items():
            counter.add_metric((model,), its.get(key, 0.0))
        yield counter
    gauge = GaugeMetricFamily(*INFER_INSTANCES, labels=("model_name",))
    for model, its in numbers.items():
        gauge.add_metric((model,), its.get("infer_instances", 0.0))
    yield gauge
