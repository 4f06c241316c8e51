"""The pool: owns the state of residency.py. Events go in by post(), effects go out to whoever acts.

Everything happens on one thread, without waiting: an event that an effect posts is queued behind it. So tests drive it
with fake effects (testing/fake_effects) and a fake clock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from headway.config import PoolConfig
from headway.errors import InvariantBroken
from headway.observe.clock import Clock
from headway.service.events import (
    MODELS,
    AddModel,
    Amounts,
    Deny,
    Effect,
    Estimate,
    Event,
    Forget,
    Grant,
    ModelFacts,
    SetTimer,
    Start,
    Stop,
)
from headway.service.pool_state import PLACED, PoolState, Residency, Rules, total
from headway.service.residency import grant_at_once, is_free, transition


class Effects(Protocol):
    """Who does what the pool decides. None of these may block or raise."""

    def estimate(self, effect: Estimate) -> None:
        """Finds out what a model needs."""
        ...

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

    def forget(self, effect: Forget) -> None:
        """Drops a model that was removed."""
        ...


class Pool:
    """The loop around transition()."""

    def __init__(
        self,
        models: Mapping[str, ModelFacts],
        *,
        effects: Effects,
        config: PoolConfig,
        clock: Clock,
        budget: Amounts | None = None,
        max_loading: int = 2,
    ) -> None:
        """
        Args:
            models: those there are from the beginning; AddModel and RemoveModel change it.
            effects: who acts.
            config: the time-outs, back-offs, policy and queue.
            clock: for timers.
            budget: service/budget.make_budget(); None: only what config.max_models says.
            max_loading: loads at the same time.
        """
        if budget is None:
            budget = {} if config.max_models is None else {MODELS: config.max_models}
        self.rules = Rules(config, budget, max_loading)
        self.state = PoolState({})
        """Read it freely; only post() changes it."""
        self._effects = effects
        self._clock = clock
        self._events: deque[Event] = deque()
        self._is_running = False
        self.on_posted: Callable[[], None] | None = None
        """Called after each event that was posted, and all that followed from it."""
        for name, facts in models.items():
            self.post(AddModel(name, facts))

    def post(self, event: Event) -> None:
        """Takes an event, and all that follows from it, before it returns."""
        self._events.append(event)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._events:
                self.state, effects = transition(
                    self.state, self._events.popleft(), now=self._clock.now(), rules=self.rules
                )
                for effect in effects:
                    self._act(effect)
        finally:
            self._is_running = False
        if self.on_posted is not None:
            self.on_posted()

    def is_free(self, model: str) -> bool:
        """Whether a lease would be granted at once."""
        return is_free(self.state, model)

    def try_grant(self, model: str, *, is_use: bool) -> int | None:
        """A lease at once where a Want would have it at once: the generation of its worker, and LeaseEnded must follow.
        None: post a Want."""
        if self._is_running:
            return None  # events before it wait
        granted = grant_at_once(self.state, model, is_use=is_use, now=self._clock.now())
        if granted is None:
            return None
        self.state = granted
        return granted.models[model].generation

    @property
    def num_leases(self) -> int:
        """Of all models."""
        return sum(residency.num_leases for residency in self.state.models.values())

    @property
    def charged(self) -> Amounts:
        """What all residents are charged with, by resource."""
        return total(residency.charged for residency in self.state.models.values())

    def check(self) -> None:
        """Raises InvariantBroken if residents have reserved more than there is, if something is charged or leased where
        no worker is, or if a ticket waits twice or for a model that it might have."""
        residents = {name: it for name, it in self.state.models.items() if it.status in PLACED}
        self._check_reserved(residents.values())
        for name, residency in self.state.models.items():
            if residency.num_leases and residency.status != "ready":
                raise InvariantBroken(f"{name} is {residency.status} and has {residency.num_leases} leases")
            if name not in residents and (residency.charged or residency.reserved):
                raise InvariantBroken(f"{name} is {residency.status} and is charged with {residency.charged}")
        self._check_waiting()

    def _check_reserved(self, residents: Iterable[Residency]) -> None:
        for name, amount in total(residency.reserved for residency in residents).items():
            if amount > self.rules.budget.get(name, amount):
                raise InvariantBroken(f"{amount} of {name} is reserved, and there is {self.rules.budget[name]}")

    def _check_waiting(self) -> None:
        waiting = self.state.waiting
        if len({want.ticket for want in waiting}) != len(waiting):
            raise InvariantBroken("a ticket waits twice")
        for want in waiting:
            residency = self.state.models[want.model]
            if residency.status == "ready" and not residency.is_leaving and want.model not in self.state.in_the_way:
                raise InvariantBroken(f"ticket {want.ticket} waits for {want.model}, which is ready")

    def _act(self, effect: Effect) -> None:
        match effect:
            case Estimate():
                self._effects.estimate(effect)
            case Start():
                self._effects.start(effect)
            case Stop():
                self._effects.stop(effect)
            case Grant():
                self._effects.grant(effect)
            case Deny():
                self._effects.deny(effect)
            case Forget():
                self._effects.forget(effect)
            case SetTimer():
                event = effect.event
                self._clock.call_at(effect.at, lambda: self.post(event))
