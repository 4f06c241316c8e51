"""The lives of models, one task each: an estimate of what one needs, or a worker from its start to its end.

A worker's life: resolve the source, open the text while the process starts and loads, Ready, serve, end. However it
ends, the process is gone before the pool hears WorkerEnded, so that its memory is free when the pool thinks so.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import headway_wire as wire
from headway.config import ModelConfig
from headway.errors import HeadwayError, InternalError
from headway.observe.clock import Clock
from headway.observe.load_phases import describe_load
from headway.service.estimate import ModelEstimate, engine_device, need_of_info
from headway.service.events import Amounts, Estimate, Estimated, Start, WorkerEnded, WorkerEvent, WorkerLost
from headway.service.events import WorkerReady as Ready
from headway.service.loader import Loader, OpenedModel
from headway.service.resident_stats import add_totals
from headway.service.served_model import ServedModel
from headway.worker.resident import ClientSettings, ResidentClient
from headway.worker.stream import StreamLimits

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[Estimated | HeadwayError | None]]
"""What a life does; what it ended with, or what an estimate found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSettings:
    """What all lives share."""

    loader: Loader
    clock: Clock
    budget: Amounts
    limits: StreamLimits
    stall_timeout_s: float
    max_queued: int
    tell: Callable[[WorkerEvent], None]
    """Tells the pool."""


class Lives:
    """Begins them; each ends by telling the pool, whatever went wrong."""

    def __init__(self, settings: LifeSettings) -> None:
        self._settings = settings
        self._loader = settings.loader
        self._clock = settings.clock
        self._tell = settings.tell

    def begin_estimate(self, model: ServedModel, effect: Estimate) -> None:
        """Finds its files, which are fetched if need be, and what it needs."""
        self._begin(model, effect.generation, functools.partial(self._find_need, model, effect.generation))

    def begin_worker(self, model: ServedModel, effect: Start) -> None:
        """Starts its worker."""
        self._begin(model, effect.generation, functools.partial(self._run, model, effect))

    async def open(self, model: ServedModel) -> OpenedModel:
        """Its text, without a worker. What its files took to come counts as its load's, which is likely to follow."""
        began_at = self._clock.now()
        path = await self._resolve(model)
        model.fetch_s = max(model.fetch_s, self._clock.now() - began_at)
        return await self._loader.open(model.config, path)

    def _begin(self, model: ServedModel, generation: int, work: Work) -> None:
        model.stop_error = None
        model.phases = {}
        model.life = asyncio.create_task(self._live(model, generation, work))
        model.life.add_done_callback(functools.partial(self._end_unbegun, model, generation))

    def _end_unbegun(self, model: ServedModel, generation: int, life: "asyncio.Task[None]") -> None:
        """A life that was stopped before its first turn could not tell the pool itself."""
        if life.cancelled():
            self._tell(WorkerEnded(model.id, generation, model.stop_error))

    async def _live(self, model: ServedModel, generation: int, work: Work) -> None:
        error: HeadwayError | None
        try:
            found = await work()
            if isinstance(found, Estimated):
                self._tell(found)
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
        self._tell(WorkerEnded(model.id, generation, error))
        model.tell_watchers()

    async def _find_need(self, model: ServedModel, generation: int) -> Estimated:
        began_at = self._clock.now() - model.fetch_s
        model.enter_phase("fetch", None, began_at)
        path = await self._resolve(model)
        model.estimate = await self._loader.estimate(model.config, path, self._settings.budget)
        model.fetch_s = self._clock.now() - began_at
        return Estimated(model.id, generation, model.estimate.need)

    async def _run(self, model: ServedModel, start: Start) -> HeadwayError | None:
        """From the start of a worker to its end; what it ended with."""
        model.enter_phase("fetch", None, self._clock.now() - model.fetch_s)
        model.fetch_s = 0.0
        path = await self._resolve(model)
        self._enter_phase(model, wire.Loading(phase="start"))
        model.opening = asyncio.create_task(self._loader.open(model.config, path))
        client = await self._loader.connect(model.config, model.id, self._client_settings(model, start.generation))
        try:
            message = self._loader.load_message(
                bounded(model.config, model.estimate, start.more_bytes, self._settings.budget), path
            )
            self._become_ready(model, start.generation, client, await _load(client, message, model.opening))
            return await asyncio.shield(client.ended)
        finally:
            model.client = None
            await client.close()
            model.totals = add_totals(client.stats(), model.totals)

    def _client_settings(self, model: ServedModel, generation: int) -> ClientSettings:
        return ClientSettings(
            limits=self._settings.limits,
            stall_timeout_s=self._settings.stall_timeout_s,
            clock=self._clock,
            max_queued=self._settings.max_queued,
            on_lost=lambda: self._tell(WorkerLost(model.id, generation)),
            on_loading=functools.partial(self._enter_phase, model),
        )

    def _become_ready(self, model: ServedModel, generation: int, client: ResidentClient, ready: wire.Ready) -> None:
        now = self._clock.now()
        model.end_phase(now)
        model.client, model.info, model.ready_at = client, ready.info, now
        for phase, seconds in model.phases.items():
            model.load_seconds[phase] = model.load_seconds.get(phase, 0.0) + seconds
        load_s = sum(seconds for phase, seconds in model.phases.items() if phase != "fetch")
        logger.info("%s: %s", model.id, describe_load(model.phases.items()))
        self._tell(Ready(model.id, generation, load_s, need_of_info(ready.info)))
        model.tell_watchers()

    async def _resolve(self, model: ServedModel) -> Path:
        """Once: a model that was found is started again without asking a hub, which may be out of reach by then."""
        if model.path is None:
            model.path = await self._loader.resolve(model.config)
        return model.path

    def _enter_phase(self, model: ServedModel, loading: wire.Loading) -> None:
        model.enter_phase(loading.phase, loading.fraction, self._clock.now())


def bounded(config: ModelConfig, estimate: ModelEstimate | None, more_bytes: int, budget: Amounts) -> ModelConfig:
    """A model's config, with what it may take of the budget.

    Args:
        config: as it is served.
        estimate: None: nobody asked what it needs, so it plans its memory itself, within the budget.
        more_bytes: what its cache may take beside the least (Start.more_bytes).
        budget: of each device.
    """
    engine = config.engine
    if estimate is not None and estimate.kv_bytes is not None:
        engine = replace(engine, kv_cache_memory=estimate.kv_bytes + more_bytes)
    return replace(config, engine=replace(engine, memory_limit=budget.get(engine_device(engine))))


async def _load(client: ResidentClient, message: wire.Load, opening: "asyncio.Task[OpenedModel]") -> wire.Ready:
    """Waits for both the worker and the text; the first that fails ends it."""
    loading = asyncio.create_task(client.load(message))
    try:
        await asyncio.wait({loading, opening}, return_when=asyncio.FIRST_EXCEPTION)
        if opening.done():
            opening.result()
        return await loading
    finally:
        loading.cancel()
