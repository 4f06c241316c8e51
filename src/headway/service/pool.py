"""The pool: owns the state of residency.py. Events go in by post(), effects go out to whoever acts.

Everything happens on one thread, without waiting: an event that an effect posts is queued behind it. So tests drive it
with fake effects (testing/fake_effects) and a fake clock.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from headway.config import PoolConfig
from headway.errors import InvariantBroken
from headway.observe.clock import Clock
from headway.service.events import Deny, Effect, Event, Grant, SetTimer, Start, Stop, Tick
from headway.service.residency import PoolState, Residency, transition


class Effects(Protocol):
    """Who does what the pool decides. None of these may block or raise."""

    def start(self, effect: Start) -> None:
        """Starts a worker."""
        ...

    def stop(self, effect: Stop) -> None:
        """Ends a worker."""
        ...

    def grant(self, effect: Grant) -> None:
        """Tells a ticket that it has its model."""
        ...

    def deny(self, effect: Deny) -> None:
        """Tells a ticket that it gets nothing."""
        ...


class Pool:
    """The loop around transition()."""

    def __init__(self, models: Sequence[str], *, effects: Effects, config: PoolConfig, clock: Clock) -> None:
        self.state = PoolState({name: Residency() for name in models})
        """Read it freely; only post() changes it."""
        self._effects = effects
        self._config = config
        self._clock = clock
        self._events: deque[Event] = deque()
        self._is_running = False

    def post(self, event: Event) -> None:
        """Takes an event, and all that follows from it, before it returns."""
        self._events.append(event)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._events:
                self.state, effects = transition(
                    self.state, self._events.popleft(), now=self._clock.now(), config=self._config
                )
                for effect in effects:
                    self._act(effect)
        finally:
            self._is_running = False

    @property
    def num_leases(self) -> int:
        """Of all models."""
        return sum(residency.num_leases for residency in self.state.models.values())

    def check(self) -> None:
        """Raises InvariantBroken if more than one model has the place, or leases are where no worker is."""
        placed = [name for name, it in self.state.models.items() if it.status in ("loading", "ready", "stopping")]
        if len(placed) > 1:
            raise InvariantBroken(f"{len(placed)} models are resident, at most one may be: {placed}")
        for name, residency in self.state.models.items():
            if residency.num_leases and residency.status != "ready":
                raise InvariantBroken(f"{name} is {residency.status} and has {residency.num_leases} leases")

    def _act(self, effect: Effect) -> None:
        match effect:
            case Start():
                self._effects.start(effect)
            case Stop():
                self._effects.stop(effect)
            case Grant():
                self._effects.grant(effect)
            case Deny():
                self._effects.deny(effect)
            case SetTimer():
                tick = Tick(effect.model, effect.generation)
                self._clock.call_at(effect.at, lambda: self.post(tick))
