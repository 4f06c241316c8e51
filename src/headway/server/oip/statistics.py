"""How many inferences came through the protocol's doors, and how long they took: for /stats and ModelStatistics."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from headway.observe.clock import Clock

ModelKey = tuple[str, str]
"""Id and version."""


@dataclass(slots=True)
class ModelStatistics:
    """Of one model, since the server's start."""

    num_successes: int = 0
    success_s: float = 0.0
    num_failures: int = 0
    """Those whose caller left too."""
    failure_s: float = 0.0
    last_inference_ms: int = 0
    """Unix milliseconds; 0: there was none."""

    @property
    def success_ns(self) -> int:
        """From an inference's coming to its answer, in all."""
        return int(self.success_s * 1e9)

    @property
    def failure_ns(self) -> int:
        """The same of those that failed."""
        return int(self.failure_s * 1e9)


class InferenceStatistics:
    """By model. Those that are not served are never in it: a target is found before anything is measured."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._models: dict[ModelKey, ModelStatistics] = {}
        self.on_read: Callable[[], None] | None = None
        """Called before they are told: some are counted elsewhere."""

    def of(self, key: ModelKey) -> ModelStatistics:
        """Zeros where there was no inference."""
        if self.on_read is not None:
            self.on_read()
        return self._models.get(key) or ModelStatistics()

    def add(self, key: ModelKey) -> ModelStatistics:
        """What is counted for a model, from now on."""
        statistics = self._models.get(key)
        if statistics is None:
            statistics = self._models[key] = ModelStatistics()
        return statistics

    def measure(self, key: ModelKey) -> "Measurement":
        """Around one inference; it failed if this is left by an exception."""
        return Measurement(self.add(key), self._clock)


class Measurement:
    """A context manager; or begin(), and end() elsewhere. contextlib's would make a generator for each inference."""

    __slots__ = ("_clock", "_started_s", "_statistics")

    def __init__(self, statistics: ModelStatistics, clock: Clock) -> None:
        self._statistics = statistics
        self._clock = clock
        self._started_s = 0.0

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(is_failed=error is not None)

    def begin(self) -> None:
        """The inference begins now."""
        self._started_s = self._clock.now()

    def end(self, *, is_failed: bool) -> None:
        """It has ended, and is counted."""
        statistics, seconds = self._statistics, self._clock.now() - self._started_s
        if is_failed:
            statistics.num_failures += 1
            statistics.failure_s += seconds
            return
        statistics.num_successes += 1
        statistics.success_s += seconds
        statistics.last_inference_ms = time.time_ns() // 1_000_000
