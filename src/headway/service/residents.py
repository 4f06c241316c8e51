"""Residents: acts on what the pool decides. One task for each life of a worker, from its start to its end.

A life: resolve the source, open the text while the process starts and loads, Ready, serve, end. However it ends, the
process is gone before the pool hears WorkerEnded, so that the place is free when the pool thinks so.
"""

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import headway_wire as wire
from headway.config import ModelConfig, PoolConfig, ServerConfig
from headway.errors import HeadwayError, InternalError, ModelNotReady, UnsupportedFeature
from headway.observe.clock import Clock
from headway.service.events import (
    Deny,
    Grant,
    LeaseEnded,
    Start,
    Stop,
    Unwant,
    Want,
    WorkerEnded,
    WorkerLost,
    WorkerReady,
)
from headway.service.loader import Loader, OpenedModel
from headway.service.pool import Pool
from headway.service.residency import Residency
from headway.worker.client import WorkerClient
from headway.worker.prompt import ModelText
from headway.worker.resident import ClientSettings, ResidentClient
from headway.worker.stream import StreamLimits

logger = logging.getLogger(__name__)

_GAUGES = ("num_running", "num_waiting", "client_open_requests")


@dataclass(slots=True)
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
    info: Mapping[str, Any] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    """The counters (*_total) of the workers that are gone, so that they never go back."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def opened(self) -> OpenedModel | None:
        """Its text, if it is open."""
        if self.opening is None or not self.opening.done() or self.opening.cancelled() or self.opening.exception():
            return None
        return self.opening.result()


class Lease:
    """Keeps a model resident until release(), which must be called once; again: nothing."""

    def __init__(self, residents: "Residents", grant: Grant, model: ServedModel, client: ResidentClient) -> None:
        self.model = model
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
            self._residents.end_lease(LeaseEnded(self._grant.model, self._grant.generation, has_served))


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
    ) -> None:
        self.models = {model.id: model for model in models}
        self.pool = Pool(list(self.models), effects=self, config=pool, clock=clock)
        self._loader = loader
        self._limits = StreamLimits(server.max_unsent_bytes, server.slow_reader_timeout_s)
        self._stall_timeout_s = pool.stall_timeout_s
        self._max_queued = pool.max_queued_requests
        self._clock = clock
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Lease]] = {}
        self._num_leased = 0
        self._unused = asyncio.Event()
        self._unused.set()

    def residency(self, model: ServedModel) -> Residency:
        """What the pool thinks of it now."""
        return self.pool.state.models[model.id]

    async def lease(self, model: ServedModel, deadline: float | None = None) -> Lease:
        """Waits until the model is resident, at most until `deadline` of the clock.

        Raises ModelNotReady, QueueFull, ShuttingDown, or why it can not be loaded.
        """
        ticket = next(self._tickets)
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        timer = None
        if deadline is not None:
            timer = self._clock.call_at(deadline, functools.partial(self._give_up, ticket, model))
        self.pool.post(Want(ticket, model.id))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and not future.exception():
                future.result().release(False)
            else:
                self.pool.post(Unwant(ticket))
            raise
        finally:
            self._waiting.pop(ticket, None)
            if timer is not None:
                timer.cancel()

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

    def end_lease(self, event: LeaseEnded) -> None:
        """Called by Lease.release."""
        self._num_leased -= 1
        if not self._num_leased:
            self._unused.set()
        self.pool.post(event)

    async def wait_unused(self, deadline: float) -> None:
        """Returns once there is no lease, or at `deadline` of the clock."""
        waiting = asyncio.create_task(self._unused.wait())
        timer = self._clock.call_at(deadline, functools.partial(_cancel, waiting))
        await asyncio.wait({waiting})
        timer.cancel()

    async def close(self) -> None:
        """Ends every worker, and what is on its way to be one; returns when they are gone."""
        tasks = [task for model in self.models.values() for task in (model.life, model.opening) if task is not None]
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

    def stats(self, model: ServedModel) -> dict[str, float]:
        """Gauges of its worker, 0 where there is none, and counters over all its workers."""
        now = model.client.stats() if model.client is not None else dict.fromkeys(_GAUGES, 0.0)
        return now | _add_totals(now, model.totals)

    # pool.Effects

    def start(self, effect: Start) -> None:
        model = self.models[effect.model]
        model.stop_error = None
        model.phases = {}
        model.life = asyncio.create_task(self._live(model, effect.generation))

    def stop(self, effect: Stop) -> None:
        model = self.models[effect.model]
        model.stop_error = effect.error
        if model.life is not None:
            model.life.cancel()

    def grant(self, effect: Grant) -> None:
        model = self.models[effect.model]
        future = self._waiting.get(effect.ticket)
        if model.client is None or future is None or future.done():
            self.pool.post(LeaseEnded(effect.model, effect.generation, has_served=False))
            return
        self._num_leased += 1
        self._unused.clear()
        future.set_result(Lease(self, effect, model, model.client))

    def deny(self, effect: Deny) -> None:
        future = self._waiting.get(effect.ticket)
        if future is not None and not future.done():
            future.set_exception(effect.error)

    # within

    def _give_up(self, ticket: int, model: ServedModel) -> None:
        error = ModelNotReady(
            f"model {model.id} was not ready within the request's timeout_s: give it more, or try later"
        )
        self.deny(Deny(ticket, error))
        self.pool.post(Unwant(ticket))

    async def _live(self, model: ServedModel, generation: int) -> None:
        error: HeadwayError | None
        try:
            error = await self._run(model, generation)
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

    async def _run(self, model: ServedModel, generation: int) -> HeadwayError:
        """From the start of a worker to its end; what it ended with."""
        self._enter_phase(model, "fetch", None)
        path = await self._resolve(model)
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
            ready = await self._load(client, self._loader.load_message(model.config, path), model.opening)
            self._end_phase(model)
            model.client, model.info = client, ready.info
            self.pool.post(WorkerReady(model.id, generation))
            return await asyncio.shield(client.ended)
        finally:
            model.client = None
            await client.close()
            model.totals = _add_totals(client.stats(), model.totals)

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

    def _end_phase(self, model: ServedModel) -> None:
        if model.phases:
            model.phases[next(reversed(model.phases))] = self._clock.now() - model.phase_started_at
        model.fraction = None


def _add_totals(stats: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    """The counters of `stats`, each with what it had before."""
    names = {name for name in stats if name.endswith("_total")} | earlier.keys()
    return {name: stats.get(name, 0.0) + earlier.get(name, 0.0) for name in names}


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
