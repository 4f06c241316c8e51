"""Which eviction policy keeps the right models: a trace of requests to 200 models, on a clock that is not waited for.

The pool is the real one (service/pool); workers are made up: a load takes the model's seconds, an answer a second or
so. Models differ in size (20 MB to 8 GB, log-uniform) and in what their loads cost (a fixed part of their framework,
and 50 to 400 MB/s). Popularity is Zipf's; over the day each model's rate swings around its own hour, and all together
are asked less at night. The budget holds a fifth of all bytes.

    .venv/bin/python benchmarks/eviction.py            # three seeds, three policies
    .venv/bin/python benchmarks/eviction.py --seeds 1 --days 1

It prints, for each seed and policy: the hit rate (requests that waited for no load), what a request waits in the mean
for its model, the same of those that waited, and loads.
"""

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from headway.config import EvictionPolicy, PoolConfig
from headway.service.events import (
    CPU,
    Deny,
    Estimate,
    Forget,
    Grant,
    LeaseEnded,
    ModelFacts,
    Need,
    Start,
    Stop,
    Want,
    WorkerEnded,
    WorkerReady,
)
from headway.service.pool import Pool
from headway.testing.fake_clock import FakeClock

NUM_MODELS = 200
DAY_S = 86_400.0
MB, GB = 10**6, 10**9
BUDGET_SHARE = 0.2
ZIPF_EXPONENT = 0.9
REQUESTS_A_DAY = 20_000
STOP_S = 0.2


@dataclass(frozen=True, slots=True)
class Model:
    """One of the 200."""

    name: str
    num_bytes: int
    load_s: float
    weight: float
    """Of its requests among all, over the day."""
    peak_s: float
    """The time of day at which it is asked most."""

    def rate(self, now: float) -> float:
        """Relative to its mean: three times as much at its peak as twelve hours later."""
        return self.weight * (1.0 + 0.5 * math.cos(2 * math.pi * (now - self.peak_s) / DAY_S))


def make_models(rng: random.Random) -> list[Model]:
    """Popularity has nothing to do with size."""
    ranks = list(range(1, NUM_MODELS + 1))
    rng.shuffle(ranks)
    models = []
    for index, rank in enumerate(ranks):
        num_bytes = int(math.exp(rng.uniform(math.log(20 * MB), math.log(8 * GB))))
        load_s = rng.choice((0.2, 0.5, 2.0, 6.0)) + num_bytes / rng.uniform(50 * MB, 400 * MB)
        peak_s = rng.choice((9, 14, 20, 3)) * 3600.0 + rng.gauss(0, 3600.0)
        models.append(Model(f"m{index}", num_bytes, load_s, rank**-ZIPF_EXPONENT, peak_s))
    return models


def make_trace(models: Sequence[Model], num_days: float, rng: random.Random) -> Iterator[tuple[float, Model]]:
    """Seconds since the beginning, and who is asked; ascending. Rates are looked at again each quarter of an hour."""
    slot_s, now = 900.0, 0.0
    while now < num_days * DAY_S:
        everybody = 1.0 - 0.6 * math.cos(2 * math.pi * (now - 3 * 3600.0) / DAY_S)
        mean = REQUESTS_A_DAY * everybody * slot_s / DAY_S
        num_requests = max(0, round(rng.gauss(mean, math.sqrt(mean))))
        asked = rng.choices(models, [model.rate(now) for model in models], k=num_requests)
        yield from zip(sorted(now + rng.random() * slot_s for _ in asked), asked, strict=True)
        now += slot_s


class Machine:
    """Does what the pool decides, in the models' own time (pool.Effects)."""

    def __init__(self, models: Sequence[Model], policy: EvictionPolicy, seed: int) -> None:
        self.clock = FakeClock(0.0)
        self.models = {model.name: model for model in models}
        self.waits: list[float] = []
        self.num_denied = 0
        self._rng = random.Random(seed)
        self._asked_at: dict[int, float] = {}
        facts = {model.name: ModelFacts(Need({CPU: model.num_bytes}, load_s=model.load_s)) for model in models}
        budget = {CPU: int(BUDGET_SHARE * sum(model.num_bytes for model in models))}
        self.pool = Pool(facts, effects=self, config=PoolConfig(eviction=policy), clock=self.clock, budget=budget)

    def ask(self, ticket: int, model: Model) -> None:
        self._asked_at[ticket] = self.clock.now()
        self.pool.post(Want(ticket, model.name))

    def estimate(self, effect: Estimate) -> None:
        """Needs are known."""

    def start(self, effect: Start) -> None:
        ready = WorkerReady(effect.model, effect.generation, self.models[effect.model].load_s)
        self._later(self.models[effect.model].load_s, ready)

    def stop(self, effect: Stop) -> None:
        self._later(STOP_S, WorkerEnded(effect.model, effect.generation, effect.error))

    def grant(self, effect: Grant) -> None:
        self.waits.append(self.clock.now() - self._asked_at.pop(effect.ticket))
        self._later(self._rng.lognormvariate(0.0, 0.8), LeaseEnded(effect.model, effect.generation))

    def deny(self, effect: Deny) -> None:
        self.num_denied += 1

    def forget(self, effect: Forget) -> None:
        """Nobody is removed."""

    def _later(self, seconds: float, event: WorkerReady | WorkerEnded | LeaseEnded) -> None:
        self.clock.call_at(self.clock.now() + seconds, lambda: self.pool.post(event))


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy over one trace."""

    hit_rate: float
    mean_wait_s: float
    """Over all requests."""
    mean_cold_s: float
    """Over those that waited."""
    num_loads: int


def run(policy: EvictionPolicy, seed: int, num_days: float) -> Figures:
    """One trace under one policy."""
    rng = random.Random(seed)
    models = make_models(rng)
    machine = Machine(models, policy, seed)
    for ticket, (at, model) in enumerate(make_trace(models, num_days, rng)):
        machine.clock.advance(max(0.0, at - machine.clock.now()))
        machine.ask(ticket, model)
    machine.clock.advance(3600.0)
    machine.pool.check()
    cold = [wait for wait in machine.waits if wait > 0]
    return Figures(
        1.0 - len(cold) / len(machine.waits), fmean(machine.waits), fmean(cold), machine.pool.state.num_starts
    )


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--days", type=float, default=3.0)
    arguments = parser.parse_args()
    print("| seed | policy | hit rate | mean wait, all (s) | mean wait, cold (s) | loads |")
    print("|---|---|---|---|---|---|")
    for seed in range(1, arguments.seeds + 1):
        for policy in get_args(EvictionPolicy):
            found = run(policy, seed, arguments.days)
            figures = f"{found.hit_rate:.1%} | {found.mean_wait_s:.2f} | {found.mean_cold_s:.2f} | {found.num_loads:,}"
            print(f"| {seed} | {policy} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
