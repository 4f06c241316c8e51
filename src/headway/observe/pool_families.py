"""The families of residency, read at a scrape from the service's stats: who is loaded, what it takes, why who left."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Numbers = Mapping[str, float]

_MODEL_GAUGES: Mapping[str, tuple[str, str]] = {
    "is_resident": ("headway_model_resident", "1 while the model is loaded, else 0."),
    "charged_bytes": ("headway_model_charged_bytes", "Memory that the model is charged with, of all devices."),
    "measured_bytes": ("headway_model_measured_bytes", "Memory that its processes took when they were looked at last."),
    "model_leases": ("headway_model_leases", "Uses that keep the model resident."),
}
_POOL_GAUGES: Mapping[str, tuple[str, str]] = {
    "models": ("headway_models", "Models that may be asked for."),
    "residents": ("headway_models_resident", "Models that are loaded."),
    "loading_models": ("headway_models_loading", "Models that are being loaded."),
    "waiting_spares": (
        "headway_spare_processes",
        "Processes that wait, their framework imported, for a model to load.",
    ),
    "spare_bytes": ("headway_spare_bytes", "Memory that these take."),
}
_DEVICE_GAUGES: Mapping[str, str] = {
    "limit": "What all models may take together.",
    "charged": "What they are charged with.",
    "over_limit": "What of that is over the limit: models that have grown and can not be unloaded for it.",
}


def model_families(models: Mapping[str, Numbers]) -> Iterable[Metric]:
    """Of each model."""
    for key, (name, text) in _MODEL_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=("model_name",))
        for model, numbers in models.items():
            gauge.add_metric((model,), numbers.get(key, 0.0))
        yield gauge
    loads = CounterMetricFamily("headway_model_loads", "Loads that ended well.", labels=("model_name",))
    for model, numbers in models.items():
        loads.add_metric((model,), numbers.get("loads_total", 0.0))
    yield loads
    yield _labelled(
        models,
        "headway_model_load_seconds",
        "Time that loads took, by phase: fetch, start, build, read, warm, and what else a predictor tells.",
        ("load_", "_seconds_total"),
        "phase",
    )
    yield _labelled(
        models,
        "headway_evictions",
        "Models that were stopped, by why: room (another needed the memory), growth (all together took more than the "
        "limit), idle, unload, removed, timeout (of a load).",
        ("stops_", "_total"),
        "reason",
    )


def pool_families(pool: Numbers) -> Iterable[Metric]:
    """Of all models together, and of each device."""
    for key, (name, text) in _POOL_GAUGES.items():
        yield GaugeMetricFamily(name, text, value=pool.get(key, 0.0))
    for what, text in _DEVICE_GAUGES.items():
        family = GaugeMetricFamily(f"headway_memory_{what}_bytes", text, labels=("device",))
        prefix = f"{what}_bytes_"
        for key, value in pool.items():
            if key.startswith(prefix):
                family.add_metric((key.removeprefix(prefix),), value)
        yield family


def _labelled(
    models: Mapping[str, Numbers], name: str, text: str, around: tuple[str, str], label: str
) -> CounterMetricFamily:
    """A counter with a label that stands between the two parts `around` it in the numbers' names."""
    family = CounterMetricFamily(name, text, labels=("model_name", label))
    prefix, suffix = around
    for model, numbers in models.items():
        for key, value in numbers.items():
            if key.startswith(prefix) and key.endswith(suffix):
                family.add_metric((model, key[len(prefix) : -len(suffix)]), value)
    return family
