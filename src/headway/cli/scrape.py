"""A server's numbers at two moments, and what lies between them: rates, and percentiles of histograms. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Buckets = Mapping[float, float]
"""Upper bound to how many values do not exceed it."""
_MODEL = "model_name"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of /metrics: what has no model, and what each model has, summed over other labels."""

    at_s: float
    """When it came: monotonic seconds."""
    values: Mapping[tuple[str, str], float]
    """(sample's name, model) to value; the model is "" where there is none."""
    buckets: Mapping[tuple[str, str], Buckets] = field(default_factory=dict)
    """(histogram's name, model) to its buckets."""

    @property
    def models(self) -> list[str]:
        """All that are named, in order."""
        return sorted({model for _, model in self.values if model})


def parse_scrape(text: str, at_s: float) -> Scrape:
    """A Scrape of an exposition. Raises ValueError for what is none."""
    values: dict[tuple[str, str], float] = {}
    buckets: dict[tuple[str, str], dict[float, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            model = sample.labels.get(_MODEL, "")
            if "le" in sample.labels:
                counts = buckets.setdefault((family.name, model), {})
                bound = float(sample.labels["le"])
                counts[bound] = counts.get(bound, 0.0) + sample.value
            else:
                values[sample.name, model] = values.get((sample.name, model), 0.0) + sample.value
    return Scrape(at_s, values, buckets)


@dataclass(frozen=True, slots=True)
class Span:
    """What happened between two scrapes; without an earlier one, since the server's start."""

    now: Scrape
    before: Scrape | None = None

    def value(self, name: str, model: str = "") -> float:
        """A gauge, now."""
        return self.now.values.get((name, model), 0.0)

    def increase(self, name: str, model: str = "") -> float:
        """Of a counter; one that went back began anew."""
        now = self.value(name, model)
        before = self.before.values.get((name, model), 0.0) if self.before is not None else 0.0
        return now - before if now >= before else now

    def rate(self, name: str, model: str = "") -> float | None:
        """A counter's increase a second; None without an earlier scrape."""
        if self.before is None or self.now.at_s <= self.before.at_s:
            return None
        return self.increase(name, model) / (self.now.at_s - self.before.at_s)

    def percentile(self, histogram: str, share: float, model: str = "") -> float | None:
        """Of what was observed in between, as Prometheus' histogram_quantile estimates it; None: nothing was."""
        now = self.now.buckets.get((histogram, model), {})
        before = self.before.buckets.get((histogram, model), {}) if self.before is not None else {}
        counts = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
        if any(count < 0 for count in counts.values()):
            counts = dict(now)
        return quantile(counts, share)


def quantile(buckets: Buckets, share: float) -> float | None:
    """The value below which `share` of all lies: even within a bucket, the last finite bound for what exceeds it."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    wanted = share * total
    lower_bound, lower_count = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= wanted and count > lower_count:
            if bound == float("inf"):
                return lower_bound
            return lower_bound + (bound - lower_bound) * (wanted - lower_count) / (count - lower_count)
        if bound != float("inf"):
            lower_bound, lower_count = bound, count
    return lower_bound
