"""ResidentClient: what the pool's side does with a loaded model, whatever runs it.

WorkerClient (a process that speaks tokens), InferClient (processes that speak tensors) and the clients of other servers
are such. A request is open until its model owes nothing more about it; only then its lease ends.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import headway_wire as wire
from headway.core.infer import Inferred, InferRequest
from headway.errors import HeadwayError
from headway.observe.clock import Clock
from headway.worker.stream import StreamLimits


class ModelGone(Exception):
    """The model was lost before it saw the request: whoever is loaded next may be asked. No caller hears of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What clients are made with."""

    limits: StreamLimits
    stall_timeout_s: float
    clock: Clock
    max_queued: int | None
    """Choices that may wait at a worker; None: any number."""
    on_lost: Callable[[], None]
    """Called when the worker is gone, before anybody else hears of it."""
    on_loading: Callable[[wire.Loading], None]
    """Called at each phase of the load."""


class ResidentClient(Protocol):
    """One loaded model."""

    @property
    def name(self) -> str: ...

    @property
    def ended(self) -> asyncio.Future[HeadwayError]:
        """Done once it is gone: the error that its open requests were given."""
        ...

    async def load(self, message: wire.Load) -> wire.Ready:
        """Loads, once. Raises what it failed with."""
        ...

    def stats(self) -> dict[str, float]:
        """Gauges and counters (*_total); client_open_requests among them."""
        ...

    def shut_down_requests(self) -> None:
        """Ends every open request with ShuttingDown."""
        ...

    async def close(self, grace_s: float = 2.0) -> None:
        """Ends it; returns when its processes are gone."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """Of its processes on this machine."""
        ...


@runtime_checkable
class TensorClient(Protocol):
    """A ResidentClient whose model takes tensors or a value."""

    async def infer(
        self, request: InferRequest, on_settled: Callable[[bool], None], *, deadline: float | None = None
    ) -> Inferred:
        """One inference, checked against the signature. Raises HeadwayError, ModelGone.

        `on_settled` is called once, whatever happens, when the model owes nothing more for the request, which may be
        later than the return where the caller was cancelled; its argument says whether it did what was asked.
        """
        ...
