"""A histogram as plain numbers: filled in a worker, sent among its Stats, shown by the server at a scrape.

Its numbers are counters (*_total), so that they go on over restarts of the worker as other counters do.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640, 2560)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""headway_wire/infer_server counts by the same."""
TIMES_TAKEN_OFF = (0, 1, 2, 5, 10, 20, 100)


@dataclass(frozen=True, slots=True)
class HistogramSpec:
    """What worker and server agree on: the name among the Stats, the family's name and words, the upper bounds."""

    key: str
    family: str
    text: str
    bounds: tuple[float, ...]

    def bucket_key(self, index: int) -> str:
        """Of the bucket's own count; the last index, len(bounds), is the bucket without a bound."""
        return f"{self.key}_bucket_{index}_total"

    @property
    def sum_key(self) -> str:
        """Of the sum of all values."""
        return f"{self.key}_sum_total"


class NumberHistogram:
    """Counts of one histogram. One thread owns it."""

    __slots__ = ("_counts", "_sum", "spec")

    def __init__(self, spec: HistogramSpec) -> None:
        self.spec = spec
        self._counts = [0] * (len(spec.bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """A value belongs to the first bucket whose bound it does not exceed."""
        self._counts[bisect_left(self.spec.bounds, value)] += 1
        self._sum += value

    def values(self) -> dict[str, float]:
        """By bucket_key and sum_key; buckets without any are left out."""
        spec = self.spec
        values = {spec.bucket_key(index): float(count) for index, count in enumerate(self._counts) if count}
        return values | {spec.sum_key: self._sum} if values else {}


def bucket_counts(spec: HistogramSpec, values: Mapping[str, float]) -> list[float]:
    """The count of each bucket alone, the one without a bound last, from the numbers of values()."""
    return [values.get(spec.bucket_key(index), 0.0) for index in range(len(spec.bounds) + 1)]


QUEUE_TIME = HistogramSpec(
    "queue_time", "request_queue_time_seconds", "From the worker's queue to the first step of a choice.", SECONDS
)
PREFILL_TIME = HistogramSpec(
    "prefill_time", "request_prefill_time_seconds", "First step to first token of a choice.", SECONDS
)
DECODE_TIME = HistogramSpec(
    "decode_time", "request_decode_time_seconds", "First token to last token of a choice.", SECONDS
)
INFERENCE_TIME = HistogramSpec(
    "inference_time", "request_inference_time_seconds", "First step to last token of a choice.", SECONDS
)
STEP_SIZE = HistogramSpec("step_size", "iteration_tokens_total", "Tokens that a step computed.", STEP_TOKENS)
PARAMS_N = HistogramSpec("params_n", "request_params_n", "Choices asked for (n).", CHOICES)
PARAMS_MAX_TOKENS = HistogramSpec(
    "params_max_tokens", "request_params_max_tokens", "max_tokens, where it was asked for.", TOKENS
)
PREEMPTIONS = HistogramSpec(
    "request_preemptions",
    "request_num_preemptions",
    "How often a choice was taken off to make room.",
    TIMES_TAKEN_OFF,
)
PREFILL_COMPUTED = HistogramSpec(
    "prefill_computed",
    "request_prefill_kv_computed_tokens",
    "Prompt tokens of a choice that the prefix cache had not.",
    TOKENS,
)
POOL_WAIT = HistogramSpec(
    "pool_wait", "pool_wait_seconds", "How long requests waited for their model to be resident.", SECONDS
)
INFER_BATCH_SIZE = HistogramSpec(
    "infer_batch_size", "infer_batch_size", "Requests that a model of tensors computed together.", BATCH_SIZES
)
ENGINE_HISTOGRAMS = (
    QUEUE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    INFERENCE_TIME,
    STEP_SIZE,
    PARAMS_N,
    PARAMS_MAX_TOKENS,
    PREEMPTIONS,
    PREFILL_COMPUTED,
)
"""What an engine fills."""
