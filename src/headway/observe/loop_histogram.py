"""A histogram that is told of every token and request."""

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway._native import HistogramCounts


class LoopHistogram(Collector):
    """Without the lock of prometheus_client's and its walk through the buckets, since the event loop's thread owns it.
    Its counts are native, since tokens that take the fast path (worker/fast_path) and requests that take the native
    way (server/native_door) are counted there."""

    def __init__(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = buckets
        self._children: dict[tuple[str, ...], HistogramCounts] = {}

    def labels(self, *values: str) -> HistogramCounts:
        """The counts of a value of each label."""
        found = self._children.get(values)
        if found is None:
            found = self._children[values] = HistogramCounts(list(self._bounds))
        return found

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for values, counts in self._children.items():
            buckets = list(zip(names, accumulate(counts.in_bucket), strict=True))
            family.add_metric(values, buckets, counts.sum)
        yield family
