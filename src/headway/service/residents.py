"""Residents: acts on what the pool decides. One task for each life of a worker, from its start to its end.

A life: resolve the source, open the text while the process starts and loads, Ready, serve, end. However it ends, the
process is gone before the pool hears WorkerEnded, so that its memory is free when the pool thinks so. What it takes is
measured in a thread, once it is ready and when it is unused, and told to the pool as an event.
"""

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import headway_wire as wire
from headway.config import ModelConfig, PoolConfig, ServerConfig
from headway.errors import HeadwayError, InternalError, ModelNotReady, UnsupportedFeature
from headway.observe.clock import Clock
from headway.observe.gpus import Gpus, find_gpus
from headway.observe.machine import usable_cores
from headway.observe.memory_use import process_tree_bytes
from headway.observe.number_histogram import POOL_WAIT, NumberHistogram
from headway.observe.server_timing import TIMING
from headway.service.budget import make_budget
from headway.service.estimate import ModelEstimate, need_of_info
from headway.service.events import (
    CPU,
    MODELS,
    AddModel,
    Amounts,
    Deny,
    Estimate,
    Estimated,
    Forget,
    Grant,
    LeaseEnded,
    Measured,
    ModelFacts,
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
from headway.service.loader import Loader, OpenedModel
from headway.service.pool import Pool
from headway.service.pool_state import Residency
from headway.worker.client import WorkerClient
from headway.worker.prompt import ModelText
from headway.worker.resident import ClientSettings, ResidentClient
from headway.worker.stream import StreamLimits

logger = logging.getLogger(__name__)

_GONE = Residency(is_removed=True)
Work = Callable[[], Awaitable[Estimated | HeadwayError | None]]
"""What a life does; what it ended with, or what an estimate found."""
_GAUGES = ("num_running", "num_waiting", "client_open_requests")
_LEAST_LOADING = 2
_MEASURE_INTERVAL_S = 5.0
"""Between two measures of a model that is unused again and again."""


@dataclass(slots=True, eq=False)
class ServedModel:
    """One model of the configuration, and what is known of it now."""

    id: str
    config: ModelConfig
    path: Path | None = None
    """Where its files are, once that is known."""
    opening: asyncio.Task[OpenedModel] | None = None
    """Of the last start, or of the first who asked for its text."""
    client: ResidentClient | None = None
    """While it is ready."""
    life: asyncio.Task[None] | None = None
    stop_error: HeadwayError | None = None
    """Why the life that ends now was stopped; None: because the place was wanted."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase of the last load, in order."""
    phase_started_at: float = 0.0
    fraction: float | None = None
    """Of the phase under way."""
    ready_at: float = 0.0
    """When its last load ended well."""
    fetch_s: float = 0.0
    """What finding its files took, before the load that follows."""
    estimate: ModelEstimate | None = None
    """What it was told to need; None: nobody asked."""
    measured_at: float = 0.0
    load_seconds: dict[str, float] = field(default_factory=dict)
    """Of each phase, over all loads."""
    waits: NumberHistogram = field(default_factory=lambda: NumberHistogram(POOL_WAIT))
    """Of requests that had to wait for it."""
    watchers: set[asyncio.Event] = field(default_factory=set)
    """Set when something changes that who watches its load wants to know."""
    info: Mapping[str, Any] = field(default_factory=dict)
    update_error: HeadwayError | None = None
    """Why what is new in its watched source does not take its place."""
    totals: dict[str, float] = field(default_factory=dict)
    """The counters (*_total) of the workers that are gone, so that they never go back."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def opened(self) -> OpenedModel | None:
        """Its text, if it is open."""
        if self.opening is None or not self.opening.done() or self.opening.cancelled() or self.opening.exception():
            return None
        return self.opening.result()

    @property
    def facts(self) -> ModelFacts:
        """What the pool is told of it."""
        residency = self.config.residency
        return ModelFacts(is_pinned=residency.is_pinned, idle_timeout_s=residency.idle_timeout_s)

    def tell_watchers(self) -> None:
        """Something changed."""
        for event in self.watchers:
            event.set()


class Lease:
    """Keeps a model resident until release(), which must be called once; again: nothing."""

    def __init__(
        self, residents: "Residents", grant: Grant, model: ServedModel, client: ResidentClient, is_use: bool
    ) -> None:
        self.model = model
        self._is_use = is_use
        self.client = client
        self._residents = residents
        self._grant = grant
        self._is_released = False

    @property
    def worker(self) -> WorkerClient:
        """The client of a process that speaks tokens. Raises UnsupportedFeature where it speaks none."""
        if not isinstance(self.client, WorkerClient):
            raise UnsupportedFeature(
                f"{self.model.id} is a model of type {self.model.config.type}: it generates no tokens", param="model"
            )
        return self.client

    def release(self, has_served: bool) -> None:
        """`has_served`: the worker did what was asked."""
        if not self._is_released:
            self._is_released = True
            self._residents.end_lease(
                self.model, LeaseEnded(self._grant.model, self._grant.generation, has_served, self._is_use)
            )


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
        self._gpus = gpus or find_gpus()
        self.budget: Amounts = make_budget(pool, gpus=self._gpus)
        self.pool = Pool(
            {model.id: model.facts for model in models},
            effects=self,
            config=pool,
            clock=clock,
            budget=self.budget,
            max_loading=max(_LEAST_LOADING, usable_cores()),
        )
        self._loader = loader
        self._limits = StreamLimits(server.max_unsent_bytes, server.slow_reader_timeout_s)
        self._stall_timeout_s = pool.stall_timeout_s
        self._max_queued = pool.max_queued_requests
        self._clock = clock
        self._devices = [name for name in self.budget if name != MODELS]
        self._tickets = itertools.count(1)
        self._waiting: dict[int, tuple[Want, asyncio.Future[Lease]]] = {}
        self._measuring: dict[str, asyncio.Task[None]] = {}
        self._num_leased = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self.on_measured: Callable[[ServedModel, int, float], None] = lambda model, num_bytes, load_s: None
        """Told what a ready model takes, and the seconds of its load, whenever that was looked at."""

    def add(self, model: ServedModel) -> None:
        """One more, cold. Its id is unlike any other's in `models`."""
        self.models[model.id] = model
        self.pool.post(AddModel(model.id, model.facts))

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
        want = Want(next(self._tickets), model.id, is_use)
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting[want.ticket] = want, future
        try:
            self.pool.post(want)
            return future.result() if future.done() else await self._wait(want, future, model, deadline)
        finally:
            del self._waiting[want.ticket]

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
            model.opening = asyncio.create_task(self._open(model))
        return await asyncio.shield(model.opening)

    def end_lease(self, model: ServedModel, event: LeaseEnded) -> None:
        """Called by Lease.release."""
        self._num_leased -= 1
        if not self._num_leased:
            self._unused.set()
        self.pool.post(event)
        if not self.residency(model).num_leases:
            self._measure(model, event.generation)

    async def wait_unused(self, deadline: float) -> None:
        """Returns once there is no lease, or at `deadline` of the clock."""
        waiting = asyncio.create_task(self._unused.wait())
        timer = self._clock.call_at(deadline, functools.partial(_cancel, waiting))
        await asyncio.wait({waiting})
        timer.cancel()

    async def close(self) -> None:
        """Ends every worker, and what is on its way to be one; returns when they are gone."""
        lives = [task for model in self.models.values() for task in (model.life, model.opening) if task is not None]
        tasks = [*lives, *self._measuring.values()]
        for task in tasks:
            # A second cancel would break off the end of the process that the first one began.
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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

    def stats(self, model: ServedModel) -> dict[str, float]:
        """Gauges of its worker, 0 where there is none, and counters over all its workers."""
        now = model.client.stats() if model.client is not None else dict.fromkeys(_GAUGES, 0.0)
        return now | _add_totals(now, model.totals) | self._residency_stats(model)

    def _residency_stats(self, model: ServedModel) -> dict[str, float]:
        residency = self.residency(model)
        return {
            "is_resident": float(residency.status == "ready"),
            "charged_bytes": float(sum(residency.charged.get(device, 0) for device in self._devices)),
            "measured_bytes": float(sum(residency.measured.values())) if residency.charged else 0.0,
            "model_leases": float(residency.num_leases),
            "loads_total": float(residency.num_loads),
            **{f"stops_{reason}_total": float(count) for reason, count in residency.stops.items()},
            **{f"load_{phase}_seconds_total": seconds for phase, seconds in model.load_seconds.items()},
            **model.waits.values(),
        }

    def pool_stats(self) -> dict[str, float]:
        """Of all models together."""
        state, charged = self.pool.state, self.pool.charged
        statuses = [residency.status for residency in state.models.values()]
        return {
            "waiting_requests": float(len(state.waiting)),
            "leases": float(self.pool.num_leases),
            "models": float(len(statuses)),
            "residents": float(statuses.count("ready")),
            "loading_models": float(statuses.count("loading")),
            "worker_starts_total": float(state.num_starts),
            "worker_restarts_total": float(state.num_restarts),
            "worker_failures_total": float(state.num_failures),
            **{f"limit_bytes_{device}": float(self.budget[device]) for device in self._devices},
            **{f"charged_bytes_{device}": float(charged.get(device, 0)) for device in self._devices},
        }

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
        model = self.models[effect.model]
        self._begin_life(model, effect.generation, functools.partial(self._find_need, model, effect.generation))

    def start(self, effect: Start) -> None:
        model = self.models[effect.model]
        self._begin_life(model, effect.generation, functools.partial(self._run, model, effect))

    def _begin_life(self, model: ServedModel, generation: int, work: Work) -> None:
        model.stop_error = None
        model.phases = {}
        model.life = asyncio.create_task(self._live(model, generation, work))
        model.life.add_done_callback(functools.partial(self._end_unbegun, model, generation))

    def _end_unbegun(self, model: ServedModel, generation: int, life: "asyncio.Task[None]") -> None:
        """A life that was stopped before its first turn could not tell the pool itself."""
        if life.cancelled():
            self.pool.post(WorkerEnded(model.id, generation, model.stop_error))

    def stop(self, effect: Stop) -> None:
        model = self.models[effect.model]
        model.stop_error = effect.error
        if model.life is not None:
            model.life.cancel()

    def grant(self, effect: Grant) -> None:
        model = self.models[effect.model]
        want, future = self._waiting.get(effect.ticket, (None, None))
        if model.client is None or want is None or future is None or future.done():
            self.pool.post(LeaseEnded(effect.model, effect.generation, has_served=False, is_use=False))
            return
        self._num_leased += 1
        self._unused.clear()
        future.set_result(Lease(self, effect, model, model.client, want.is_use))

    def deny(self, effect: Deny) -> None:
        _, future = self._waiting.get(effect.ticket, (None, None))
        if future is not None and not future.done():
            future.set_exception(effect.error)

    def forget(self, effect: Forget) -> None:
        self.models.pop(effect.model).tell_watchers()

    # within

    def _give_up(self, ticket: int, model: ServedModel) -> None:
        error = ModelNotReady(
            f"model {model.id} was not ready within the request's timeout_s: give it more, or try later"
        )
        self.deny(Deny(ticket, error))
        self.pool.post(Unwant(ticket))

    async def _live(self, model: ServedModel, generation: int, work: Work) -> None:
        """Ends by telling the pool, whatever went wrong."""
        error: HeadwayError | None
        try:
            found = await work()
            if isinstance(found, Estimated):
                self.pool.post(found)
                return
            error = found
        except asyncio.CancelledError:
            error = model.stop_error
        except HeadwayError as fault:
            error = fault
        except Exception as fault:
            # A life must end by telling the pool, whatever went wrong; the pool counts it as a failure.
            logger.exception("%s: starting its worker failed", model.id)
            error = InternalError(f"{type(fault).__name__}: {fault}")
        if error is not None:
            logger.error("%s: %s", model.id, error.message)
        self.pool.post(WorkerEnded(model.id, generation, error))
        model.tell_watchers()

    async def _find_need(self, model: ServedModel, generation: int) -> Estimated:
        """What it will take, from its files, which are fetched if need be."""
        began_at = self._clock.now()
        self._enter_phase(model, "fetch", None)
        path = await self._resolve(model)
        model.estimate = await self._loader.estimate(model.config, path, self.budget)
        model.fetch_s = self._clock.now() - began_at
        return Estimated(model.id, generation, model.estimate.need)

    async def _run(self, model: ServedModel, start: Start) -> HeadwayError | None:
        """From the start of a worker to its end; what it ended with."""
        generation = start.generation
        self._enter_phase(model, "fetch", None)
        model.phase_started_at -= model.fetch_s
        model.fetch_s = 0.0
        path = await self._resolve(model)
        self._enter_phase(model, "start", None)
        model.opening = asyncio.create_task(self._loader.open(model.config, path))
        settings = ClientSettings(
            limits=self._limits,
            stall_timeout_s=self._stall_timeout_s,
            clock=self._clock,
            max_queued=self._max_queued,
            on_lost=lambda: self.pool.post(WorkerLost(model.id, generation)),
            on_loading=lambda loading: self._enter_phase(model, loading.phase, loading.fraction),
        )
        client = await self._loader.connect(model.config, model.id, settings)
        try:
            message = self._loader.load_message(self._load_config(model, start), path)
            ready = await self._load(client, message, model.opening)
            self._become_ready(model, generation, client, ready)
            return await asyncio.shield(client.ended)
        finally:
            model.client = None
            await client.close()
            model.totals = _add_totals(client.stats(), model.totals)

    def _load_config(self, model: ServedModel, start: Start) -> ModelConfig:
        """Its config, with what it may take of the budget."""
        engine = model.config.engine
        device = CPU if model.estimate is None else model.estimate.need.device
        limit = self.budget.get(device)
        if model.estimate is not None and model.estimate.kv_bytes is not None:
            engine = replace(engine, kv_cache_memory=model.estimate.kv_bytes + start.more_bytes)
        return replace(model.config, engine=replace(engine, memory_limit=limit))

    def _become_ready(self, model: ServedModel, generation: int, client: ResidentClient, ready: wire.Ready) -> None:
        self._end_phase(model)
        model.client, model.info, model.ready_at = client, ready.info, self._clock.now()
        for phase, seconds in model.phases.items():
            model.load_seconds[phase] = model.load_seconds.get(phase, 0.0) + seconds
        load_s = sum(seconds for phase, seconds in model.phases.items() if phase != "fetch")
        logger.info("%s: %s", model.id, describe_load(model.phases))
        self.pool.post(WorkerReady(model.id, generation, load_s, need_of_info(ready.info)))
        self._measure(model, generation, is_first=True)
        model.tell_watchers()

    def _measure(self, model: ServedModel, generation: int, *, is_first: bool = False) -> None:
        """Looks what its processes take, in a thread, unless that was done a moment ago."""
        client, now = model.client, self._clock.now()
        is_due = is_first or now >= model.measured_at + _MEASURE_INTERVAL_S
        if client is None or not client.pids or not is_due or model.id in self._measuring:
            return
        model.measured_at = now
        self._measuring[model.id] = asyncio.create_task(self._look_at_memory(model, generation, client.pids))

    async def _look_at_memory(self, model: ServedModel, generation: int, pids: Iterable[int]) -> None:
        try:
            amounts = await asyncio.to_thread(self._amounts_of, tuple(pids))
            self.pool.post(Measured(model.id, generation, amounts))
            if model.client is not None:
                self.on_measured(model, int(sum(amounts.values())), sum(model.phases.values()))
        finally:
            del self._measuring[model.id]

    def _amounts_of(self, pids: Sequence[int]) -> Amounts:
        on_gpus = self._gpus.process_bytes(pids)
        return {CPU: process_tree_bytes(pids), **{f"cuda:{gpu}": size for gpu, size in on_gpus.items()}}

    async def _load(self, client: ResidentClient, message: wire.Load, opening: asyncio.Task[OpenedModel]) -> wire.Ready:
        """Waits for both the worker and the text; the first that fails ends it."""
        loading = asyncio.create_task(client.load(message))
        try:
            await asyncio.wait({loading, opening}, return_when=asyncio.FIRST_EXCEPTION)
            if opening.done():
                opening.result()
            return await loading
        finally:
            loading.cancel()

    async def _open(self, model: ServedModel) -> OpenedModel:
        return await self._loader.open(model.config, await self._resolve(model))

    async def _resolve(self, model: ServedModel) -> Path:
        """Once: a model that was found is started again without asking a hub, which may be out of reach by then."""
        if model.path is None:
            model.path = await self._loader.resolve(model.config)
        return model.path

    def _enter_phase(self, model: ServedModel, phase: str, fraction: float | None) -> None:
        if phase not in model.phases:
            self._end_phase(model)
            model.phases[phase] = 0.0
            model.phase_started_at = self._clock.now()
        model.fraction = fraction
        model.tell_watchers()

    def _end_phase(self, model: ServedModel) -> None:
        if model.phases:
            model.phases[next(reversed(model.phases))] = self._clock.now() - model.phase_started_at
        model.fraction = None


def _add_totals(stats: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    """The counters of `stats`, each with what it had before."""
    names = {name for name in stats if name.endswith("_total")} | earlier.keys()
    return {name: stats.get(name, 0.0) + earlier.get(name, 0.0) for name in names}


def describe_load(phases: Mapping[str, float]) -> str:
    """loaded in 2.1 s: read 0.3 s, build 1.5 s, warm 0.3 s."""
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items())
    return f"loaded in {sum(phases.values()):.1f} s" + (f": {parts}" if parts else "")


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
