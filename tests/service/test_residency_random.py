"""Ten thousand acts in any order, several times: what must hold holds after each of them."""

import random
from typing import Any

import pytest

from headway.errors import HeadwayError, WorkerDied
from headway.service.events import (
    CPU,
    AddModel,
    Deny,
    Effect,
    Estimate,
    Estimated,
    Forget,
    Grant,
    Keep,
    LeaseEnded,
    Measured,
    ModelFacts,
    Need,
    RemoveModel,
    Start,
    Stop,
    Unload,
    Unwant,
    Want,
    WorkerEnded,
    WorkerLost,
    WorkerReady,
)
from service.pool_bench import Bench

NUM_ACTS = 10_000
MEMORY = 12
NAMES = "abcdefgh"
DIED = WorkerDied("gone")


class Machine:
    """Carries out what the pool decides, in its own time, and remembers what it was told."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.rng = random.Random(seed)
        models = {name: self._facts(name) for name in NAMES}
        self.bench = Bench(MEMORY, models=models, max_queued_requests=12, load_timeout_s=50.0, **config)
        self.open: set[int] = set()
        self.granted: list[Grant] = []
        self.working: dict[str, Estimate | Start] = {}
        """Estimates and workers that there are."""
        self.stopping: dict[str, HeadwayError | None] = {}
        self.num_answers = 0
        self.counts: dict[str, int] = {}

    def _facts(self, name: str) -> ModelFacts:
        rng = self.rng
        size = 1 + NAMES.index(name) % 5
        need = Need({CPU: size}, more_bytes=rng.choice((0, 0, 2)), is_guess=rng.random() < 0.3)
        timeout_s = rng.choice((None, None, 0.0, 3.0))
        return ModelFacts(need if rng.random() < 0.7 else None, is_pinned=name == "a", idle_timeout_s=timeout_s)

    def run(self) -> None:
        acts = [self.want] * 8 + [self.end_lease] * 8 + [self.get_ready] * 6 + [self.wait] * 3
        acts += [self.unwant, self.die, self.lose, self.unload, self.measure, self.end, self.end, self.keep]
        acts += [self.come] * 3
        for _ in range(NUM_ACTS):
            self.rng.choice(acts)()
            self.check()

    def post(self, *events: Any) -> None:
        for event in events:
            for effect in self.bench.post(event):
                self.note(effect)

    def note(self, effect: Effect) -> None:
        self.counts[type(effect).__name__] = self.counts.get(type(effect).__name__, 0) + 1
        match effect:
            case Estimate(model) | Start(model):
                assert model not in self.working, f"{model} is loaded twice"
                self.working[model] = effect
            case Stop(model, generation, error, reason):
                assert self.working[model].generation == generation
                assert model not in self.stopping
                assert not any(grant.model == model for grant in self.granted), f"{model} is used"
                if reason in ("room", "growth", "idle"):
                    assert isinstance(self.working[model], Start)
                    residency = self.bench.pool.state.models[model]
                    assert residency.was_ready, f"{model} is loading"
                    assert not residency.facts.is_pinned, f"{model} is pinned"
                self.stopping[model] = error
            case Grant(ticket, model, generation):
                self.answer(ticket)
                assert self.working[model].generation == generation
                assert model not in self.stopping
                self.granted.append(effect)
            case Deny(ticket):
                self.answer(ticket)
            case Forget(model):
                assert model not in self.working

    def answer(self, ticket: int) -> None:
        assert ticket in self.open, f"ticket {ticket} is answered twice"
        self.open.discard(ticket)
        self.num_answers += 1

    def check(self) -> None:
        state = self.bench.pool.state
        assert {want.ticket for want in state.waiting} == self.open
        assert self.bench.pool.num_leases == len(self.granted)
        placed = {name for name, it in state.models.items() if it.status not in ("cold", "failed")}
        assert placed == set(self.working)

    # acts

    def want(self) -> None:
        ticket = self.bench.next_ticket
        self.bench.next_ticket += 1
        self.open.add(ticket)
        self.post(Want(ticket, self.rng.choice(NAMES), is_use=self.rng.random() < 0.9))

    def unwant(self) -> None:
        if self.open:
            ticket = self.rng.choice(sorted(self.open))
            self.open.discard(ticket)
            self.post(Unwant(ticket))

    def end_lease(self) -> None:
        if self.granted:
            grant = self.granted.pop(self.rng.randrange(len(self.granted)))
            self.post(LeaseEnded(grant.model, grant.generation, self.rng.random() < 0.8))

    def get_ready(self) -> None:
        """Something that works comes to its next state: it stops, is estimated, or is ready."""
        if not self.working:
            return
        model = self.rng.choice(sorted(self.working))
        work = self.working[model]
        if model in self.stopping:
            del self.working[model]
            self.post(WorkerEnded(model, work.generation, self.stopping.pop(model)))
        elif isinstance(work, Estimate):
            del self.working[model]
            size = self.rng.choice((1, 3, 5, MEMORY + 1 if self.rng.random() < 0.05 else 2))
            self.post(Estimated(model, work.generation, Need({CPU: size}, is_guess=True)))
        else:
            self.post(WorkerReady(model, work.generation, self.rng.random() * 5))

    def lose(self) -> None:
        """A worker that is ready answers no more."""
        for model, work in self.working.items():
            if isinstance(work, Start) and self.bench.status(model) == "ready" and self.rng.random() < 0.2:
                self.granted = [grant for grant in self.granted if grant.model != model]
                self.post(WorkerLost(model, work.generation))
                return

    def die(self) -> None:
        if self.working:
            self._end(self.rng.choice(sorted(self.working)), DIED)

    def end(self) -> None:
        """What was told to stop, or was lost, is gone."""
        for model in sorted(self.working):
            if self.bench.status(model) == "stopping":
                self._end(model, self.stopping.get(model, DIED if model not in self.stopping else None))
                return

    def _end(self, model: str, error: HeadwayError | None) -> None:
        work = self.working.pop(model)
        self.stopping.pop(model, None)
        self.granted = [grant for grant in self.granted if grant.model != model]
        self.post(WorkerEnded(model, work.generation, error))

    def unload(self) -> None:
        self.post(Unload(self.rng.choice(NAMES)))

    def keep(self) -> None:
        self.post(Keep(self.rng.choice("ab")))

    def measure(self) -> None:
        if self.working:
            model = self.rng.choice(sorted(self.working))
            self.post(Measured(model, self.working[model].generation, {CPU: self.rng.randint(0, 6)}))

    def come(self) -> None:
        name = self.rng.choice(NAMES[2:])
        known = self.bench.pool.state.models.get(name)
        if known is None or known.is_removed:
            self.post(AddModel(name, self._facts(name)))
        elif self.rng.random() < 0.5:
            self.post(RemoveModel(name))

    def wait(self) -> None:
        for effect in self.bench.advance(self.rng.choice((0.5, 1.0, 5.0, 30.0))):
            self.note(effect)


@pytest.mark.parametrize(
    ("seed", "config"),
    [
        (1, {"eviction": "cost"}),
        (2, {"eviction": "lru", "max_models": 3}),
        (3, {"eviction": "lfu", "queue_timeout_s": 20.0}),
    ],
)
def test_what_must_hold_holds_after_each_of_ten_thousand_acts(seed: int, config: dict[str, Any]) -> None:
    machine = Machine(seed, **config)
    machine.run()
    # All of it happened, often.
    assert min(machine.counts[name] for name in ("Estimate", "Start", "Stop", "Grant", "Deny", "Forget")) > 30
    assert machine.num_answers > NUM_ACTS / 10


@pytest.mark.parametrize("seed", range(4))
def test_everybody_is_answered_once_the_machine_does_its_work(seed: int) -> None:
    """No ticket waits for ever: with loads, ends and timers going on, the line runs empty."""
    machine = Machine(seed)
    for _ in range(300):
        machine.rng.choice([machine.want, machine.want, machine.end_lease, machine.get_ready, machine.come])()
    for _ in range(3000):
        if not machine.open:
            break
        machine.rng.choice([machine.end_lease, machine.get_ready, machine.get_ready, machine.wait])()
        machine.check()
    assert not machine.open
