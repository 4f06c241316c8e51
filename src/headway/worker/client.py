"""WorkerClient: the parent's side of one worker. Requests in, streams out; loads, refusals, stalls and death.

All on the event loop's thread. A request is *open* from its Submit until the worker has said all that it owes about
it, even if its reader left long before: only then does the model count as unused.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import headway_wire as wire
from headway._native import FastStreams, PlainModel
from headway.core.output import Usage
from headway.errors import (
    HeadwayError,
    InternalError,
    InvalidRequest,
    PayloadTooLarge,
    ShuttingDown,
    WorkerDied,
    WorkerStalled,
    from_wire,
)
from headway.observe.clock import Clock
from headway.worker.channel import Channel, FramedChannel, WorkerEnd
from headway.worker.embed import EmbedBatch, EmbedStream
from headway.worker.embed_prompt import PreparedText
from headway.worker.plain_texts import PlainTexts
from headway.worker.prompt import PreparedRequest, complete_sampling, fit_prompt
from headway.worker.recording import Recording
from headway.worker.room import Room
from headway.worker.stream import RequestStream, StreamLimits
from headway.worker.watch import StallWatch, stall_limit_s

logger = logging.getLogger(__name__)

_STEP_GAUGES = ("num_running", "num_waiting", "num_free_blocks", "num_cached_blocks")
"""What a Step tells too, more often than Stats."""


StreamT = TypeVar("StreamT", bound=RequestStream | EmbedStream)


@dataclass(slots=True)
class _OpenRequest:
    stream: RequestStream | EmbedStream
    on_settled: Callable[[bool], None]
    num_choices: int
    """What the worker owed an end at first."""


class WorkerClient:
    """One worker process and its open requests. attach() the channel first, then load(), then submit()."""

    def __init__(
        self,
        name: str,
        *,
        limits: StreamLimits,
        stall_timeout_s: float,
        clock: Clock,
        max_queued: int | None = None,
        on_lost: Callable[[], None] | None = None,
        on_loading: Callable[[wire.Loading], None] | None = None,
    ) -> None:
        """`max_queued`: choices that may wait at the worker; None: any number. `on_lost` is called when the worker is
        gone, before anybody else hears of it; `on_loading` at each phase."""
        self.name = name
        self.ended: asyncio.Future[HeadwayError] = asyncio.get_running_loop().create_future()
        """Done once the worker is gone: the error that its open requests were given."""
        self._limits = limits
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._on_lost = on_lost
        self._on_loading = on_loading
        self._channel: Channel | None = None
        self._ready: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self._open: dict[str, _OpenRequest] = {}
        self._fast_streams = FastStreams()
        self._num_choices = 0
        """Of all that is open, those that have ended too."""
        self._failure: HeadwayError | None = None
        self._is_stalled = False
        self._is_closing = False
        self._max_model_len: int | None = None
        self._max_queued = max_queued
        self._room: Room | None = None
        self._texts: PlainTexts | None = None
        """Of an encoder whose texts may go to it as they are."""
        self._recording = Recording(self._send, clock)
        self._worker_stats: dict[str, float] = {}
        self._last_step: wire.Step | None = None
        """Since the last Stats."""
        self._stall_watch = StallWatch(clock, self._stall_limit_s, self._has_active, self._end_stalled)
        self._num_output_tokens = 0
        self._num_overshoot = 0
        self._num_aborts = 0
        self._num_internal_errors = 0
        self._num_unreadable_calls = 0

    def attach(self, channel: Channel) -> None:
        """The way to the worker; this client is the channel's receiver."""
        self._channel = channel

    async def load(self, message: wire.Load) -> wire.Ready:
        """Sends Load and waits for its end. Raises what the worker failed with, or WorkerDied."""
        self._send(message)
        return await asyncio.shield(self._ready)

    async def submit(
        self, request: PreparedRequest, on_settled: Callable[[bool], None], *, deadline: float | None = None
    ) -> RequestStream:
        """Sends the request; returns once it is accepted.

        Raises ContextLengthExceeded, QueueFull, WorkerDied, or the refusal.

        `on_settled` is called once, whatever happens, when the worker owes nothing more for the request; its argument
        says whether the worker answered it to the end. At `deadline` of the clock the stream ends with what it has.
        """
        try:
            self._check_alive()
            self.check_room(request.sampling.n)
            request = fit_prompt(request, self._max_model_len)
            sampling = complete_sampling(
                request.sampling,
                num_prompt_tokens=len(request.prompt_token_ids),
                max_model_len=self._max_model_len,
            )
        except HeadwayError:
            on_settled(False)
            raise
        wire_id = self._unused_id(request.request_id)
        stream = self._enter(wire_id, request, on_settled, deadline)
        self._send_submit(wire_id, request, sampling)
        try:
            await stream.accepted
        except asyncio.CancelledError:
            stream.close()
            raise
        return stream

    async def embed(
        self, request_id: str, texts: Sequence[PreparedText], on_settled: Callable[[bool], None], *, priority: int = 0
    ) -> list[bytes]:
        """Sends the texts to an encoder and waits for the vector of each, little-endian float32, in their order.

        The first text that fails fails all; then, and where the caller is cancelled, the others are aborted.
        `on_settled` is called once, when the worker owes nothing more. Raises QueueFull, WorkerDied, or the refusal.
        """
        batch = EmbedBatch(len(texts), on_settled, self._send)
        try:
            self._check_alive()
            self.check_room(len(texts))
            for index, text in enumerate(texts):
                wire_id = self._unused_id(f"{request_id}-{index}")
                stream = self._add(wire_id, EmbedStream(batch, index, wire_id), batch.settle)
                self._send(stream.submit(text, priority))
            return await batch.vectors
        finally:
            batch.close()

    async def profile(self, num_steps: int, timeout_s: float) -> list[wire.ProfiledStep]:
        """The next steps, recorded; fewer where no more were made within `timeout_s`.

        Raises QueueFull while others are recorded, UnsupportedFeature where none can be, WorkerDied.
        """
        self._check_alive()
        return await self._recording.record(num_steps, timeout_s)

    @property
    def max_model_len(self) -> int | None:
        """What the worker told when it was ready."""
        return self._max_model_len

    def shut_down_requests(self) -> None:
        """Ends every open stream with ShuttingDown, after the text that it has."""
        error = ShuttingDown("the server shut down before the answer was whole: try another one, or later")
        for entry in list(self._open.values()):
            entry.stream.fail(error, abort_reason="shutdown")
        if self._texts is not None:
            self._texts.shut_down(error)

    # service/standing_lease.PlainClient

    @property
    def plain(self) -> PlainModel | None:
        """What native code knows an encoder by that makes ids itself; None: it is none, or not ready."""
        return None if self._texts is None else self._texts.model

    def dispatch(self) -> None:
        """Nothing waits on this side."""

    def watch_plain(self, now_s: float) -> None:
        """Has to be called several times a second while requests are on the native way."""
        self._stall_watch.follow(owes=self.num_open > 0)

    async def close(self, grace_s: float = 2.0) -> None:
        """Ends the worker; open streams end with ShuttingDown. Returns when it is gone."""
        self._is_closing = True
        self.shut_down_requests()
        if self._channel is not None and not self.ended.done():
            await self._channel.close(grace_s)

    @property
    def pid(self) -> int | None:
        """Of its process, if it has one of its own."""
        return None if self._channel is None else self._channel.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """Of its process, if it has one of its own."""
        return () if self.pid is None else (self.pid,)

    @property
    def num_open(self) -> int:
        """Requests for which the worker still owes something."""
        return len(self._open) + self._num_plain

    def stats(self) -> dict[str, float]:
        """The worker's last Stats, and the numbers that only this side knows (service/protocol.stats)."""
        streams = [entry.stream for entry in self._open.values()]
        step = self._last_step
        newer = {} if step is None else {name: float(getattr(step, name)) for name in _STEP_GAUGES}
        return {
            **self._worker_stats,
            **newer,
            "client_open_requests": float(self.num_open),
            "client_output_tokens_total": float(
                self._num_output_tokens + sum(stream.usage.num_output_tokens for stream in streams)
            ),
            "client_overshoot_tokens_total": float(
                self._num_overshoot + sum(stream.num_overshoot for stream in streams)
            ),
            "client_aborts_total": float(self._num_aborts),
            "client_internal_errors_total": float(self._num_internal_errors),
            "client_unreadable_calls_total": float(
                self._num_unreadable_calls + sum(stream.num_unreadable_calls for stream in streams)
            ),
        }

    # what the worker says

    def take_plain(self, payload: bytes) -> bytes | None:
        """Deals with the tokens of streams on the fast path, and with answers on the native way; what is left."""
        if self._num_plain and self._texts is not None and self._texts.take(payload):
            self._stall_watch.note_progress()
            return None
        return self._fast_streams.take(payload, self._clock.now())

    def on_messages(self, messages: Sequence[wire.Up]) -> None:
        """Takes all messages of one read, then wakes each touched stream once."""
        self._stall_watch.note_progress()
        touched: dict[str, RequestStream | EmbedStream] = {}
        for message in messages:
            if isinstance(message, wire.Step):
                self._last_step = message
                self._apply(message.events, touched)
            else:
                self._take(message)
        for stream in touched.values():
            stream.wake()

    def on_end(self, end: WorkerEnd) -> None:
        """The worker is gone: every open request gets an error, and load() too if it waits."""
        error = self._make_end_error(end)
        if self._on_lost is not None:
            self._on_lost()
        self._stall_watch.end()
        self._recording.lose_worker(error)
        for wire_id, entry in list(self._open.items()):
            entry.stream.lose_worker(error)
            self._settle(wire_id, entry, has_served=False)
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        self.ended.set_result(error)
        if self._texts is not None:
            self._texts.lose_worker(error)

    def _apply(self, events: Iterable[wire.TokenEvent], touched: dict[str, RequestStream | EmbedStream]) -> None:
        open_requests = self._open
        for event in events:
            request_id = event.request_id
            entry = open_requests.get(request_id)
            if entry is None:
                continue
            stream = entry.stream
            try:
                stream.apply(event)
            except Exception as error:
                # A fault in one request's text must not end the others'; counted in client_internal_errors_total.
                self._num_internal_errors += 1
                logger.exception("%s: an event of request %s could not be applied", self.name, request_id)
                stream.fail(InternalError(f"the text of the answer could not be made: {type(error).__name__}"))
            touched[request_id] = stream
            if stream.num_unsettled <= 0:
                self._settle(request_id, entry, has_served=True)

    def _take(self, message: wire.Up) -> None:
        match message:
            case wire.Accepted():
                entry = self._open.get(message.request_id)
                if entry is not None:
                    entry.stream.accept()
            case wire.Refused():
                self._take_refusal(message)
            case wire.Embedding():
                self._take_embedding(message)
            case wire.PromptLogprobs():
                self._take_prompt_logprobs(message)
            case wire.Loading():
                if self._on_loading is not None:
                    self._on_loading(message)
            case wire.Ready():
                self._take_ready(message)
            case wire.Failed():
                self._failure = from_wire(message.error)
                if not self._ready.done():
                    self._ready.set_exception(self._failure)
                    self._ready.exception()
            case wire.ProfiledStep() | wire.ProfileEnd():
                self._recording.take(message)
            case wire.Stats():
                self._worker_stats, self._last_step = message.values, None
            case _:
                logger.warning("%s: an answer of type %s that nobody asked for", self.name, type(message).__name__)

    def _take_ready(self, message: wire.Ready) -> None:
        limit = message.info.get("max_model_len")
        self._max_model_len = limit if isinstance(limit, int) else None
        max_num_seqs = message.info.get("max_num_seqs")
        if self._max_queued is not None and isinstance(max_num_seqs, int):
            self._room = Room(max_num_seqs, self._max_queued)
        if message.info.get("takes_texts") is True and self._channel is not None:
            frames = self._channel.frames if isinstance(self._channel, FramedChannel) else None
            self._texts = PlainTexts(frames, self._send, self._max_queued)
        if not self._ready.done():
            self._ready.set_result(message)

    def _take_refusal(self, message: wire.Refused) -> None:
        entry = self._open.get(message.request_id)
        if entry is None:
            return
        entry.stream.lose_worker(from_wire(message.error))
        self._settle(message.request_id, entry, has_served=True)

    def _take_prompt_logprobs(self, message: wire.PromptLogprobs) -> None:
        entry = self._open.get(message.request_id)
        if entry is not None and isinstance(entry.stream, RequestStream):
            try:
                entry.stream.apply_prompt(message)
            except InternalError as error:
                self._num_internal_errors += 1
                entry.stream.fail(error)

    def _take_embedding(self, message: wire.Embedding) -> None:
        entry = self._open.get(message.request_id)
        if entry is not None and isinstance(entry.stream, EmbedStream):
            entry.stream.embed(message.data)
            self._settle(message.request_id, entry, has_served=True)

    # within

    def _enter(
        self, wire_id: str, request: PreparedRequest, on_settled: Callable[[bool], None], deadline: float | None
    ) -> RequestStream:
        stream = RequestStream(
            request,
            wire_id=wire_id,
            send=self._send,
            limits=self._limits,
            clock=self._clock,
            deadline=deadline,
            fast_streams=self._fast_streams,
        )
        return self._add(wire_id, stream, on_settled)

    def _add(self, wire_id: str, stream: StreamT, on_settled: Callable[[bool], None]) -> StreamT:
        if not self._has_active():
            self._stall_watch.note_progress()
        self._open[wire_id] = _OpenRequest(stream, on_settled, stream.num_unsettled)
        self._note_choices(stream.num_unsettled)
        self._stall_watch.begin()
        return stream

    def _send_submit(self, wire_id: str, request: PreparedRequest, sampling: wire.Sampling) -> None:
        submit = wire.Submit(
            request_id=wire_id,
            prompt_token_ids=list(request.prompt_token_ids),
            sampling=sampling,
            priority=request.priority,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
        )
        try:
            self._send(submit)
        except (OverflowError, TypeError, ValueError) as fault:
            is_large = isinstance(fault, wire.FrameTooLarge | OverflowError)
            kind = PayloadTooLarge if is_large else InvalidRequest
            error = kind(f"the request can not be sent to the model's process: {fault}")
            entry = self._open[wire_id]
            entry.stream.lose_worker(error)
            self._settle(wire_id, entry, has_served=False)
            raise error from fault

    def _unused_id(self, request_id: str) -> str:
        """Two callers may choose the same id; the worker must not see it twice."""
        wire_id, number = request_id, 1
        while wire_id in self._open:
            number += 1
            wire_id = f"{request_id}#{number}"
        return wire_id

    def _settle(self, wire_id: str, entry: _OpenRequest, *, has_served: bool) -> None:
        del self._open[wire_id]
        self._note_choices(-entry.num_choices)
        self._num_output_tokens += entry.stream.usage.num_output_tokens
        self._num_overshoot += entry.stream.num_overshoot
        self._num_unreadable_calls += entry.stream.num_unreadable_calls
        if not self.num_open:
            self._stall_watch.end()
        entry.on_settled(has_served)

    @property
    def _num_plain(self) -> int:
        """Requests on the native way."""
        return 0 if self._texts is None else self._texts.num_open

    def _note_choices(self, num_more: int) -> None:
        self._num_choices += num_more
        if self._texts is not None:
            self._texts.note_others(num_more)

    def _send(self, message: wire.Down) -> None:
        if isinstance(message, wire.Abort) and message.finish_reason == "abort":
            self._num_aborts += 1
        elif isinstance(message, wire.Hold) and not message.is_held and not self._has_active(but_one=True):
            self._stall_watch.note_progress()
        if self._channel is not None:
            self._channel.send(message)

    def check_room(self, num_choices: int) -> None:
        """Raises QueueFull if so many more would have to wait beside too many others."""
        room = self._room
        if room is None or self._num_choices + self._num_plain + num_choices <= room.max_queued:
            return  # all of them might wait: nothing to count
        num_open = sum(max(0, entry.stream.num_unsettled) for entry in self._open.values())
        room.check(num_open + self._num_plain, num_choices, self._last_step)

    def _check_alive(self) -> None:
        if self.ended.done():
            raise self.ended.result()

    def _has_active(self, *, but_one: bool = False) -> bool:
        """Whether the worker has something to do; a held request is nothing, until it is aborted."""
        num_active = self._num_plain
        if num_active > but_one:
            return True
        for entry in self._open.values():
            num_active += not entry.stream.is_held or entry.stream.is_ended
            if num_active > but_one:
                return True
        return False

    def _stall_limit_s(self) -> float:
        streams = [entry.stream for entry in self._open.values()]
        usages = [stream.usage for stream in streams for _ in range(stream.num_unsettled)]
        # How long the texts on the native way are is told with their vectors.
        usages += [Usage(self._max_model_len or 0, 0)] * self._num_plain
        return stall_limit_s(self._stall_timeout_s, self._worker_stats, usages)

    def _end_stalled(self, limit_s: float) -> None:
        if self._channel is not None:
            self._is_stalled = True
            self._channel.kill(f"made no progress for {limit_s:g} s and was killed")

    def _make_end_error(self, end: WorkerEnd) -> HeadwayError:
        if not self._is_closing:
            logger.error("%s: the worker %s. Its last words: %s", self.name, end.how, end.last_words or "none")
        if self._is_stalled:
            return WorkerStalled(f"the process of model {self.name} {end.how}; it is started again")
        if self._failure is not None:
            return WorkerDied(f"the process of model {self.name} failed: {self._failure.message}; it is started again")
        return WorkerDied(f"the process of model {self.name} {end.how}; it is started again")
