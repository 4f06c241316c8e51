"""One HTTP request's generations: its streams opened together, read as one, metered, and closed whatever happens."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from headway._native import TextEvents, TokenTimes
from headway.core.output import PromptOutput, TextDelta, TokenLogprob, Usage
from headway.core.request import GenerateRequest
from headway.core.tools import ToolCall, add_deltas
from headway.observe.clock import Clock
from headway.observe.logs import get_logger
from headway.observe.metrics import RequestMeter
from headway.server.state import ServerState
from headway.service.protocol import GenerateStream

log = get_logger("headway.server")

QUEUED_DELTAS_A_STREAM = 4
"""What is read ahead of a slow client where several streams are merged."""


@dataclass(slots=True)
class Choice:
    """One whole choice."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    call_places: list[int] = field(default_factory=list)
    """Of each call: the characters of text before it."""


class Sink(Protocol):
    """Where a generation's deltas go."""

    def take(self, first: int, deltas: Sequence[TextDelta]) -> bool:
        """Deltas in order, whose choices' indexes begin at `first`. Must not block. Whether it wants more at once."""
        ...

    async def drain(self) -> None:
        """Called after it wanted no more; returns when it does."""
        ...

    def offer_events(self, index: int, times: TokenTimes) -> TextEvents | None:
        """What it would put each further piece of text of choice `index` into, where there is nothing else to tell, now
        that it was told of some; None: it has to take() them."""
        ...


class Generation:
    """Accepted requests of one HTTP request, one a prompt. Choice i of prompt p has the index p * n + i.

    Read it once, by feed() or collect(); close it always (`async with`): what still runs is aborted.
    """

    def __init__(
        self, state: ServerState, num_choices: int, streams: Sequence[GenerateStream], arrived_s: float
    ) -> None:
        self._clock = state.clock
        self._n = num_choices
        self._streams = streams
        self._meters = [RequestMeter(state.metrics, s.model, num_choices, arrived_s) for s in streams]
        self._end_reason = "abort"
        self._is_closed = False

    @classmethod
    async def open(cls, state: ServerState, requests: Sequence[GenerateRequest], arrived_s: float) -> "Generation":
        """Returns once every request is accepted. Raises the first refusal: then none of them runs."""
        streams = await _open_streams(state, requests)
        try:
            return cls(state, requests[0].sampling.n, streams, arrived_s)
        except BaseException:
            await _close_streams(streams)
            raise

    @property
    def model(self) -> str:
        """The model that answers."""
        return self._streams[0].model

    @property
    def prompt_token_ids(self) -> list[list[int]]:
        """Of each prompt."""
        return [list(stream.prompt_token_ids) for stream in self._streams]

    def prompt(self, index: int) -> PromptOutput:
        """What choice `index` goes on from; its log-probabilities are whole once the choice has begun."""
        return self._streams[index // self._n].prompt

    @property
    def num_choices(self) -> int:
        """Of all prompts together."""
        return self._n * len(self._streams)

    @property
    def usage(self) -> Usage:
        """So far, of all prompts; final once all was read."""
        usages = [stream.usage for stream in self._streams]
        if len(usages) == 1:
            return usages[0]
        return Usage(
            sum(usage.num_prompt_tokens for usage in usages),
            sum(usage.num_output_tokens for usage in usages),
            sum(usage.num_cached_tokens for usage in usages),
            sum(usage.num_reasoning_tokens for usage in usages),
            sum(usage.num_forced_tokens for usage in usages),
        )

    async def feed(self, sink: Sink) -> None:
        """Gives all deltas to the sink as they come, those that are there together. Raises the first stream's error."""
        if len(self._streams) == 1:
            only = self._counted(0, sink)
            while await self._feed_one(only):
                await sink.drain()
            return
        counted = [self._counted(place, sink) for place in range(len(self._streams))]
        async with aclosing(self._merged()) as merged:
            async for prompt, delta in merged:
                if not counted[prompt].take((delta,)):
                    await sink.drain()

    async def collect(self) -> list[Choice]:
        """All choices whole, by index."""
        whole = _Whole(self.num_choices)
        await self.feed(whole)
        return whole.choices()

    async def aclose(self) -> None:
        """Aborts what still runs; never raises; may be called again."""
        if self._is_closed:
            return
        await _close_streams(self._streams)
        self._is_closed = True
        now_s = self._clock.now()
        for meter, stream in zip(self._meters, self._streams, strict=True):
            meter.end(stream.usage, self._end_reason, now_s)

    async def __aenter__(self) -> "Generation":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _counted(self, place: int, sink: Sink) -> "_Counted":
        # Without ids of the prompt the model is on another server, which does not tell tokens.
        tells_ids = bool(self._streams[place].prompt_token_ids)
        return _Counted(self._meters[place], self._clock, sink, place * self._n, tells_ids=tells_ids)

    async def _feed_one(self, counted: "_Counted") -> bool:
        try:
            return await self._streams[0].feed(counted.take, counted.offer_events)
        except Exception:
            self._end_reason = "error"
            raise

    async def _merged(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        try:
            async for prompt, delta in _merge(self._streams):
                yield prompt, delta
        except Exception:
            self._end_reason = "error"
            raise


class _Counted:
    """A prompt's way to the sink: its deltas are counted and handed on. One object, since it is called at each token.

    Args:
        first: the index of the prompt's first choice.
        tells_ids: deltas have their tokens; else each counts as one, for times.
    """

    __slots__ = ("_first", "_meter", "_now", "_sink", "_tells_ids")

    def __init__(self, meter: RequestMeter, clock: Clock, sink: Sink, first: int, *, tells_ids: bool) -> None:
        self._meter = meter
        self._now = clock.now
        self._sink = sink
        self._first = first
        self._tells_ids = tells_ids

    def take(self, deltas: Sequence[TextDelta]) -> bool:
        """As Sink.take."""
        meter, now_s = self._meter, self._now()
        for delta in deltas:
            if delta.token_ids:
                meter.on_tokens(delta.choice, len(delta.token_ids), now_s)
            elif not self._tells_ids and (delta.text or delta.reasoning or delta.tool_calls):
                meter.on_tokens(delta.choice, 1, now_s)
            if delta.finish_reason is not None:
                meter.on_finish(delta.choice, delta.finish_reason)
        return self._sink.take(self._first, deltas)

    def offer_events(self) -> TextEvents | None:
        """Of the prompt's first choice: as Sink.offer_events, once it has tokens."""
        times = self._meter.times(0)
        return None if times is None else self._sink.offer_events(self._first, times)


class _Whole:
    """A sink that keeps all."""

    def __init__(self, num_choices: int) -> None:
        self._choices = [Choice() for _ in range(num_choices)]
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._reasonings: list[list[str]] = [[] for _ in range(num_choices)]

    def take(self, first: int, deltas: Sequence[TextDelta]) -> bool:
        for delta in deltas:
            index = first + delta.choice
            choice = self._choices[index]
            self._texts[index].append(delta.text)
            self._reasonings[index].append(delta.reasoning)
            if delta.tool_calls:
                add_deltas(choice.tool_calls, delta.tool_calls)
                num_new = len(choice.tool_calls) - len(choice.call_places)
                choice.call_places += [sum(map(len, self._texts[index]))] * num_new
            choice.token_ids += delta.token_ids
            choice.logprobs += delta.logprobs
            if delta.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
        return True

    async def drain(self) -> None:
        """Never called."""

    def offer_events(self, index: int, times: TokenTimes) -> None:
        """All text is kept."""

    def choices(self) -> list[Choice]:
        """All of them, their texts put together."""
        for choice, parts, reasoning in zip(self._choices, self._texts, self._reasonings, strict=True):
            choice.text, choice.reasoning = "".join(parts), "".join(reasoning)
        return self._choices


async def _open_streams(state: ServerState, requests: Sequence[GenerateRequest]) -> list[GenerateStream]:
    """All of them, or none: those that were accepted are closed when another one is refused."""
    if len(requests) == 1:
        return [await state.service.generate(requests[0])]
    tasks = [asyncio.ensure_future(state.service.generate(request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await _close_streams([stream for stream in results if not isinstance(stream, BaseException)])
        raise


async def _close_streams(streams: Sequence[GenerateStream]) -> None:
    """Closes each, also when closing another one fails. A failure is logged: the answer is past being changed."""
    for stream in streams:
        try:
            await stream.aclose()
        except Exception as error:
            log.error("closing a stream failed", exc_info=error)


async def _merge(streams: Sequence[GenerateStream]) -> AsyncGenerator[tuple[int, TextDelta], None]:
    """(stream's place, delta) in the order of arrival; raises the first error. A full queue holds the streams back."""
    queue: asyncio.Queue[tuple[int, TextDelta | Exception | None]] = asyncio.Queue(
        QUEUED_DELTAS_A_STREAM * len(streams)
    )

    async def pump(place: int, stream: GenerateStream) -> None:
        end: Exception | None = None
        try:
            async for delta in stream:
                await queue.put((place, delta))
        except Exception as error:  # handed to the reader, who raises it
            end = error
        await queue.put((place, end))

    tasks = [asyncio.ensure_future(pump(place, stream)) for place, stream in enumerate(streams)]
    try:
        num_open = len(tasks)
        while num_open:
            place, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield place, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
