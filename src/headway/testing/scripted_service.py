"""ScriptedService: the real service, pool, client and loop over scripted models, for tests of the doors.

    service = ScriptedService(Script(reply=say("Hello!")))                    # in this process, a thread a worker
    service = ScriptedService(script, is_in_process=False)                    # real children over real sockets

start() it, await until_ready(), use it as any Service, aclose() it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

import headway_wire as wire
from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ResidencyConfig, ServerConfig
from headway.errors import InvariantBroken, ModelNotReady
from headway.observe.clock import Clock
from headway.service.estimate import ModelEstimate
from headway.service.events import CPU, Amounts, Need
from headway.service.loader import OpenedModel, make_worker_client
from headway.service.local import LocalService
from headway.testing.script import Script
from headway.testing.scripted_engine import GATE_PREFIX, ScriptedPredictor
from headway.testing.scripted_text import make_text
from headway.testing.thread_worker import ThreadWorker
from headway.worker.process import WorkerProcess, start_process
from headway.worker.resident import ClientSettings, ResidentClient

PREDICTOR = "headway.testing.scripted_engine:ScriptedPredictor"
_POLL_S = 0.002


class ScriptedLoader:
    """Workers that play scripts, by the model's source (service/loader.Loader)."""

    spares = None

    def __init__(self, scripts: Mapping[str, Script], *, is_in_process: bool = True) -> None:
        self.scripts = dict(scripts)
        """May be changed between starts."""
        self.workers: dict[str, ThreadWorker | WorkerProcess] = {}
        """The last one of each model."""
        self._is_in_process = is_in_process

    async def resolve(self, model: ModelConfig) -> Path:
        """The source itself."""
        return Path(model.source)

    async def open(self, model: ModelConfig, path: Path) -> OpenedModel:
        """The script's text."""
        return OpenedModel(make_text(self.scripts[model.source]), created=1)

    async def estimate(self, model: ModelConfig, path: Path, budget: Amounts) -> ModelEstimate:
        """What the model's residency config expects, else 64 MiB."""
        told = model.residency
        return ModelEstimate(Need({CPU: told.expected_bytes or 64 << 20}, load_s=told.expected_load_s or 1.0))

    async def connect(self, model: ModelConfig, name: str, settings: ClientSettings) -> ResidentClient:
        """A thread or a process."""
        client = make_worker_client(name, settings)
        if self._is_in_process:
            self.workers[name] = ThreadWorker(name, client)
        else:
            self.workers[name] = await start_process(name, client)
        client.attach(self.workers[name])
        return client

    def load_message(self, model: ModelConfig, path: Path) -> wire.Load:
        """The script as plain data."""
        script = msgspec.to_builtins(self.scripts[model.source], builtin_types=(bytes,))
        return wire.Load(predictor=PREDICTOR, source=str(path), options={"script": script})


class ScriptedService(LocalService):
    """LocalService over a ScriptedLoader."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        models: Mapping[str, Script] | None = None,
        pool: PoolConfig | None = None,
        server: ServerConfig | None = None,
        clock: Clock | None = None,
        is_in_process: bool = True,
        residency: Mapping[str, ResidencyConfig] | None = None,
        keeps_first: bool = True,
    ) -> None:
        """One model "scripted" that plays `script`, or those of `models` by their names.

        Each is said to need 64 MiB, unless its config in `residency` expects something else.
        """
        scripts = models or {"scripted": script or Script()}
        self.loader = ScriptedLoader(scripts, is_in_process=is_in_process)
        told = residency or {}
        super().__init__(
            [_make_config(name, told.get(name, ResidencyConfig())) for name in scripts],
            pool or PoolConfig(),
            server or ServerConfig(),
            CheckpointConfig(cache_dir=Path()),
            loader=self.loader,
            clock=clock,
            keeps_first=keeps_first,
        )

    async def until_ready(self, timeout_s: float = 30.0) -> None:
        """Waits until a request would be taken. Raises ModelNotReady."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready()[0]:
            if time.monotonic() > deadline:
                raise ModelNotReady(f"not ready after {timeout_s:g} s: {self.is_ready()[1]}")
            await asyncio.sleep(_POLL_S)

    def worker(self, model: str = "scripted") -> ThreadWorker | WorkerProcess:
        """The last worker of a model: kill("...") it, or read its pid."""
        return self.loader.workers[model]

    def predictor(self, model: str = "scripted") -> ScriptedPredictor:
        """The predictor of an in-process worker: the aborts and holds that reached it."""
        worker = self.worker(model)
        if not isinstance(worker, ThreadWorker) or not isinstance(worker.worker_loop.predictor, ScriptedPredictor):
            raise InvariantBroken("there is no scripted predictor in this process")
        return worker.worker_loop.predictor

    def open_gate(self, name: str, model: str = "scripted") -> None:
        """Lets the sequences that wait at the gate go on, now and later."""
        self.worker(model).send(wire.Hold(request_id=GATE_PREFIX + name, is_held=False))

    async def until_idle(self, timeout_s: float = 30.0) -> None:
        """Waits until no request is open in any worker. Raises InvariantBroken, which lists what is."""
        deadline = time.monotonic() + timeout_s
        while busy := self._busy():
            if time.monotonic() > deadline:
                raise InvariantBroken(f"still busy after {timeout_s:g} s: {busy}")
            await asyncio.sleep(_POLL_S)

    def _busy(self) -> Sequence[str]:
        stats = self.stats()
        names = ("client_open_requests", "num_running", "num_waiting")
        busy = [f"{model} {name}" for model, it in stats["models"].items() for name in names if it.get(name)]
        return busy + [name for name in ("leases", "waiting_requests") if stats["pool"]["pool"][name]]


def _make_config(name: str, residency: ResidencyConfig) -> ModelConfig:
    return ModelConfig(source=name, served_names=(name,), predictor=PREDICTOR, residency=residency)
