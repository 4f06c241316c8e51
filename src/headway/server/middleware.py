"""What every request passes, outermost first, as plain ASGI: nothing here buffers a body or hides a disconnect.

RequestScope  a request id, Server-Timing where it waited, a log line, HTTP metrics, the last word on exceptions
Origins       CORS, starlette's, for localhost and the configured origins
Gate          the host that is called, API keys, shutting down
BodyLimit     413 with both numbers, declared or chunked; 408 for a body that does not come
"""

import asyncio
import logging
import re
from collections.abc import Callable
from secrets import token_hex

import structlog
from prometheus_client import Counter
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway._native import HistogramCounts
from headway.errors import HeadwayError, PayloadTooLarge, ShuttingDown
from headway.observe.logs import get_logger, log_plainly
from headway.observe.server_timing import TIMING, RequestTiming
from headway.server.disconnect import ClientGone
from headway.server.errors import ErrorDetail, Problem
from headway.server.headers import find_header
from headway.server.hosts import AllowedHosts
from headway.server.keys import ApiKeys
from headway.server.paths import is_admin, route_path
from headway.server.refusals import REQUEST_ID, id_headers, refuse, refuse_error
from headway.server.state import ServerState
from headway.worker.given_answer import GIVEN_ANSWER

log = get_logger("headway.server")
_request_log = logging.getLogger("headway.server")

OPEN_PATHS = frozenset(
    {"/health", "/livez", "/ready", "/readyz", "/version", "/v2", "/v2/health/live", "/v2/health/ready"}
)
"""Answered without a key, and while shutting down. Every other path, also one that does not exist, needs both."""
DRAIN_PATHS = OPEN_PATHS | {"/metrics"}
BODY_TIMEOUT_S = 60.0
"""How long the next piece of a body may take."""
BODY_EXTENSION = "headway.body_has_come"
"""In scope["extensions"], where the server offers it: whether all of the body is here, so that nothing waits for it."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class RequestScope:
    """Gives the request its id, counts it, logs one line, and turns what nobody caught into a 500."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app = app
        self._state = state
        self._answers: dict[tuple[str, str, int], tuple[Counter, HistogramCounts]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        wished = find_header(scope, b"x-request-id") or ""
        request_id = wished if _REQUEST_ID.fullmatch(wished) else f"req-{token_hex(16)}"
        scope[REQUEST_ID] = request_id
        started_s = self._state.arrival_s()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *id_headers(scope), *_timing_headers(timing)]
            await send(message)

        metrics = self._state.metrics
        bound = structlog.contextvars.bind_contextvars(request_id=request_id)
        metrics.num_http_open += 1
        timing = RequestTiming()
        timing_token = TIMING.set(timing)
        try:
            await self.app(scope, receive, send_with_id)
        except (ClientGone, ClientDisconnect):
            status = 499
            metrics.http_disconnects.inc()
        except Exception as error:  # the last one who can: the server must outlive any single request
            log.exception("a request failed", path=route_path(scope)[:200])
            if status:
                raise
            await refuse_error(scope, error)(scope, receive, send_with_id)
        finally:
            TIMING.reset(timing_token)
            metrics.num_http_open -= 1
            self._record(scope, status, self._state.clock.now() - started_s)
            structlog.contextvars.reset_contextvars(**bound)

    def _record(self, scope: Scope, status: int, duration_s: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        handler = getattr(scope.get("route"), "path", "none")
        answers, durations = self._answers_of(handler, method, status)
        answers.inc()
        durations.observe(duration_s)
        level = logging.DEBUG if handler in DRAIN_PATHS else logging.INFO
        duration_s = round(duration_s, 4)
        log_plainly(
            _request_log, level, "request", method=method, handler=handler, status=status, duration_s=duration_s
        )

    def _answers_of(self, handler: str, method: str, status: int) -> tuple[Counter, HistogramCounts]:
        """Their count, and how long they took; looked up once."""
        key = handler, method, status
        found = self._answers.get(key)
        if found is not None:
            return found
        metrics = self._state.metrics
        made = metrics.http_requests.labels(handler, method, str(status)), metrics.http_duration.labels(handler)
        self._answers[key] = made
        return made


def _timing_headers(timing: RequestTiming) -> list[tuple[bytes, bytes]]:
    """What the request waited for, where it waited for a model."""
    value = timing.header()
    return [(b"server-timing", value.encode())] if value else []


class Origins(CORSMiddleware):
    """starlette's; to what no page sent (it has no Origin) it only says that its answer might be another one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or find_header(scope, b"origin") is not None:
            await super().__call__(scope, receive, send)
            return

        async def send_varying(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"vary", b"Origin")]
            await send(message)

        await self.app(scope, receive, send_varying)


class Gate:
    """Refuses what calls another server's name, what comes without a key, and what comes too late."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app = app
        self._state = state
        self._hosts = AllowedHosts(state.config.allowed_hosts)
        self._keys = ApiKeys(state.config.api_keys, state.config.admin_api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            self._state.metrics.rejections.labels(refusal.code or "error").inc()
            await refuse_error(scope, refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> HeadwayError | None:
        wrong_host = self._hosts.refusal(scope["headers"])
        if wrong_host is not None:
            return wrong_host
        path = route_path(scope)
        if path in OPEN_PATHS:
            return None
        wrong_key = self._keys.refusal(scope["headers"], for_admin=is_admin(path))
        if wrong_key is not None:
            return wrong_key
        # What its model has answered already came before.
        if self._state.is_draining and path not in DRAIN_PATHS and GIVEN_ANSWER.get() is None:
            return ShuttingDown("the server is shutting down and takes nothing new", retry_after_s=5.0)
        return None


class BodyLimit:
    """Ends a request whose body is too long, before it is held in memory, or does not come."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = find_header(scope, b"content-length") or ""
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > self._max_bytes:
            await refuse_error(scope, self._too_large(declared[:20]))(scope, receive, send)
            return
        has_come: Callable[[], bool] = (scope.get("extensions") or {}).get(BODY_EXTENSION, _is_unknown)
        num_bytes = 0
        is_whole = False

        async def limited_receive() -> Message:
            nonlocal num_bytes, is_whole
            if is_whole:
                return await receive()
            if has_come():
                message = await receive()
            else:
                async with asyncio.timeout(self._timeout_s):
                    message = await receive()
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                is_whole = not message.get("more_body", False)
                if num_bytes > self._max_bytes:
                    raise self._too_large(f"at least {num_bytes}")
            return message

        try:
            await self.app(scope, limited_receive, send)
        except TimeoutError:
            if is_whole:
                raise
            await refuse(scope, _body_timeout(self._timeout_s))(scope, receive, send)

    def _too_large(self, size: str) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body has {size} bytes, at most {self._max_bytes}: send less")


def _is_unknown() -> bool:
    """Where the server does not offer BODY_EXTENSION."""
    return False


def _body_timeout(timeout_s: float) -> Problem:
    detail = ErrorDetail(
        f"the body did not come within {timeout_s:g} s: send it whole", "invalid_request_error", None, "body_timeout"
    )
    return Problem(408, detail, {"connection": "close"})
