"""What starts, what is evicted for it, and who is granted: looked at after every event that may change it. Pure.

The tickets are gone through from the oldest on, then the models that are kept. Each takes its share of what is free
now (`free`) and of what will be once what leaves is gone (`soon`), so that a younger one can not take what an older one
waits for; but what is left over it may have.

A ticket for a model that is ready, in order of the cases:
    1. the model leaves, or is in an older ticket's way  wait
    2. else                                              grant
A model that is down, and which a ticket or nobody (kept) wants:
    3. nobody knows what it needs                        estimate; the only one, and no catalog: start, all reserved
    4. it needs more than the budget                     deny OutOfMemory, with both numbers
    5. what is pinned leaves too little                  deny ModelNotReady, with the names
    6. it fits                                           start, with as much more as is free; but not too many at once
    7. it fits once what leaves is gone                  wait
    8. evicting residents that nobody uses would do      stop these, and wait
    9. it needs residents that are used, or load         these are in its way: no more leases there; wait for their ends
Who is kept but neither pinned nor asked for ends at 7.
"""

from collections.abc import Callable
from math import inf

from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.service import denials
from headway.service.events import Amounts, Deny, Estimate, LoadTimeout, Need, SetTimer, Start, StopReason, Want
from headway.service.eviction import Shortage, Victims, choose_victims
from headway.service.pool_state import PLACED, Residency, Step, candidate_of, resources, total


def place(step: Step) -> None:
    """Starts, stops, grants and denies what follows from the state; see the module's docstring."""
    if step.state.is_draining:
        return
    sums = _Sums(step)
    if _evict_growth(step, sums):
        sums = _Sums(step)
    _Placement(step, sums).run()


class _Sums:
    """What residents are charged with, added up in one pass: a server may have many models."""

    def __init__(self, step: Step) -> None:
        self.taken: dict[str, int] = {}
        """By all."""
        self.leaving: dict[str, int] = {}
        """Of that, on its way back."""
        self.num_loading = 0
        for residency in step.state.models.values():
            if residency.status not in PLACED:
                continue
            self.num_loading += residency.status == "loading"
            _add(self.taken, residency.charged)
            if residency.comes_free:
                _add(self.leaving, residency.charged)


def _add(sums: dict[str, int], charged: Amounts) -> None:
    for name, amount in charged.items():
        sums[name] = sums.get(name, 0) + amount


def _evict_growth(step: Step, sums: _Sums) -> bool:
    """Residents that were measured to take more than all may: unused ones go, as soon as there are enough. One that is
    alone is left: it would be no smaller if it came back. Whether somebody goes."""
    over = {
        name: sums.taken.get(name, 0) - sums.leaving.get(name, 0) - limit
        for name, limit in step.rules.budget.items()
        if sums.taken.get(name, 0) - sums.leaving.get(name, 0) > limit and not _is_alone(step, name)
    }
    found = _choose(step, over, lambda _, residency: residency.is_victim) if over else None
    if isinstance(found, Victims):
        _evict(step, found, "growth")
    is_over = bool(over) and not isinstance(found, Victims)
    if step.state.is_over != is_over:
        step.state = replace(step.state, is_over=is_over)
    return isinstance(found, Victims)


def _is_alone(step: Step, name: str) -> bool:
    residents = (each for each in step.state.models.values() if each.status in PLACED and not each.comes_free)
    return sum(each.charged.get(name, 0) > 0 for each in residents) <= 1


def _choose(step: Step, needed: Amounts, may_go: Callable[[str, Residency], bool]) -> Victims | Shortage:
    models = step.state.models.items()
    candidates = [candidate_of(name, residency) for name, residency in models if may_go(name, residency)]
    return choose_victims(candidates, needed, step.rules.config.eviction, step.rules.budget)


def _evict(step: Step, victims: Victims, reason: StopReason) -> None:
    for name in victims.models:
        step.stop(name, reason)
    step.state = replace(step.state, inflation=max(step.state.inflation, victims.inflation))


class _Placement:
    """One pass over all who wait."""

    def __init__(self, step: Step, sums: _Sums) -> None:
        self._step = step
        self._free = _minus(step.rules.budget, sums.taken)
        self._soon = {name: free + sums.leaving.get(name, 0) for name, free in self._free.items()}
        self._num_loading = sums.num_loading
        self._in_the_way: set[str] = set()
        self._considered: set[str] = set()
        self._refused: dict[str, HeadwayError] = {}

    def run(self) -> None:
        """All of it."""
        state = self._step.state
        left = [want for want in state.waiting if not self._serve(want)]
        for name, residency in state.models.items():
            if residency.is_kept and not residency.is_resting and name not in self._considered:
                self._consider_kept(name)
        for name in self._refused:
            self._step.forget_removed(name)
        wanted = frozenset(want.model for want in left)
        self._step.state = replace(
            self._step.state, waiting=tuple(left), in_the_way=frozenset(self._in_the_way), considered=wanted
        )

    def _serve(self, want: Want) -> bool:
        """Whether the ticket was answered."""
        step = self._step
        residency = step.state.models[want.model]
        if residency.status == "ready":
            if residency.is_leaving or want.model in self._in_the_way:  # 1
                return False
            step.grant(want)  # 2
            return True
        if want.model not in self._considered:
            self._considered.add(want.model)
            if residency.may_start(step.now):
                self._consider(want.model, may_evict=True)
        if want.model not in self._refused:
            return False
        step.effects.append(Deny(want.ticket, self._refused[want.model]))
        return True

    def _consider_kept(self, name: str) -> None:
        residency = self._step.state.models[name]
        if residency.may_start(self._step.now):
            self._consider(name, may_evict=residency.facts.is_pinned)
            if residency.facts.is_pinned and name in self._refused and self._is_down(name):
                self._step.fail(name, self._refused[name])

    def _is_down(self, name: str) -> bool:
        return self._step.state.models[name].status == "cold"

    def _consider(self, name: str, *, may_evict: bool) -> None:
        need = self._step.state.models[name].need
        if need is None:  # 3
            if len(self._step.state.models) > 1 or self._step.rules.config.expects_more:
                self._estimate(name)
            else:
                self._start(name, Need(self._step.rules.budget, num_places=0))
            return
        needed, budget = resources(need), self._step.rules.budget
        if not _fits(needed, budget):  # 4
            self._refused[name] = denials.too_large(name, needed, budget)
            self._step.fail(name, self._refused[name])
        elif not self._fits_beside_pinned(name, needed):  # 5
            return
        elif _fits(needed, self._free) and _fits(needed, self._soon):  # 6
            if self._num_loading < self._step.rules.max_loading:
                self._start(name, need)
            else:
                self._claim(needed)
        elif _fits(needed, self._soon) or not may_evict:  # 7
            self._claim(needed)
        else:
            self._make_room(needed)  # 8, 9
            self._claim(needed)

    def _estimate(self, name: str) -> None:
        step = self._step
        residency = step.state.models[name]
        generation = residency.generation + 1
        step.set(name, replace(residency, status="fetching", generation=generation, was_ready=False, has_served=False))
        timeout_at = step.now + step.rules.config.load_timeout_s
        step.effects += [Estimate(name, generation), SetTimer(timeout_at, LoadTimeout(name, generation))]

    def _fits_beside_pinned(self, name: str, needed: Amounts) -> bool:
        models, budget = self._step.state.models, self._step.rules.budget
        pinned = {
            other: each.charged
            for other, each in models.items()
            if each.facts.is_pinned and each.status in PLACED and not each.comes_free
        }
        held = total(pinned.values())
        left = {name: limit - held.get(name, 0) for name, limit in budget.items()}
        if not pinned or _fits(needed, left):
            return True
        self._refused[name] = denials.pinned_in_the_way(name, needed, budget, pinned, held)
        return False

    def _start(self, name: str, need: Need) -> None:
        step = self._step
        residency = step.state.models[name]
        generation = residency.generation + 1
        left = min(self._free.get(need.device, inf), self._soon.get(need.device, inf))
        more = int(min(need.more_bytes, left - need.amounts.get(need.device, 0)))
        reserved = resources(need, more)
        started = replace(
            residency,
            status="loading",
            generation=generation,
            reserved=reserved,
            charged=reserved,
            measured={},
            more_bytes=more,
            num_leases=0,
            was_ready=False,
            has_served=False,
            has_idle_timer=False,
            is_resting=False,
            started_at=step.now,
            num_uses=0,
            inflation=step.state.inflation,
        )
        step.set(name, started)
        step.state = replace(
            step.state,
            num_starts=step.state.num_starts + 1,
            num_restarts=step.state.num_restarts + (residency.status == "failed"),
        )
        timeout_at = step.now + step.rules.config.load_timeout_s
        step.effects += [Start(name, generation, more), SetTimer(timeout_at, LoadTimeout(name, generation))]
        self._num_loading += 1
        self._free = _minus(self._free, reserved)
        self._claim(reserved)

    def _claim(self, needed: Amounts) -> None:
        self._soon = _minus(self._soon, needed)

    def _make_room(self, needed: Amounts) -> None:
        """Stops what is unused, if that is enough; else notes what has to become unused."""
        short = {
            name: amount - self._soon[name] for name, amount in needed.items() if amount > self._soon.get(name, inf)
        }
        found = _choose(self._step, short, lambda name, it: it.is_victim and name not in self._in_the_way)
        if isinstance(found, Victims):  # 8
            self._give_back(found)
            _evict(self._step, found, "room")
            return
        found = _choose(self._step, short, self._may_be_waited_for)
        if isinstance(found, Victims):  # 9
            self._give_back(found)
            self._in_the_way.update(found.models)

    def _may_be_waited_for(self, name: str, residency: Residency) -> bool:
        can_go = residency.status in ("ready", "loading") and not residency.is_leaving
        return can_go and not residency.facts.is_pinned and name not in self._in_the_way

    def _give_back(self, victims: Victims) -> None:
        freed = total(self._step.state.models[name].charged for name in victims.models)
        self._soon = {name: amount + freed.get(name, 0) for name, amount in self._soon.items()}


def _fits(needed: Amounts, room: Amounts) -> bool:
    return all(amount <= room.get(name, inf) for name, amount in needed.items())


def _minus(room: Amounts, taken: Amounts) -> dict[str, int]:
    return {name: amount - taken.get(name, 0) for name, amount in room.items()}
