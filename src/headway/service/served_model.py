"""One model that is served: its config, and what is known of it while it comes, serves and goes."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.config import ModelConfig
from headway.errors import HeadwayError
from headway.observe.number_histogram import POOL_WAIT, NumberHistogram
from headway.service.estimate import ModelEstimate
from headway.service.events import ModelFacts
from headway.service.loader import OpenedModel
from headway.worker.resident import ResidentClient


@dataclass(slots=True, eq=False)
class ServedModel:
    """Owned by residents.py and lives.py; others read it."""

    id: str
    config: ModelConfig
    path: Path | None = None
    """Where its files are, once that is known."""
    opening: asyncio.Task[OpenedModel] | None = None
    """Of the last start, or of the first who asked for its text."""
    client: ResidentClient | None = None
    """While it is ready."""
    life: asyncio.Task[None] | None = None
    """An estimate, or a worker from its start to its end."""
    stop_error: HeadwayError | None = None
    """Why the life that ends now was stopped; None: because the pool wanted its place."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase of the last load, in order."""
    phase_started_at: float = 0.0
    fraction: float | None = None
    """Of the phase under way."""
    ready_at: float = 0.0
    """When its last load ended well."""
    fetch_s: float = 0.0
    """What finding its files took, before the load that follows."""
    estimate: ModelEstimate | None = None
    """What it was found to need; None: nobody asked."""
    load_seconds: dict[str, float] = field(default_factory=dict)
    """Of each phase, over all loads."""
    waits: NumberHistogram = field(default_factory=lambda: NumberHistogram(POOL_WAIT))
    """Of requests that had to wait for it."""
    watchers: set[asyncio.Event] = field(default_factory=set)
    """Set when something changes that who watches its load wants to know."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Ready.info of its last worker."""
    update_error: HeadwayError | None = None
    """Why what is new in its watched source does not take its place."""
    totals: dict[str, float] = field(default_factory=dict)
    """The counters (*_total) of the workers that are gone, so that they never go back."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def opened(self) -> OpenedModel | None:
        """Its text, if it is open."""
        if self.opening is None or not self.opening.done() or self.opening.cancelled() or self.opening.exception():
            return None
        return self.opening.result()

    @property
    def facts(self) -> ModelFacts:
        """What the pool is told of it."""
        residency = self.config.residency
        return ModelFacts(is_pinned=residency.is_pinned, idle_timeout_s=residency.idle_timeout_s)

    def tell_watchers(self) -> None:
        """Something changed."""
        for event in self.watchers:
            event.set()

    def enter_phase(self, phase: str, fraction: float | None, now: float) -> None:
        """The load is there, or further on in it."""
        if phase not in self.phases:
            self.end_phase(now)
            self.phases[phase] = 0.0
            self.phase_started_at = now
        self.fraction = fraction
        self.tell_watchers()

    def end_phase(self, now: float) -> None:
        """The one under way, if there is one, is over."""
        if self.phases:
            self.phases[next(reversed(self.phases))] = now - self.phase_started_at
        self.fraction = None
