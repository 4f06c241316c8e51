"""Runs an app on uvicorn: binds, announces, and ends as it should.

The first SIGTERM or SIGINT: readiness goes to 503, new requests get 503, streams finish within drain_timeout_s, those
that do not end with an error event; then the service ends and serve() returns 0. A second one has the system's own
effect: the process is gone at once, and the workers with it, since they end when their parent does. A model that is
loading holds up neither.
"""

import asyncio
import contextlib
import functools
import math
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.config import ServerConfig
from headway.errors import HeadwayError, InvalidConfig
from headway.observe.logs import get_logger
from headway.server.app import lifespan_of, make_app, server_state
from headway.server.connection import HttpProtocol
from headway.server.listen import BACKLOG, bind
from headway.server.middleware import RequestScope
from headway.server.native_door import NativeDoor
from headway.service.protocol import Service
from headway.service.standing_lease import LeasingService

if TYPE_CHECKING:
    from headway.server.oip.rpc.server import GrpcServer

log = get_logger("headway.server")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
KEEP_ALIVE_S = 75.0
"""An idle connection lives longer here than in the usual clients' pools, so that they, and not we, close it."""
READINESS_POLL_S = 0.05
GRPC_GRACE_S = 1.0
"""For calls over gRPC whose answers are on their way when the service has drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcements:
    """What the caller wants to be told, on the event loop; none of it may block."""

    on_listening: Callable[[str], None] = lambda url: None
    """The socket listens; url is the one to call it by."""
    on_ready: Callable[[], None] = lambda: None
    """A request would be taken now; told once."""
    on_failed: Callable[[str, HeadwayError], None] = lambda model, error: None
    """A model's load failed: its name, and why; told once for each message. The server goes on."""


def run(service: Service, config: ServerConfig, announcements: Announcements | None = None) -> int:
    """Serves until a signal; blocks. Returns the exit code.

    Raises InvalidConfig when the address can not be listened on, before anything was started.
    """
    server = HttpServer(make_app(service, config), announcements)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(server.serve())


class HttpServer:
    """One listening socket and the app behind it."""

    def __init__(
        self, app: FastAPI, announcements: Announcements | None = None, *, bound: socket.socket | None = None
    ) -> None:
        """Binds. Raises InvalidConfig when the address can not be listened on.

        Args:
            app: made by make_app().
            bound: by listen.bind(), where that was done before; it is closed at the end.
        """
        self._app = app
        self._state = server_state(app)
        self._announcements = announcements or Announcements()
        self._socket = bound or bind(self._state.config.host, self._state.config.port)
        if self._state.config.grpc_port is not None:
            _check_grpc()
        self.grpc_port: int | None = None
        """Where gRPC listens, once it does."""
        outermost = _outermost(app)
        if self._state.config.native_door and outermost is not app and isinstance(self._state.service, LeasingService):
            self._state.native_door = NativeDoor(self._state, self._state.service)
        self._uvicorn = _Uvicorn(_uvicorn_config(outermost, self._state.native_door), self._on_started)
        self._draining: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where a client on this machine finds it."""
        host, port = self._socket.getsockname()[:2]
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{loopback}]:{port}" if ":" in loopback else f"http://{loopback}:{port}"

    async def serve(self) -> int:
        """Serves until stop() or a signal. Returns the exit code. Call it once."""
        self._url = self.url
        door = self._state.native_door
        if door is not None:
            door.open(asyncio.get_running_loop())
        with self._socket, self._signals():
            async with lifespan_of(self._app):
                grpc = await self._start_grpc()
                watching = asyncio.ensure_future(self._watch_readiness())
                try:
                    await self._uvicorn.serve([self._socket])
                finally:
                    if grpc is not None:
                        await grpc.stop(GRPC_GRACE_S)
                    watching.cancel()
                    if self._draining is not None:
                        await asyncio.gather(self._draining, watching, return_exceptions=True)
        return 0

    async def _start_grpc(self) -> "GrpcServer | None":
        """Raises InvalidConfig when its port can not be listened on."""
        config = self._state.config
        if config.grpc_port is None:
            return None
        from headway.server.oip.rpc.server import GrpcServer

        server = GrpcServer(self._state, config.host, config.grpc_port)
        await server.start()
        self.grpc_port = server.port
        return server

    def stop(self) -> None:
        """As the first signal. Call it on the event loop; more calls change nothing."""
        if self._draining is None:
            self._state.is_draining = True
            if self._state.native_door is not None:
                self._state.native_door.close()
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        timeout_s = self._state.config.drain_timeout_s
        deadline_s = self._state.clock.now() + timeout_s
        log.info("shutting down", drain_timeout_s=timeout_s)
        try:
            await self._state.service.drain(timeout_s)
        except Exception:  # the server has to end all the same
            log.exception("draining failed")
        # What the service has ended may still be on its way to slow clients.
        left_s = max(1, math.ceil(deadline_s - self._state.clock.now()))
        self._uvicorn.config.timeout_graceful_shutdown = left_s
        self._uvicorn.should_exit = True

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ours while serving. In a thread there are none: then stop() is the way."""
        loop = asyncio.get_running_loop()
        try:
            for number in SIGNALS:
                loop.add_signal_handler(number, self._on_signal)
        except (ValueError, RuntimeError):
            yield
            return
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        self.stop()

    def _on_started(self) -> None:
        self._announcements.on_listening(self._url)

    async def _watch_readiness(self) -> None:
        """Ends once ready; a failed load is told and waited on, since the pool tries again."""
        told: set[tuple[str, str]] = set()
        while not self._state.service.is_ready()[0]:
            for card in self._state.service.models():
                if card.state == "failed" and card.error and (card.id, card.error.message) not in told:
                    told.add((card.id, card.error.message))
                    self._announcements.on_failed(card.id, card.error)
            await asyncio.sleep(READINESS_POLL_S)
        self._announcements.on_ready()


def _check_grpc() -> None:
    """Raises InvalidConfig where the packages are missing."""
    try:
        import google.protobuf  # noqa: F401
        import grpc  # noqa: F401
    except ImportError as error:
        raise InvalidConfig(
            f"--grpc-port needs {error.name}, which is not installed: pip install 'headway[grpc]'", param="grpc_port"
        ) from None


class _OwnLayers:
    """An app from its RequestScope on. What the framework has around it (layers for limits and errors that are ours to
    see to, and a look at each request for telemetry that nobody set up) takes a tenth of a short request."""

    def __init__(self, app: FastAPI) -> None:
        layer: Any = app.build_middleware_stack()
        while not isinstance(layer, RequestScope):
            layer = layer.app
        self._app = app
        self._layer = layer

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """ASGI."""
        scope["app"] = self._app
        return self._layer(scope, receive, send)


def _outermost(app: FastAPI) -> ASGIApp:
    """The framework's own way where there may be telemetry (its SDK is loaded before the server is made), and where
    whoever has the app put a layer around ours, or a handler of what nobody caught."""
    outermost: Any = app.user_middleware[0].cls
    has_handler = any(key in app.exception_handlers for key in (500, Exception))
    if "opentelemetry.sdk" in sys.modules or outermost is not RequestScope or has_handler:
        return app
    return _OwnLayers(app)


def _uvicorn_config(app: ASGIApp, native_door: NativeDoor | None) -> uvicorn.Config:
    return uvicorn.Config(
        cast(Any, app),
        interface="asgi3",
        http=cast(Any, functools.partial(HttpProtocol, native_door=native_door)),
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=cast(Any, KEEP_ALIVE_S),
        backlog=BACKLOG,
    )


class _Uvicorn(uvicorn.Server):
    """Leaves the signals to HttpServer, and says when it listens."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()
