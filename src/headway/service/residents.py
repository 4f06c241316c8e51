"""Residents: acts on what the pool decides, and gives out the leases. All on the event loop's thread."""

import asyncio
import functools
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from headway.config import ModelConfig, PoolConfig, ServerConfig
from headway.errors import ModelNotReady, UnsupportedFeature
from headway.observe.clock import Clock
from headway.observe.gpus import Gpus, find_gpus
from headway.observe.machine import usable_cores
from headway.observe.server_timing import TIMING
from headway.observe.sizes import size_text
from headway.service.budget import make_budget
from headway.service.events import (
    CPU,
    MODELS,
    AddModel,
    Amounts,
    Deny,
    Estimate,
    Forget,
    Grant,
    LeaseEnded,
    Measured,
    RemoveModel,
    Start,
    Stop,
    StopReason,
    Unload,
    Unwant,
    Want,
    WorkerEvent,
    WorkerReady,
)
from headway.service.frameworks import run_of
from headway.service.infer_loading import spare_kind
from headway.service.lease import Lease
from headway.service.lives import LifeSettings, Lives
from headway.service.loader import Loader, OpenedModel
from headway.service.memory_watch import MemoryWatch
from headway.service.pool import Pool
from headway.service.pool_state import Residency
from headway.service.resident_stats import model_stats, over_limit, pool_stats
from headway.service.served_model import ServedModel
from headway.service.spare_keeper import SpareKeeper
from headway.worker.prompt import ModelText
from headway.worker.spares import SpareKind
from headway.worker.stream import StreamLimits

logger = logging.getLogger(__name__)

_GONE = Residency(is_removed=True)
_LEAST_LOADING = 2
_WHY_STOPPED: Mapping[StopReason, str] = {
    "room": "another model needs its memory",
    "growth": "all models together took more than --memory-limit",
    "idle": "nobody asked for it",
    "unload": "as it was told to",
    "removed": "it is served no more",
    "timeout": "its load took too long",
}


class Residents:
    """The pool and its workers (pool.Effects). All on the event loop's thread."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        *,
        loader: Loader,
        pool: PoolConfig,
        server: ServerConfig,
        clock: Clock,
        gpus: Gpus | None = None,
    ) -> None:
        """Raises InvalidConfig for limits that can not be."""
        self.models = {model.id: model for model in models}
        found_gpus = gpus or find_gpus()
        self.budget: Amounts = make_budget(pool, gpus=found_gpus)
        self.pool = Pool(
            {model.id: model.facts for model in models},
            effects=self,
            config=pool,
            clock=clock,
            budget=self.budget,
            max_loading=max(_LEAST_LOADING, usable_cores()),
        )
        self.memory = MemoryWatch(found_gpus, clock, self._tell_measured)
        self._lives = Lives(
            LifeSettings(
                loader=loader,
                clock=clock,
                budget=self.budget,
                limits=StreamLimits(server.max_unsent_bytes, server.slow_reader_timeout_s),
                stall_timeout_s=pool.stall_timeout_s,
                max_queued=pool.max_queued_requests,
                tell=self._tell_pool,
            )
        )
        self.keeper: SpareKeeper | None = None
        """None: nothing is started ahead."""
        if loader.spares is not None:
            self.keeper = SpareKeeper(loader.spares, self._spare_kind, self.pool, pool, clock)
        self._clock = clock
        self._devices = [name for name in self.budget if name != MODELS]
        self._tickets = itertools.count(1)
        self._waiting: dict[int, tuple[Want, asyncio.Future[Lease]]] = {}
        self._num_leased = 0
        self._over_limit: frozenset[str] = frozenset()
        """Resources of which residents take too much, which was told."""
        self._unused = asyncio.Event()
        self._unused.set()
        self.on_measured: Callable[[ServedModel, int, float], None] = lambda model, num_bytes, load_s: None
        """Told what a ready model takes, and the seconds of its load, whenever that was looked at."""

    def add(self, model: ServedModel) -> None:
        """One more, cold. Its id is unlike any other's in `models`."""
        self.models[model.id] = model
        self.pool.post(AddModel(model.id, model.facts))
        self.look_at_spares()

    def remove(self, model: ServedModel) -> None:
        """Serves it no more: it ends with its last lease. Until then it is in `models`."""
        self.pool.post(RemoveModel(model.id))

    def residency(self, model: ServedModel) -> Residency:
        """What the pool thinks of it now; of one that is gone, that it is cold."""
        return self.pool.state.models.get(model.id, _GONE)

    def change(self, model: ServedModel, config: ModelConfig) -> None:
        """Whether it is pinned, and its idle time-out, change at once; the rest of it counts at its next load."""
        model.config = config
        self.pool.post(AddModel(model.id, model.facts))

    async def load(self, model: ServedModel) -> None:
        """Returns once it is ready; raises as lease(). That is no use of it: it is no more wanted than before."""
        (await self.lease(model, is_use=False)).release(False)

    async def unload(self, model: ServedModel) -> None:
        """Ends it once its leases have ended; returns when its processes are gone. Who asks then loads it again."""
        self.pool.post(Unload(model.id))
        while model.life is not None and not model.life.done():
            await asyncio.wait({model.life})
            if not self.residency(model).is_leaving:
                return

    async def lease(self, model: ServedModel, deadline: float | None = None, *, is_use: bool = True) -> Lease:
        """Waits until the model is resident, at most until `deadline` of the clock.

        Raises ModelNotReady, QueueFull, OutOfMemory, ModelNotFound, ShuttingDown, or why it can not be loaded.
        """
        lease = self.try_lease(model, is_use=is_use)
        if lease is not None:
            return lease
        want = Want(next(self._tickets), model.id, is_use)
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting[want.ticket] = want, future
        try:
            self.pool.post(want)
            return future.result() if future.done() else await self._wait(want, future, model, deadline)
        finally:
            del self._waiting[want.ticket]

    def try_lease(self, model: ServedModel, *, is_use: bool = True) -> Lease | None:
        """At once; None: it would have to wait, or there is none to be had."""
        generation = self.pool.try_grant(model.id, is_use=is_use)
        return None if generation is None else self._make_lease(model, generation, is_use)

    async def _wait(
        self, want: Want, future: "asyncio.Future[Lease]", model: ServedModel, deadline: float | None
    ) -> Lease:
        began_at = self._clock.now()
        timer = None
        if deadline is not None:
            timer = self._clock.call_at(deadline, functools.partial(self._give_up, want.ticket, model))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and not future.exception():
                future.result().release(False)
            else:
                self.pool.post(Unwant(want.ticket))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._note_wait(model, began_at)

    def _note_wait(self, model: ServedModel, began_at: float) -> None:
        """For the metrics, and for the request's own answer: how long it waited, and the phases of a load in that."""
        waited_s = self._clock.now() - began_at
        model.waits.observe(waited_s)
        timing = TIMING.get()
        if timing is not None:
            timing.note("wait", waited_s)
            if model.ready_at >= began_at:
                for phase, seconds in model.phases.items():
                    timing.note(f"load-{phase}", seconds)

    async def text(self, model: ServedModel) -> ModelText:
        """Its text, opened now if nobody did before. Raises why it can not be opened, UnsupportedFeature for a model
        that has none."""
        text = (await self._opened(model)).text
        if text is None and run_of(model.config).kind == "remote":
            raise UnsupportedFeature(
                f"{model.id} is computed by another server, which has its tokenizer: ask that one", param="model"
            )
        if text is None:
            raise UnsupportedFeature(
                f"{model.id} is a model of type {model.config.type}: it has no tokens; ask it by /predict or "
                f"/v2/models/{model.id}/infer",
                param="model",
            )
        return text

    async def _opened(self, model: ServedModel) -> OpenedModel:
        """A failure stays until the pool starts it again, or, where the pool never had it, until somebody asks."""
        opened = model.opened
        if opened is not None:
            return opened
        has_failed = model.opening is not None and model.opening.done()
        if model.opening is None or (has_failed and self.residency(model).status == "cold"):
            model.opening = asyncio.create_task(self._lives.open(model))
        return await asyncio.shield(model.opening)

    async def wait_unused(self, deadline: float) -> None:
        """Returns once there is no lease, or at `deadline` of the clock."""
        waiting = asyncio.create_task(self._unused.wait())
        timer = self._clock.call_at(deadline, functools.partial(_cancel, waiting))
        await asyncio.wait({waiting})
        timer.cancel()

    def begin_spares(self) -> None:
        """The server starts: from its first idle moment on, processes are started ahead."""
        if self.keeper is not None:
            self.keeper.begin()

    def look_at_spares(self) -> None:
        """Something is over, or began: another process may be started ahead, in the next idle moment."""
        if self.keeper is not None:
            self.keeper.look()

    async def close(self) -> None:
        """Ends every worker, and what is on its way to be one; returns when they are gone."""
        if self.keeper is not None:
            self.keeper.close()
        tasks = [task for model in self.models.values() for task in (model.life, model.opening) if task is not None]
        for task in tasks:
            _cancel_once(task)
        await asyncio.gather(*tasks, self.memory.close(), return_exceptions=True)

    def phases(self, model: ServedModel) -> tuple[tuple[str, float], ...]:
        """Seconds of each phase of the load; of the one under way, so far."""
        phases = dict(model.phases)
        if phases and self.residency(model).status == "loading":
            phases[next(reversed(phases))] = self._clock.now() - model.phase_started_at
        return tuple(phases.items())

    def num_bytes(self, model: ServedModel) -> int | None:
        """What a model is charged with, on all devices; of one that is not resident what it will need, where known."""
        residency = self.residency(model)
        if residency.charged:
            return sum(residency.charged.get(device, 0) for device in self._devices)
        if residency.need is None:
            return model.config.residency.expected_bytes
        return sum(residency.need.amounts.values()) + residency.need.more_bytes

    def over_limit_bytes(self, model: ServedModel) -> int:
        """What it alone is charged with over the limit of a device."""
        charged = self.residency(model).charged
        return max([0, *(charged.get(device, 0) - self.budget[device] for device in self._devices)])

    def stats(self, model: ServedModel) -> dict[str, float]:
        """Its numbers: see resident_stats."""
        return model_stats(model, self.residency(model), self._devices)

    def pool_stats(self) -> dict[str, float]:
        """Of all models together."""
        return pool_stats(self.pool, self._devices, None if self.keeper is None else self.keeper.spares)

    async def watch(self, model: ServedModel) -> AsyncIterator[None]:
        """Once now, and then at each change of its load: what happened meanwhile is told once. Never ends."""
        changed = asyncio.Event()
        model.watchers.add(changed)
        try:
            while True:
                changed.clear()
                yield
                await changed.wait()
        finally:
            model.watchers.discard(changed)

    # pool.Effects

    def estimate(self, effect: Estimate) -> None:
        self._lives.begin_estimate(self.models[effect.model], effect)

    def start(self, effect: Start) -> None:
        if self.keeper is not None:
            self.keeper.start_model()
        self._lives.begin_worker(self.models[effect.model], effect)

    def stop(self, effect: Stop) -> None:
        model = self.models[effect.model]
        model.stop_error = effect.error
        if effect.error is None:
            logger.info("%s: unloaded: %s", model.id, _WHY_STOPPED[effect.reason])
        if model.life is not None:
            _cancel_once(model.life)

    def grant(self, effect: Grant) -> None:
        model = self.models[effect.model]
        want, future = self._waiting.get(effect.ticket, (None, None))
        if want is None or future is None or future.done():
            self.pool.post(LeaseEnded(effect.model, effect.generation, has_served=False, is_use=False))
            return
        lease = self._make_lease(model, effect.generation, want.is_use)
        if lease is not None:
            future.set_result(lease)

    def deny(self, effect: Deny) -> None:
        _, future = self._waiting.get(effect.ticket, (None, None))
        if future is not None and not future.done():
            future.set_exception(effect.error)

    def forget(self, effect: Forget) -> None:
        model = self.models.pop(effect.model)
        self.memory.forget(model)
        model.tell_watchers()
        self.look_at_spares()

    # within

    def _give_up(self, ticket: int, model: ServedModel) -> None:
        error = ModelNotReady(
            f"model {model.id} was not ready within the request's timeout_s: give it more, or try later"
        )
        self.deny(Deny(ticket, error))
        self.pool.post(Unwant(ticket))

    def _make_lease(self, model: ServedModel, generation: int, is_use: bool) -> Lease | None:
        """Of what the pool has granted; None, and it is given back: there is no client."""
        if model.client is None:
            self.pool.post(LeaseEnded(model.id, generation, has_served=False, is_use=False))
            return None
        self._num_leased += 1
        self._unused.clear()
        if self.keeper is not None:
            self.keeper.busy()
        return Lease(model, model.client, functools.partial(self._end_lease, model, generation, is_use))

    def _end_lease(self, model: ServedModel, generation: int, is_use: bool, has_served: bool) -> None:
        self._num_leased -= 1
        self.pool.post(LeaseEnded(model.id, generation, has_served, is_use))
        if not self._num_leased:
            self._unused.set()
            self.look_at_spares()
        if not self.residency(model).num_leases:
            self.memory.look(model, generation)

    def _tell_pool(self, event: WorkerEvent) -> None:
        self.pool.post(event)
        if isinstance(event, WorkerReady) and event.model in self.models:
            self.memory.look(self.models[event.model], event.generation)
        self.look_at_spares()

    def _warn_of_growth(self) -> None:
        """Once, until it is over: nothing can be done about models that are used, pinned, or alone."""
        over = over_limit(self.pool)
        for device in sorted(over.keys() - self._over_limit):
            staying = [(each.charged.get(device, 0), name) for name, each in self.pool.state.models.items()]
            told = ", ".join(f"{name} {size_text(size)}" for size, name in sorted(staying, reverse=True) if size)
            flag = "--memory-limit" if device == CPU else "--gpu-memory-limit"
            logger.warning(
                "models were measured to take %s of %s, over %s %s, and can not be unloaded now: %s. Others are loaded"
                " once they have left; raise the limit, or give these less",
                size_text(self.budget[device] + over[device]),
                device,
                flag,
                size_text(self.budget[device]),
                told,
            )
        self._over_limit = frozenset(over)

    def _spare_kind(self, model: str) -> SpareKind | None:
        return spare_kind(self.models[model].config) if model in self.models else None

    def _tell_measured(self, model: ServedModel, event: Measured) -> None:
        self.pool.post(event)
        self.look_at_spares()
        self._warn_of_growth()
        self.on_measured(model, sum(event.amounts.values()), sum(model.phases.values()))


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


def _cancel_once(task: asyncio.Task[Any]) -> None:
    """A second cancel would break off the end of the process that the first one began."""
    if not task.cancelling():
        task.cancel()
