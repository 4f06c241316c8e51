"""OpenAIClient: a language model, or an encoder, behind any server with OpenAI's API (worker/resident.ResidentClient).

A request's way: body -> Upstream.open -> a pump task: events -> ChunkReader -> RemoteStream -> the door. The answer is
always streamed, so that a caller who leaves ends the request there too: its connection is closed. Exactly one word ends
a stream: all choices have their finish_reason, or an error.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import msgspec

import headway_wire as wire
from headway.config import ModelConfig
from headway.core.embedding import Embedded, EmbedRequest
from headway.core.request import GenerateRequest, TextPrompt
from headway.errors import (
    DeadlineExceeded,
    HeadwayError,
    ShuttingDown,
    UpstreamFailed,
    UpstreamTimeout,
)
from headway.service.remote.base import OnSettled
from headway.service.remote.openai_body import generate_body
from headway.service.remote.openai_chunks import ChunkReader
from headway.service.remote.openai_models import choose_model, list_models
from headway.service.remote.openai_vectors import embed_body, read_vectors
from headway.service.remote.options import OpenAIOptions, read_api_key, read_options, server_url
from headway.service.remote.places import Places
from headway.service.remote.stream import RemoteStream
from headway.service.remote.upstream import Opened, Upstream, read_bounded
from headway.worker.resident import ClientSettings

_DRAIN_S = 1.0
"""How long the body's end may come behind the last event; a connection whose answer is not read whole is not used
again."""
_MAX_EVENT_BYTES = 16 * 1024 * 1024
_JSON = {"content-type": "application/json"}


class OpenAIClient:
    """One model of one other server. Make it on the running loop."""

    def __init__(
        self,
        name: str,
        model: ModelConfig,
        settings: ClientSettings,
        *,
        options: OpenAIOptions | None = None,
        url: httpx2.URL | None = None,
        api_key: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises InvalidConfig for options that can not be used.

        `options`, `url`, `api_key`: of a server that the caller knows better than the model's own options; `transport`:
        for tests.
        """
        self.name = name
        self.ended: asyncio.Future[HeadwayError] = asyncio.get_running_loop().create_future()
        """Done once it was closed: another server that fails is asked again, it is not given up."""
        self._settings = settings
        self._options = options or read_options(model, name, OpenAIOptions)
        self._upstream = Upstream(
            name,
            url or server_url(self._options.url, model.source, name),
            self._options,
            api_key=api_key or read_api_key(self._options.api_key_env, name),
            max_retries=model.infer.max_retries,
            clock=settings.clock,
            transport=transport,
        )
        self._places = Places(name, model.infer.concurrency, settings.max_queued)
        self._model = self._options.model or ""
        self._pumps: dict[asyncio.Task[None], RemoteStream] = {}
        self._num_output_tokens = 0
        self._num_aborts = 0

    async def load(self, message: wire.Load) -> wire.Ready:
        """Looks whether the server answers and has the model."""
        self._settings.on_loading(wire.Loading(phase="read"))
        options = self._options
        cards = await list_models(self._upstream, options.first_token_timeout_s, "first_token_timeout_s")
        card = choose_model(self._upstream.title, cards, options.model)
        self._model = card.id
        info: dict[str, Any] = {"task": "generate", "upstream": self._upstream.title, "upstream_model": card.id}
        if card.max_model_len is not None:
            info["max_model_len"] = card.max_model_len
        return wire.Ready(info=info)

    async def generate(
        self, request: GenerateRequest, on_settled: OnSettled, *, deadline: float | None = None
    ) -> RemoteStream:
        """See base.RemoteTextClient."""
        begin_s = asyncio.get_running_loop().time()
        try:
            route, body = generate_body(request, self._model, self._options)
            leave, opened = await self._begin(route, body, deadline)
        except BaseException:
            on_settled(False)
            raise
        reader = ChunkReader(self._upstream.title, request.sampling.n, joins_reasoning=not request.splits_reasoning)
        stream = RemoteStream(
            request.model,
            request.sampling.n,
            limits=self._settings.limits,
            clock=self._settings.clock,
            deadline=deadline,
            usage=lambda: reader.usage,
            on_given_up=lambda: self._give_up(task),
            prompt_text=request.prompt.text if isinstance(request.prompt, TextPrompt) else "",
        )

        def settle(has_served: bool) -> None:
            self._num_output_tokens += reader.usage.num_output_tokens
            leave()
            on_settled(has_served)

        task = asyncio.create_task(self._pump(opened, reader, stream, begin_s, settle))
        self._pumps[task] = stream
        task.add_done_callback(lambda done: self._pumps.pop(done, None))
        return stream

    async def embed(self, request: EmbedRequest, on_settled: OnSettled) -> Embedded:
        """See base.RemoteTextClient."""
        has_served = False
        try:
            leave = await self._places.enter()
            try:
                _, answer = await self._upstream.call(
                    "POST",
                    "embeddings",
                    body=msgspec.json.encode(embed_body(request, self._model, self._options)),
                    headers=_JSON,
                    timeout_s=self._options.first_token_timeout_s,
                    timeout_name="first_token_timeout_s",
                )
            finally:
                leave()
            embedded = read_vectors(answer, len(request.inputs), self._upstream.title)
            has_served = True
            return embedded
        finally:
            on_settled(has_served)

    def stats(self) -> dict[str, float]:
        """Its open requests, and the connection's health."""
        return {
            "client_open_requests": float(len(self._pumps)),
            "client_output_tokens_total": float(self._num_output_tokens),
            "client_aborts_total": float(self._num_aborts),
            **self._upstream.stats(),
        }

    def shut_down_requests(self) -> None:
        """Ends every open stream with ShuttingDown, after the text that it has."""
        self.fail_requests(ShuttingDown("the server shut down before the answer was whole: try another one, or later"))

    def fail_requests(self, error: HeadwayError) -> None:
        """Ends every open stream with `error`, after the text that it has."""
        for stream in list(self._pumps.values()):
            stream.fail(error)

    async def close(self, grace_s: float = 2.0) -> None:
        """Closes every connection."""
        self.shut_down_requests()
        for task in list(self._pumps):
            _cancel_begun(task)
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._upstream.aclose()
        if not self.ended.done():
            self.ended.set_result(ShuttingDown(f"the connection of model {self.name} was closed"))

    @property
    def pids(self) -> tuple[int, ...]:
        """None: it runs elsewhere."""
        return ()

    # within

    async def _begin(
        self, route: str, body: dict[str, Any], deadline: float | None
    ) -> tuple[Callable[[], None], Opened]:
        """A place and the answer's head. Raises DeadlineExceeded where the request's own time-out is over before."""
        left_s = None if deadline is None else max(0.0, deadline - self._settings.clock.now())
        try:
            async with asyncio.timeout(left_s):
                leave = await self._places.enter()
                try:
                    return leave, await self._open_stream(route, body)
                except BaseException:
                    leave()
                    raise
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self._upstream.title} had not begun to answer when the request's timeout_s was over: give it more"
            ) from None

    async def _open_stream(self, route: str, body: dict[str, Any]) -> Opened:
        return await self._upstream.open(
            "POST",
            route,
            body=msgspec.json.encode(body),
            headers={**_JSON, "accept": "text/event-stream"},
            timeout_s=self._options.first_token_timeout_s,
            timeout_name="first_token_timeout_s",
        )

    def _give_up(self, task: "asyncio.Task[None]") -> None:
        self._num_aborts += 1
        _cancel_begun(task)

    async def _pump(
        self,
        opened: Opened,
        reader: ChunkReader,
        stream: RemoteStream,
        begin_s: float,
        settle: Callable[[bool], None],
    ) -> None:
        """Reads the answer to its end. Raises nothing but a cancellation."""
        error: HeadwayError | None = None
        try:
            async with self._upstream.reading(opened):
                await self._read(opened, reader, stream, begin_s)
        except HeadwayError as fault:
            error = fault
        finally:
            # What fails behind the last choice's end takes nothing from the answer: the counts alone are missing.
            settle(reader.is_ended)
            stream.end(None if reader.is_ended else error or self._broken())

    async def _read(self, opened: Opened, reader: ChunkReader, stream: RemoteStream, begin_s: float) -> None:
        if not opened.response.headers.get("content-type", "").startswith("text/event-stream"):
            # It does not stream: the answer is one chunk with messages in place of deltas.
            body = await read_bounded(opened.response, _MAX_EVENT_BYTES, self._upstream.title)
            await stream.put(reader.read(body))
            return
        events = aiter(httpx2.EventSource(opened.response, max_event_size=_MAX_EVENT_BYTES))
        limit_s, name = self._options.first_token_timeout_s, "first_token_timeout_s"
        due_s = begin_s + limit_s
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            while True:
                try:
                    async with asyncio.timeout_at(due_s):
                        event = await anext(events, None)
                except TimeoutError:
                    self._upstream.report_failure(opened)
                    raise UpstreamTimeout(
                        f"{self._upstream.title} sent nothing for {limit_s:g} s (options.{name}): it was given up"
                    ) from None
                if event is None:
                    break
                if event.data == "[DONE]":
                    if reader.is_ended:
                        stream.end()
                    await _drain(events)
                    break
                await stream.put(reader.read(event.data))
                limit_s, name = self._options.between_tokens_timeout_s, "between_tokens_timeout_s"
                due_s = asyncio.get_running_loop().time() + limit_s
        if not reader.is_ended:
            self._upstream.report_failure(opened)

    def _broken(self) -> HeadwayError:
        return UpstreamFailed(f"{self._upstream.title} ended its answer before it was whole")


def _cancel_begun(task: "asyncio.Task[None]") -> None:
    """Behind its first turn: one that never began would settle nothing. Once: the second would break off its end."""
    asyncio.get_running_loop().call_soon(lambda: task.cancelling() or task.cancel())


async def _drain(events: AsyncIterator[object]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in events:
                continue
