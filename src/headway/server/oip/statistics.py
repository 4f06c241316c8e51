"""How many inferences came through the protocol's doors, and how long they took: for /stats and ModelStatistics."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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

    def of(self, key: ModelKey) -> ModelStatistics:
        """Zeros where there was no inference."""
        return self._models.get(key) or ModelStatistics()

    @contextmanager
    def measure(self, key: ModelKey) -> Iterator[None]:
        """Around one inference; it failed if this is left by an exception."""
        statistics = self._models.setdefault(key, ModelStatistics())
        started_s = self._clock.now()
        try:
            yield
        except BaseException:
            statistics.num_failures += 1
            statistics.failure_s += self._clock.now() - started_s
            raise
        statistics.num_successes += 1
        statistics.success_s += self._clock.now() - started_s
        statistics.last_inference_ms = time.time_ns() // 1_000_000
