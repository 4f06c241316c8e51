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

    def __init__(self, name: str, text: str, buckets: tuple[float, ...], label: str) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._bounds = buckets
        self._children: dict[str, HistogramCounts] = {}

    def labels(self, value: str) -> HistogramCounts:
        """The counts of one label's value."""
        found = self._children.get(value)
        if found is None:
            found = self._children[value] = HistogramCounts(list(self._bounds))
        return found

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        family = HistogramMetricFamily(self._name, self._text, labels=(self._label,))
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for value, counts in self._children.items():
            buckets = list(zip(names, accumulate(counts.in_bucket), strict=True))
            family.add_metric((value,), buckets, counts.sum)
        yield family
