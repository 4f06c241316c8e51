"""Which models are resident: a pure function of what happened, in the manner of a router's table.

transition(state, event, now, config) -> (state, effects). The pool (pool.py) owns the state and hands the effects to
whoever acts. It neither waits, nor logs, nor asks the clock.

One model is resident at a time; a policy for more replaces `_place()` alone. A *ticket* is one request's wish for a
model; it is granted (a *lease*: the model stays until it ends) or denied, once. A *generation* numbers a model's
starts, so that news of an earlier process changes nothing.

Want, in order of the cases:
    1. shutting down                                     deny ShuttingDown
    2. ready, and nobody waits for another model         grant
    3. failed, its back-off not over                     deny ModelNotReady, with the reason and the seconds left
    4. max_queued_requests wait already                  deny QueueFull
    5. else                                              wait, in order of arrival
The place, after every event:
    6. it is taken by a model that starts or stops       wait
    7. its model is the one that the oldest ticket wants grant, up to the first ticket for another model
    8. it is taken, and the oldest ticket wants another  unused: stop it; used: wait for its leases
    9. it is free                                        start the model of the oldest ticket, or one to be kept
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import replace

from headway.config import PoolConfig
from headway.errors import HeadwayError, ModelNotReady, QueueFull, ShuttingDown, WorkerDied
from headway.service.events import (
    Deny,
    Drain,
    Effect,
    Event,
    Grant,
    Keep,
    LeaseEnded,
    SetTimer,
    Start,
    Stop,
    Tick,
    Unwant,
    Want,
    WorkerEnded,
    WorkerLost,
    WorkerReady,
)

Status = Literal["cold", "loading", "ready", "stopping", "failed"]


class Residency(msgspec.Struct, frozen=True, kw_only=True):
    """One model. A msgspec Struct, as is the state: one of each is made at every request's begin and end."""

    status: Status = "cold"
    generation: int = 0
    is_kept: bool = False
    num_leases: int = 0
    was_ready: bool = False
    """Since its last start."""
    has_served: bool = False
    """Since its last start."""
    num_failures: int = 0
    """In a row, without having served between them."""
    retry_at: float = 0.0
    """When failed: when it may start again."""
    error: HeadwayError | None = None
    """Why it failed last; kept until it is ready."""


class PoolState(msgspec.Struct, frozen=True):
    """All models, and the tickets that wait, oldest first."""

    models: Mapping[str, Residency]
    waiting: tuple[Want, ...] = ()
    is_draining: bool = False
    num_starts: int = 0
    num_restarts: int = 0
    """Starts that followed a failure."""
    num_failures: int = 0


@dataclass(slots=True)
class _Step:
    """A transition under way: the state so far and the effects so far."""

    state: PoolState
    now: float
    config: PoolConfig
    effects: list[Effect] = field(default_factory=list)

    def set(self, model: str, residency: Residency) -> None:
        self.state = replace(self.state, models={**self.state.models, model: residency})

    def deny_waiting(self, model: str | None, error: HeadwayError) -> None:
        """Denies the tickets of one model, or all."""
        self.effects += [Deny(want.ticket, error) for want in self.take_waiting(model)]

    def take_waiting(self, model: str | None) -> list[Want]:
        """Takes the tickets of one model, or all, out of the line."""
        taken = [want for want in self.state.waiting if model is None or want.model == model]
        kept = tuple(want for want in self.state.waiting if model is not None and want.model != model)
        self.state = replace(self.state, waiting=kept)
        return taken


def transition(
    state: PoolState, event: Event, *, now: float, config: PoolConfig
) -> tuple[PoolState, tuple[Effect, ...]]:
    """What follows from `event` at `now`; see the module's docstring. Models must be in the state."""
    step = _Step(state, now, config)
    match event:
        case Want():
            _want(step, event)
        case Unwant():
            waiting = tuple(want for want in state.waiting if want.ticket != event.ticket)
            step.state = replace(state, waiting=waiting)
        case Keep():
            step.set(event.model, replace(state.models[event.model], is_kept=True))
        case WorkerReady():
            _worker_ready(step, event)
        case WorkerLost():
            _worker_lost(step, event)
        case WorkerEnded():
            _worker_ended(step, event)
        case LeaseEnded():
            _lease_ended(step, event)
        case Tick():
            _tick(step, event)
        case Drain():
            step.state = replace(state, is_draining=True)
            step.deny_waiting(None, _shutting_down())
    _place(step)
    return step.state, tuple(step.effects)


def _want(step: _Step, want: Want) -> None:
    residency = step.state.models[want.model]
    if step.state.is_draining:  # 1
        step.effects.append(Deny(want.ticket, _shutting_down()))
    elif residency.status == "ready" and not step.state.waiting:  # 2
        _grant(step, want)
    elif residency.status == "failed" and step.now < residency.retry_at:  # 3
        step.effects.append(Deny(want.ticket, _not_ready(want.model, residency, step.now)))
    elif len(step.state.waiting) >= step.config.max_queued_requests:  # 4
        step.effects.append(Deny(want.ticket, _queue_full(want.model, step.config.max_queued_requests)))
    else:  # 5
        step.state = replace(step.state, waiting=(*step.state.waiting, want))


def _worker_ready(step: _Step, event: WorkerReady) -> None:
    residency = step.state.models[event.model]
    if residency.status != "loading" or residency.generation != event.generation:
        return
    step.set(event.model, replace(residency, status="ready", was_ready=True, error=None))
    for want in step.take_waiting(event.model):
        _grant(step, want)


def _worker_lost(step: _Step, event: WorkerLost) -> None:
    residency = step.state.models[event.model]
    if residency.status == "ready" and residency.generation == event.generation:
        step.set(event.model, replace(residency, status="stopping", num_leases=0))


def _worker_ended(step: _Step, event: WorkerEnded) -> None:
    residency = step.state.models[event.model]
    if residency.generation != event.generation or residency.status in ("cold", "failed"):
        return
    if residency.status == "stopping" and event.error is None:
        step.set(event.model, replace(residency, status="cold", num_leases=0))
        return
    num_failures = 1 if residency.has_served else residency.num_failures + 1
    delays = step.config.restart_delays_s if residency.was_ready else step.config.reload_delays_s
    retry_at = step.now + delays[min(num_failures, len(delays)) - 1]
    error = event.error or WorkerDied(f"the process of model {event.model} ended without a reason")
    failed = replace(
        residency, status="failed", num_leases=0, num_failures=num_failures, retry_at=retry_at, error=error
    )
    step.set(event.model, failed)
    step.state = replace(step.state, num_failures=step.state.num_failures + 1)
    if residency.status == "loading":
        step.deny_waiting(event.model, error)
    if retry_at > step.now:
        step.deny_waiting(event.model, _not_ready(event.model, failed, step.now))
        step.effects.append(SetTimer(event.model, event.generation, retry_at))


def _lease_ended(step: _Step, event: LeaseEnded) -> None:
    residency = step.state.models[event.model]
    if residency.generation != event.generation or residency.num_leases == 0:
        return
    has_served = residency.has_served or event.has_served
    step.set(event.model, replace(residency, num_leases=residency.num_leases - 1, has_served=has_served))


def _tick(step: _Step, event: Tick) -> None:
    residency = step.state.models[event.model]
    if residency.status == "loading" and residency.generation == event.generation:
        error = ModelNotReady(
            f"model {event.model} was not ready after {step.config.load_timeout_s:g} s (load_timeout_s): it was stopped"
        )
        step.set(event.model, replace(residency, status="stopping"))
        step.effects.append(Stop(event.model, event.generation, error))
        step.deny_waiting(event.model, error)


def _place(step: _Step) -> None:
    models = step.state.models
    wanted = _next_model(step)
    for name, residency in models.items():
        if residency.status in ("loading", "stopping"):  # 6
            return
        if residency.status == "ready":
            if wanted == name:  # 7
                _grant_first(step, name)
            elif wanted is not None and residency.num_leases == 0:  # 8
                step.set(name, replace(residency, status="stopping"))
                step.effects.append(Stop(name, residency.generation))
            return
    if wanted is not None:  # 9
        _start(step, wanted)


def _next_model(step: _Step) -> str | None:
    """The model of the oldest ticket that can start now; else one that is to be kept."""
    if step.state.is_draining:
        return None
    kept = (name for name, residency in step.state.models.items() if residency.is_kept)
    is_any_ready = any(residency.status == "ready" for residency in step.state.models.values())
    candidates: list[str] = [want.model for want in step.state.waiting]
    for name in candidates if is_any_ready else [*candidates, *kept]:
        residency = step.state.models[name]
        if residency.status != "failed" or step.now >= residency.retry_at:
            return name
    return None


def _start(step: _Step, model: str) -> None:
    residency = step.state.models[model]
    generation = residency.generation + 1
    started = replace(
        residency, status="loading", generation=generation, num_leases=0, was_ready=False, has_served=False
    )
    step.set(model, started)
    step.state = replace(
        step.state,
        num_starts=step.state.num_starts + 1,
        num_restarts=step.state.num_restarts + (residency.status == "failed"),
    )
    step.effects += [
        Start(model, generation),
        SetTimer(model, generation, step.now + step.config.load_timeout_s),
    ]


def _grant_first(step: _Step, model: str) -> None:
    """Grants the oldest tickets, as far as they want `model`."""
    while step.state.waiting and step.state.waiting[0].model == model:
        want, *rest = step.state.waiting
        step.state = replace(step.state, waiting=tuple(rest))
        _grant(step, want)


def _grant(step: _Step, want: Want) -> None:
    residency = step.state.models[want.model]
    step.set(want.model, replace(residency, num_leases=residency.num_leases + 1))
    step.effects.append(Grant(want.ticket, want.model, residency.generation))


def _shutting_down() -> HeadwayError:
    return ShuttingDown("the server is shutting down and takes no new requests: try another one")


def _not_ready(model: str, residency: Residency, now: float) -> HeadwayError:
    seconds = residency.retry_at - now
    reason = residency.error.message if residency.error else "unknown"
    return ModelNotReady(
        f"model {model} is not ready; it is started again in {seconds:.0f} s. It failed last because: {reason}",
        retry_after_s=seconds,
    )


def _queue_full(model: str, max_queued: int) -> HeadwayError:
    return QueueFull(
        f"{max_queued} requests wait for a model already, as many as may (--max-queued-requests): try model {model} "
        "again later",
        retry_after_s=1.0,
    )
