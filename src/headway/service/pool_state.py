"""What the pool knows: a Residency a model, the tickets that wait, and a transition under way. Frozen; residency.py and
placement.py say what follows from what.

Each resource (a device's memory, places for models) is divided so, by what residents are charged:

    budget   [ pinned | leased | idle | loading | leaving | free ]
                                 ^^^^ victims     ^^^^^^^^^^^^^^ comes, or is there
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import replace

from headway.config import PoolConfig
from headway.errors import HeadwayError
from headway.service.events import (
    MODELS,
    Amounts,
    Deny,
    Effect,
    Forget,
    Grant,
    ModelFacts,
    Need,
    RetryDue,
    SetTimer,
    Stop,
    StopReason,
    Want,
)
from headway.service.eviction import Candidate

Status = Literal["cold", "fetching", "loading", "ready", "stopping", "failed"]
PLACED: frozenset[Status] = frozenset({"loading", "ready", "stopping"})
"""Those that take memory."""


class Residency(msgspec.Struct, frozen=True, kw_only=True):
    """One model. A msgspec Struct, as is the state: one of each is made at every request's begin and end."""

    status: Status = "cold"
    generation: int = 0
    """Numbers its estimates and starts, so that news of an earlier process changes nothing."""
    facts: ModelFacts = ModelFacts()
    need: Need | None = None
    """What a start reserves; None: it is estimated first."""
    reserved: Amounts = {}
    """While it is placed: what its start took, or less, where that was a guess and is measured now."""
    charged: Amounts = {}
    """The larger of `reserved` and what was measured last; empty unless it is placed."""
    measured: Amounts = {}
    """Of the last worker."""
    is_kept: bool = False
    is_resting: bool = False
    """Stopped for a reason other than its own: not started again before it is asked for."""
    is_leaving: bool = False
    """Unloads, or is removed, once its leases have ended: no more are granted."""
    is_removed: bool = False
    num_leases: int = 0
    was_ready: bool = False
    """Since its last start."""
    has_served: bool = False
    """Since its last start."""
    has_idle_timer: bool = False
    more_bytes: int = 0
    """What its start took beside the least, on its device."""
    started_at: float = 0.0
    load_s: float = 1.0
    """Of the last load; before the first as it is expected."""
    last_used_at: float = 0.0
    num_uses: int = 0
    """Since its last start."""
    inflation: float = 0.0
    """See service/eviction."""
    num_failures: int = 0
    """In a row, without having served between them."""
    retry_at: float = 0.0
    """When failed: when it may start again."""
    error: HeadwayError | None = None
    """Why it failed last; kept until it is ready."""
    num_loads: int = 0
    """That became ready."""
    stops: Mapping[StopReason, int] = {}
    """How often the pool stopped it, by why."""

    @property
    def is_victim(self) -> bool:
        """Whether it may be evicted now."""
        return self.status == "ready" and not (self.num_leases or self.facts.is_pinned or self.is_leaving)

    @property
    def comes_free(self) -> bool:
        """Whether what it is charged with is on its way back."""
        return self.status == "stopping" or (self.status == "ready" and self.is_leaving)

    @property
    def is_awaited(self) -> bool:
        """Whether it is to be resident, asked for or not, and is not yet."""
        return self.is_kept and not self.is_resting and self.status != "ready"

    @property
    def is_down(self) -> bool:
        """Whether it has no process, and nothing begins or ends."""
        return self.status in ("cold", "failed")

    def may_start(self, now: float) -> bool:
        """Whether it is down, and no failure holds it back."""
        return self.status == "cold" or (self.status == "failed" and now >= self.retry_at)


class PoolState(msgspec.Struct, frozen=True):
    """All models, and the tickets that wait, oldest first."""

    models: Mapping[str, Residency]
    waiting: tuple[Want, ...] = ()
    in_the_way: frozenset[str] = frozenset()
    """Residents that somebody waits for to be unused: they get no more leases."""
    considered: frozenset[str] = frozenset()
    """The models that tickets wait for, as it was when all was placed last."""
    is_over: bool = False
    """Residents were measured to take more than the budget, and could not be evicted yet."""
    is_draining: bool = False
    inflation: float = 0.0
    """L of service/eviction."""
    num_starts: int = 0
    num_restarts: int = 0
    """Starts that followed a failure."""
    num_failures: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """What does not change while a pool lives."""

    config: PoolConfig
    budget: Amounts
    """The limit of each resource; one that is not in it has none."""
    max_loading: int = 2
    """Loads at the same time: they share the cores, and each is slower for it."""


@dataclass(slots=True)
class Step:
    """A transition under way: the state so far and the effects so far."""

    state: PoolState
    now: float
    rules: Rules
    effects: list[Effect] = field(default_factory=list)

    def set(self, model: str, residency: Residency) -> None:
        """The model is so from now on."""
        self.state = replace(self.state, models={**self.state.models, model: residency})

    def grant(self, want: Want) -> None:
        """A lease; the ticket must not be in the line any more."""
        residency = self.state.models[want.model]
        self.set(want.model, leased(self.state, residency, is_use=want.is_use, now=self.now))
        self.effects.append(Grant(want.ticket, want.model, residency.generation))

    def stop(self, model: str, reason: StopReason, error: HeadwayError | None = None) -> None:
        """Ends its worker, or its estimate."""
        residency = self.state.models[model]
        stops = {**residency.stops, reason: residency.stops.get(reason, 0) + 1}
        is_resting = residency.is_resting or error is None
        self.set(model, replace(residency, status="stopping", stops=stops, is_resting=is_resting))
        self.effects.append(Stop(model, residency.generation, error, reason))

    def fail(self, model: str, error: HeadwayError) -> Residency:
        """It is down for this reason, and held back for longer each time in a row."""
        residency, config = self.state.models[model], self.rules.config
        num_failures = 1 if residency.has_served else residency.num_failures + 1
        delays = config.restart_delays_s if residency.was_ready else config.reload_delays_s
        retry_at = self.now + delays[min(num_failures, len(delays)) - 1]
        failed = replace(down(residency), status="failed", num_failures=num_failures, retry_at=retry_at, error=error)
        self.set(model, failed)
        self.state = replace(self.state, num_failures=self.state.num_failures + 1)
        if retry_at > self.now:
            self.effects.append(SetTimer(retry_at, RetryDue(model)))
        return failed

    def deny_waiting(self, model: str | None, error: HeadwayError) -> None:
        """Denies the tickets of one model, or all."""
        self.effects += [Deny(want.ticket, error) for want in self.take_waiting(model)]

    def take_waiting(self, model: str | None) -> list[Want]:
        """Takes the tickets of one model, or all, out of the line."""
        taken = [want for want in self.state.waiting if model is None or want.model == model]
        if taken:
            kept = tuple(want for want in self.state.waiting if model is not None and want.model != model)
            self.state = replace(self.state, waiting=kept)
        return taken

    def forget_removed(self, model: str) -> None:
        """A removed model is dropped once it is down and nobody waits for it."""
        residency = self.state.models.get(model)
        if residency is not None and residency.is_removed and residency.is_down and not self.is_wanted(model):
            self.forget(model)

    def forget(self, model: str) -> None:
        """There is no such model any more."""
        models = dict(self.state.models)
        del models[model]
        self.state = replace(self.state, models=models)
        self.effects.append(Forget(model))

    def is_wanted(self, model: str) -> bool:
        """Whether a ticket waits for it."""
        return any(want.model == model for want in self.state.waiting)


def leased(state: PoolState, residency: Residency, *, is_use: bool, now: float) -> Residency:
    """It has one lease more."""
    num_leases = residency.num_leases + 1
    if not is_use:
        return replace(residency, num_leases=num_leases, last_used_at=now)
    num_uses, inflation = residency.num_uses + 1, state.inflation
    return replace(residency, num_leases=num_leases, last_used_at=now, num_uses=num_uses, inflation=inflation)


def down(residency: Residency) -> Residency:
    """It has no worker, and takes nothing."""
    return replace(residency, status="cold", num_leases=0, is_leaving=residency.is_removed, reserved={}, charged={})


def charge_measured(residency: Residency, amounts: Amounts, budget: Amounts) -> Residency:
    """What a resident is charged with from now on, and what its next start reserves: the most that was measured, within
    what there may be at all. A guess is given up for the first measure."""
    reserved, need = dict(residency.reserved), residency.need
    if need is not None and need.is_guess:
        reserved |= {device: min(amount, reserved.get(device, 0)) for device, amount in amounts.items()}
    charged = {name: max(amounts.get(name, 0), reserved.get(name, 0)) for name in {**reserved, **amounts}}
    charged_now = replace(residency, reserved=reserved, charged=charged, measured=amounts)
    return charged_now if need is None else replace(charged_now, need=_corrected(need, residency, amounts, budget))


def _corrected(need: Need, residency: Residency, amounts: Amounts, budget: Amounts) -> Need:
    corrected = {} if need.is_guess else dict(need.amounts)
    for device, amount in amounts.items():
        least = amount - (residency.more_bytes if device == need.device else 0)
        corrected[device] = min(max(corrected.get(device, 0), least), budget.get(device, least))
    return dataclasses.replace(need, amounts=corrected, is_guess=False)


def resources(need: Need, more_bytes: int = 0) -> dict[str, int]:
    """What a start takes in all: bytes, `more_bytes` of its device beside the least, and places."""
    amounts = dict(need.amounts)
    if more_bytes:
        amounts[need.device] = amounts.get(need.device, 0) + more_bytes
    return amounts | ({MODELS: need.num_places} if need.num_places else {})


def total(charges: Iterable[Amounts]) -> dict[str, int]:
    """The sum, by resource."""
    sums: dict[str, int] = {}
    for charge in charges:
        for name, amount in charge.items():
            sums[name] = sums.get(name, 0) + amount
    return sums


def candidate_of(model: str, residency: Residency) -> Candidate:
    """A resident, as the policy sees it."""
    return Candidate(
        model=model,
        amounts=residency.charged,
        last_used_at=residency.last_used_at,
        num_uses=residency.num_uses,
        load_s=residency.load_s,
        inflation=residency.inflation,
    )
