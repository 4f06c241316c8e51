"""Which models are resident: a pure function of what happened, in the manner of a router's table.

transition(state, event, now, rules) -> (state, effects). The pool (pool.py) owns the state and hands the effects to
whoever acts. It neither waits, nor logs, nor asks the clock. A *ticket* is one request's wish for a model; it is
granted (a *lease*: the model stays until it ends) or denied, once. What starts, and what is evicted for it, is
placement.py's.

Want, in order of the cases:
    1. shutting down, or the model is removed            deny ShuttingDown, ModelNotFound
    2. ready, and not to leave                           grant
    3. failed, its back-off not over                     deny ModelNotReady, with the reason and the seconds left
    4. max_queued_requests wait already                  deny QueueFull
    5. else                                              wait, in order of arrival, for queue_timeout_s at most
The end of a model's last lease, or its getting ready without any:
    6. it was unloaded or removed                        stop
    7. it is idle for idle_timeout_s, and not pinned     stop; before that: look again then
    8. else                                              it stays
Unload:
    9. it loads, and somebody waits for it               serve who waits, then 6
    10. it loads for nobody, or is unused                stop
    11. it is used                                       grant no more, then 6
    12. it failed                                        forget the failure
"""

from msgspec.structs import replace

from headway.errors import WorkerDied
from headway.service import denials
from headway.service.events import (
    AddModel,
    Deny,
    Drain,
    Effect,
    Estimated,
    Event,
    IdleCheck,
    Keep,
    LeaseEnded,
    LoadTimeout,
    Measured,
    ModelFacts,
    Need,
    QueueTimeout,
    RemoveModel,
    RetryDue,
    SetTimer,
    Unload,
    Unwant,
    Used,
    Want,
    WorkerEnded,
    WorkerLost,
    WorkerReady,
)
from headway.service.placement import place
from headway.service.pool_state import (
    PLACED,
    PoolState,
    Residency,
    Rules,
    Step,
    charge_measured,
    down,
    leased,
    resources,
)


def transition(state: PoolState, event: Event, *, now: float, rules: Rules) -> tuple[PoolState, tuple[Effect, ...]]:
    """What follows from `event` at `now`; see the module's docstring."""
    step = Step(state, now, rules)
    if _take(step, event):
        place(step)
    return step.state, tuple(step.effects)


def _take(step: Step, event: Event) -> bool:
    """Notes what happened; whether something may start, stop or be granted after it."""
    match event:
        case Want():
            return _want(step, event)
        case LeaseEnded():
            return _lease_ended(step, event)
        case Unwant() | QueueTimeout():
            return _take_out(step, event)
        case Used():
            return _used(step, event)
        case Drain():
            step.state = replace(step.state, is_draining=True)
            step.deny_waiting(None, denials.shutting_down())
        case AddModel():
            is_new = event.model not in step.state.models
            _add_model(step, event)
            return not is_new  # nobody waits for one that is new: thousands may come at once
        case RemoveModel():
            return event.model in step.state.models and _remove_model(step, event)
        case RetryDue():
            return event.model in step.state.models
        case _:
            if event.model not in step.state.models:
                return False
            _take_news(step, event)
    return True


def _take_news(step: Step, event: Event) -> None:
    """Of one model that there is."""
    match event:
        case Keep():
            kept = replace(step.state.models[event.model], is_kept=True, is_resting=False)
            step.set(event.model, kept)
        case Unload():
            _unload(step, event)
        case Estimated():
            _estimated(step, event)
        case WorkerReady():
            _worker_ready(step, event)
        case Measured():
            _measured(step, event)
        case WorkerLost():
            _worker_lost(step, event)
        case WorkerEnded():
            _worker_ended(step, event)
        case LoadTimeout():
            _load_timeout(step, event)
        case IdleCheck():
            _idle_check(step, event)


def grant_at_once(state: PoolState, model: str, *, is_use: bool, now: float) -> PoolState | None:
    """What follows from a Want in case 2, which is nearly every request's: without a ticket, an event and an effect.
    None: not this case."""
    residency = state.models.get(model)
    if state.is_draining or residency is None or residency.is_removed or not _is_free(state, model, residency):
        return None
    return replace(state, models={**state.models, model: leased(state, residency, is_use=is_use, now=now)})


def is_free(state: PoolState, model: str) -> bool:
    """Whether a Want would have it at once."""
    residency = state.models.get(model)
    if state.is_draining or residency is None or residency.is_removed:
        return False
    return _is_free(state, model, residency)


def _is_free(state: PoolState, model: str, residency: Residency) -> bool:
    return residency.status == "ready" and not residency.is_leaving and model not in state.in_the_way


def _want(step: Step, want: Want) -> bool:
    state, residency = step.state, step.state.models.get(want.model)
    if state.is_draining:  # 1
        step.effects.append(Deny(want.ticket, denials.shutting_down()))
    elif residency is None or residency.is_removed:
        step.effects.append(Deny(want.ticket, denials.removed(want.model)))
    elif _is_free(state, want.model, residency):  # 2
        step.grant(want)
    elif residency.status == "failed" and step.now < residency.retry_at:  # 3
        step.effects.append(Deny(want.ticket, denials.not_ready(want.model, residency, step.now)))
    elif len(state.waiting) >= step.rules.config.max_queued_requests:  # 4
        step.effects.append(Deny(want.ticket, denials.queue_full(want.model, step.rules.config.max_queued_requests)))
    else:  # 5
        step.state = replace(state, waiting=(*state.waiting, want))
        timeout_s = step.rules.config.queue_timeout_s
        if timeout_s is not None:
            step.effects.append(SetTimer(step.now + timeout_s, QueueTimeout(want.ticket)))
        return want.model not in state.considered
    return False


def _take_out(step: Step, event: Unwant | QueueTimeout) -> bool:
    """Out of the line, if it is there."""
    gone = next((want for want in step.state.waiting if want.ticket == event.ticket), None)
    if gone is None:
        return False
    step.state = replace(step.state, waiting=tuple(want for want in step.state.waiting if want is not gone))
    if isinstance(event, QueueTimeout):
        residency, timeout_s = step.state.models[gone.model], step.rules.config.queue_timeout_s or 0.0
        step.effects.append(Deny(gone.ticket, denials.queue_timeout(gone.model, residency, timeout_s)))
    step.forget_removed(gone.model)
    return True


def _add_model(step: Step, event: AddModel) -> None:
    residency = step.state.models.get(event.model, Residency())
    need = event.facts.need or residency.need
    load_s = need.load_s if need is not None and not residency.num_loads else residency.load_s
    added = replace(residency, facts=event.facts, need=need, load_s=load_s, is_removed=False)
    if added.status == "failed":
        added = _forgiven(added)
    step.set(event.model, added)
    _look_at_unused(step, event.model)


def _remove_model(step: Step, event: RemoveModel) -> bool:
    """Whether something may follow: nobody waits for what one takes that is down, and thousands may go at once."""
    removed = replace(step.state.models[event.model], is_removed=True, is_leaving=True, is_kept=False)
    if removed.is_down and not step.is_wanted(event.model):
        step.forget(event.model)
        return False
    step.set(event.model, removed)
    if not step.is_wanted(event.model):
        if removed.status in ("fetching", "loading") or (removed.status == "ready" and not removed.num_leases):
            step.stop(event.model, "removed")
        step.forget_removed(event.model)
    return True


def _unload(step: Step, event: Unload) -> None:
    residency = replace(step.state.models[event.model], is_resting=True)
    if residency.status == "failed":  # 12
        residency = _forgiven(residency)
    is_loading = residency.status in ("fetching", "loading")
    has_stop = residency.status == "ready" and not residency.num_leases
    if is_loading and not step.is_wanted(event.model):
        has_stop = True
    elif is_loading or residency.status == "ready":  # 9, 11
        residency = replace(residency, is_leaving=True)
    step.set(event.model, residency)
    if has_stop:  # 10
        step.stop(event.model, "unload")


def _forgiven(residency: Residency) -> Residency:
    return replace(residency, status="cold", num_failures=0, retry_at=0.0, error=None)


def _estimated(step: Step, event: Estimated) -> None:
    residency = step.state.models[event.model]
    if residency.status != "fetching" or residency.generation != event.generation:
        return
    load_s = residency.load_s if residency.num_loads else event.need.load_s
    step.set(event.model, replace(residency, status="cold", need=event.need, load_s=load_s))
    step.forget_removed(event.model)


def _worker_ready(step: Step, event: WorkerReady) -> None:
    residency = step.state.models[event.model]
    if residency.status != "loading" or residency.generation != event.generation:
        return
    if residency.need is None:  # all was reserved for it
        reserved = resources(event.need or Need())
        residency = replace(residency, reserved=reserved, charged=reserved)
    ready = replace(
        residency,
        status="ready",
        was_ready=True,
        error=None,
        num_loads=residency.num_loads + 1,
        load_s=step.now - residency.started_at if event.load_s is None else event.load_s,
        last_used_at=step.now,
    )
    step.set(event.model, ready)
    for want in step.take_waiting(event.model):
        step.grant(want)
    _look_at_unused(step, event.model)


def _measured(step: Step, event: Measured) -> None:
    residency = step.state.models[event.model]
    if residency.generation == event.generation and residency.status in PLACED:
        step.set(event.model, charge_measured(residency, event.amounts, step.rules.budget))


def _worker_lost(step: Step, event: WorkerLost) -> None:
    residency = step.state.models[event.model]
    if residency.status == "ready" and residency.generation == event.generation:
        step.set(event.model, replace(residency, status="stopping", num_leases=0))


def _worker_ended(step: Step, event: WorkerEnded) -> None:
    residency = step.state.models[event.model]
    if residency.generation != event.generation or residency.is_down:
        return
    if residency.status == "stopping" and event.error is None:
        step.set(event.model, down(residency))
        step.forget_removed(event.model)
        return
    error = event.error or WorkerDied(f"the process of model {event.model} ended without a reason")
    if residency.status in ("fetching", "loading"):
        step.deny_waiting(event.model, error)
    failed = step.fail(event.model, error)
    if failed.retry_at > step.now:
        step.deny_waiting(event.model, denials.not_ready(event.model, failed, step.now))
    step.forget_removed(event.model)


def _used(step: Step, event: Used) -> bool:
    residency = step.state.models.get(event.model)
    if residency is not None and residency.generation == event.generation:
        num_uses, inflation = residency.num_uses + event.num_uses, step.state.inflation
        step.set(event.model, replace(residency, num_uses=num_uses, inflation=inflation, last_used_at=step.now))
    return False


def _lease_ended(step: Step, event: LeaseEnded) -> bool:
    residency = step.state.models.get(event.model)
    if residency is None or residency.generation != event.generation or residency.num_leases == 0:
        return False
    has_served = residency.has_served or event.has_served
    left = replace(residency, num_leases=residency.num_leases - 1, has_served=has_served, last_used_at=step.now)
    step.set(event.model, left)
    if left.num_leases:
        return False
    _look_at_unused(step, event.model, was_used=event.is_use)
    return bool(step.state.waiting) or step.state.is_over


def _look_at_unused(step: Step, model: str, *, was_used: bool = False) -> None:
    """A model that is ready and unused: what becomes of it. `was_used`: a request's lease has just ended."""
    residency = step.state.models[model]
    if residency.status != "ready" or residency.num_leases:
        return
    timeout_s = residency.facts.idle_timeout_s
    if residency.is_leaving:  # 6
        step.stop(model, "removed" if residency.is_removed else "unload")
    elif timeout_s is None or residency.facts.is_pinned:  # 8
        return
    elif timeout_s == 0 and was_used:  # 7
        step.stop(model, "idle")
    elif timeout_s > 0 and not residency.has_idle_timer:
        step.set(model, replace(residency, has_idle_timer=True))
        step.effects.append(SetTimer(residency.last_used_at + timeout_s, IdleCheck(model, residency.generation)))


def _idle_check(step: Step, event: IdleCheck) -> None:
    """One timer a model: it looks when the last lease ended, and comes again if that is not long enough ago."""
    residency = step.state.models[event.model]
    if residency.status != "ready" or residency.generation != event.generation:
        return
    checked = replace(residency, has_idle_timer=False)
    step.set(event.model, checked)
    if is_idle(checked, checked.facts, step.now):  # 7
        step.stop(event.model, "idle")
    else:
        _look_at_unused(step, event.model)


def is_idle(residency: Residency, facts: ModelFacts, now: float) -> bool:
    """Whether its idle time-out is over."""
    timeout_s = facts.idle_timeout_s
    if residency.num_leases or facts.is_pinned or timeout_s is None:
        return False
    return now >= residency.last_used_at + timeout_s


def _load_timeout(step: Step, event: LoadTimeout) -> None:
    residency = step.state.models[event.model]
    if residency.status in ("fetching", "loading") and residency.generation == event.generation:
        error = denials.load_timeout(event.model, step.rules.config.load_timeout_s)
        step.stop(event.model, "timeout", error)
        step.deny_waiting(event.model, error)
