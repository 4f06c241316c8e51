"""A pool with fake effects and a fake clock, whose invariants are checked after each event."""

from typing import Any

from headway.config import PoolConfig
from headway.errors import HeadwayError
from headway.service.events import (
    CPU,
    MODELS,
    Deny,
    Effect,
    Event,
    Grant,
    LeaseEnded,
    ModelFacts,
    Need,
    Want,
    WorkerEnded,
    WorkerReady,
)
from headway.service.pool import Pool
from headway.testing.fake_clock import FakeClock
from headway.testing.fake_effects import FakeEffects


class Bench:
    """Models by name; a number is the bytes that one needs."""

    def __init__(self, memory: int | None = None, /, *, models: dict[str, int | ModelFacts], **config: Any) -> None:
        self.clock = FakeClock()
        self.effects = FakeEffects()
        settings = PoolConfig(**config)
        budget = {} if memory is None else {CPU: memory}
        if settings.max_models is not None:
            budget[MODELS] = settings.max_models
        self.pool = Pool(
            {name: size if isinstance(size, ModelFacts) else facts(size) for name, size in models.items()},
            effects=self.effects,
            config=settings,
            clock=self.clock,
            budget=budget,
        )
        self.next_ticket = 1

    def post(self, *events: Event) -> list[Effect]:
        for event in events:
            self.pool.post(event)
            self.pool.check()
        return self.effects.take()

    def advance(self, seconds: float) -> list[Effect]:
        self.clock.advance(seconds)
        self.pool.check()
        return self.effects.take()

    def status(self, model: str = "a") -> str:
        return self.pool.state.models[model].status

    def statuses(self) -> dict[str, str]:
        return {name: residency.status for name, residency in self.pool.state.models.items()}

    def generation(self, model: str) -> int:
        return self.pool.state.models[model].generation

    def ready(self, model: str, load_s: float | None = None) -> list[Effect]:
        """Its load ends well."""
        return self.post(WorkerReady(model, self.generation(model), load_s))

    def gone(self, model: str, error: HeadwayError | None = None) -> list[Effect]:
        """Its process is gone."""
        return self.post(WorkerEnded(model, self.generation(model), error))

    def release(self, model: str) -> list[Effect]:
        return self.post(LeaseEnded(model, self.generation(model)))

    def want(self, model: str) -> int:
        """A new ticket; what came of it is in the effects."""
        ticket = self.next_ticket
        self.next_ticket += 1
        self.pool.post(Want(ticket, model))
        self.pool.check()
        return ticket

    def use(self, *models: str) -> None:
        """A request to each, one after the other, each to its end; all that has to load and stop does."""
        for model in models:
            self.want(model)
            self.settle()
            self.release(model)
            self.settle()
            self.clock.advance(1.0)

    def settle(self) -> None:
        """Loads and stops come to their ends."""
        while moving := [name for name, status in self.statuses().items() if status in ("loading", "stopping")]:
            for name in moving:
                self.ready(name) if self.status(name) == "loading" else self.gone(name)


def facts(num_bytes: int = 0, **fields: Any) -> ModelFacts:
    """Of a model that needs so much."""
    return ModelFacts(need=Need({CPU: num_bytes}), **fields)


def denied(effects: list[Effect]) -> list[tuple[int, type[HeadwayError]]]:
    return [(effect.ticket, type(effect.error)) for effect in effects if isinstance(effect, Deny)]


def granted(effects: list[Effect]) -> list[int]:
    return [effect.ticket for effect in effects if isinstance(effect, Grant)]
