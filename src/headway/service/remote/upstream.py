"""Upstream: the way to one other server by HTTP. Every call goes through its circuit breaker, is made again where that
may help and nothing was answered yet, and fails with an error that names the server.

    open() -> a response whose head is there, its body unread     call() -> a whole body, bounded

Redirections are not followed: the operator gave this address and no other.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2

from headway.errors import UpstreamError, UpstreamFailed, UpstreamTimeout
from headway.observe.clock import Clock
from headway.service.remote.breaker import STATUS_NUMBERS, BreakerConfig, CircuitBreaker
from headway.service.remote.options import ServerOptions
from headway.service.remote.refusal import MAX_BODY_BYTES, Refusal, refusal_of
from headway.service.remote.retries import retry_delay_s

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Of a whole answer, as of a frame between processes."""
_KEEP_ALIVE_S = 3.0
"""Shorter than servers keep idle connections (uvicorn: 5 s), so that none is used as the other side closes it."""
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True, slots=True)
class Opened:
    """An answer that has begun, of a status below 300. Whoever got it closes it: `await response.aclose()`."""

    response: httpx2.Response
    period: int
    """For report_failure()."""


class Upstream:
    """One server, and a model's connections to it."""

    def __init__(
        self,
        name: str,
        url: httpx2.URL,
        options: ServerOptions,
        *,
        api_key: str | None,
        max_retries: int,
        clock: Clock,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`name`: of the model, for the errors' words. `transport`, `sleep`: for tests."""
        self.title = f"the server of model {name} ({url.host}{'' if url.port is None else f':{url.port}'})"
        self.num_retries = self.num_requests = self.num_failures = 0
        self._url = str(url)
        self._max_retries = max_retries
        self._connect_timeout_s = options.connect_timeout_s
        self._sleep = sleep
        config = BreakerConfig(options.breaker_failures, options.breaker_window_s, options.breaker_open_s)
        self._breaker = CircuitBreaker(self.title, config, clock)
        self._client = httpx2.AsyncClient(
            headers={"user-agent": "headway", **({"authorization": f"Bearer {api_key}"} if api_key else {})},
            timeout=httpx2.Timeout(None, connect=options.connect_timeout_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=_KEEP_ALIVE_S),
            follow_redirects=False,
            # A proxy from the environment must not be asked for this machine's own addresses.
            trust_env=url.host not in _LOOPBACK,
            transport=transport,
        )

    async def open(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        timeout_name: str,
    ) -> Opened:
        """Returns with the answer's head. Raises an UpstreamError, or the caller's error that the server found.

        Args:
            timeout_s: until that head, all tries together.
            timeout_name: the option that says so.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        late = Refusal(
            UpstreamTimeout(f"{self.title} did not answer within {timeout_s:g} s (options.{timeout_name}): raise it"),
            can_retry=False,
            is_servers_fault=True,
        )
        num_failed = 0
        while True:
            outcome = await self._try(self._request(method, path, body, headers), deadline, late)
            if isinstance(outcome, Opened):
                return outcome
            num_failed += 1
            wished = outcome.error.retry_after_s if isinstance(outcome.error, UpstreamError) else None
            delay_s = retry_delay_s(num_failed, random.random(), wished)
            is_last = not outcome.can_retry or num_failed > self._max_retries
            if is_last or delay_s is None or loop.time() + delay_s >= deadline:
                raise outcome.error
            self.num_retries += 1
            await self._sleep(delay_s)

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        timeout_name: str,
    ) -> tuple[httpx2.Headers, bytes]:
        """As open(), and the answer's body, within the same time."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        opened = await self.open(
            method, path, body=body, headers=headers, timeout_s=timeout_s, timeout_name=timeout_name
        )
        try:
            async with self.reading(opened), asyncio.timeout_at(begin_s + timeout_s):
                return opened.response.headers, await read_bounded(opened.response, MAX_ANSWER_BYTES, self.title)
        except TimeoutError:
            self.report_failure(opened)
            raise UpstreamTimeout(
                f"{self.title} did not end its answer within {timeout_s:g} s (options.{timeout_name})"
            ) from None

    @asynccontextmanager
    async def reading(self, opened: Opened) -> AsyncIterator[None]:
        """Around what reads the body: what breaks is told as an UpstreamFailed; the answer is closed at the end."""
        try:
            yield
        except httpx2.HTTPError as error:
            self.report_failure(opened)
            raise UpstreamFailed(f"{self.title} broke off in the middle of its answer: {_words(error)}") from error
        finally:
            await opened.response.aclose()

    def report_failure(self, opened: Opened) -> None:
        """An answer that had begun well did not end so."""
        self.num_failures += 1
        self._breaker.leave(opened.period, "failure")

    def stats(self) -> dict[str, float]:
        """Of the calls and the breaker."""
        state = self._breaker.state
        return {
            "upstream_state": STATUS_NUMBERS[state.status],
            "upstream_openings_total": float(state.num_openings),
            "upstream_requests_total": float(self.num_requests),
            "upstream_failures_total": float(self.num_failures),
            "upstream_retries_total": float(self.num_retries),
        }

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    # within

    def _request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> httpx2.Request:
        return self._client.build_request(method, f"{self._url}/{path}", content=body, headers=dict(headers or {}))

    async def _try(self, request: httpx2.Request, deadline: float, late: Refusal) -> Opened | Refusal:
        """Once, told to the breaker. Raises UpstreamUnavailable where that does not let it go."""
        period = self._breaker.enter()
        self.num_requests += 1
        try:
            async with asyncio.timeout_at(deadline):
                outcome = await self._ask(request, period)
        except TimeoutError:
            outcome = late
        except BaseException:
            self._breaker.leave(period, "abandoned")
            raise
        is_failure = isinstance(outcome, Refusal) and outcome.is_servers_fault
        self.num_failures += is_failure
        self._breaker.leave(period, "failure" if is_failure else "success")
        return outcome

    async def _ask(self, request: httpx2.Request, period: int) -> Opened | Refusal:
        try:
            response = await self._client.send(request, stream=True)
        except httpx2.HTTPError as error:
            reason = UpstreamFailed(f"{self.title} was not reached: {_words(error)}")
            return Refusal(reason, can_retry=True, is_servers_fault=True)
        if response.status_code < 300:
            return Opened(response, period)
        try:
            words = await _read_head(response)
        finally:
            await response.aclose()
        return refusal_of(self.title, response.status_code, response.headers, words)


async def read_bounded(response: httpx2.Response, limit: int, title: str) -> bytes:
    """The whole body. Raises UpstreamFailed where it is longer than `limit`, and httpx2's errors."""
    parts: list[bytes] = []
    num_bytes = 0
    async for part in response.aiter_bytes():
        num_bytes += len(part)
        if num_bytes > limit:
            raise UpstreamFailed(f"{title} answers more than {limit} bytes: ask for less")
        parts.append(part)
    return b"".join(parts)


async def _read_head(response: httpx2.Response) -> bytes:
    """The beginning of an error's body; what breaks while it is read leaves what there is."""
    words = b""
    try:
        async for part in response.aiter_bytes():
            words += part
            if len(words) >= MAX_BODY_BYTES:
                break
    except httpx2.HTTPError:
        return words
    return words[:MAX_BODY_BYTES]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
