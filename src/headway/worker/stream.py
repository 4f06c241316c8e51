"""RequestStream: an accepted request as its reader sees it (service/protocol.GenerateStream).

The client applies the worker's events; the reader takes deltas. A reader that wants more is given them in the client's
own call, so that a step wakes no task of its streams; and where all text goes into the same event, plain tokens take
the fast path (worker/fast_path), past all of this. For a reader that does not want more there is a queue that is
watched: who lets too much lie gets its request held (not scheduled), and after a while aborted. All on the event loop's
thread.

    worker events -> apply() -> one ChoiceAssembler a choice -> wake() -> feed()'s taker
                                  | stop string: Abort(choice)     `----> queue -> feed(), __anext__() -> reader
                                                                          | full: Hold(true)  | half empty: Hold(false)
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import headway_wire as wire
from headway._native import FastStreams, TextEvents
from headway.core.output import PromptOutput, TextDelta, Usage
from headway.errors import CallerError, HeadwayError, InternalError, from_wire
from headway.observe.clock import Clock, Timer
from headway.worker.assembler import ChoiceAssembler, PromptAssembler
from headway.worker.fast_path import FastPath
from headway.worker.prompt import PreparedRequest

_TOKEN_BYTES = 8
_LOGPROB_BYTES = 32
_CALL_BYTES = 64
MAX_QUEUED_DELTAS_A_TAKE = 32
"""What a reader who comes late is given at once: few enough for one write."""

Take = Callable[[Sequence[TextDelta]], bool]
"""Is given deltas in order; says whether it wants more."""
OfferEvents = Callable[[], TextEvents | None]
"""Where a taker would put each piece of plain text that comes now; None: take() has to see them."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How much may lie unread, and for how long (config.ServerConfig)."""

    max_unsent_bytes: int
    slow_reader_timeout_s: float


class RequestStream:
    """One reader's side of one request. Iterate it, and close it."""

    __slots__ = (
        "_choices",
        "_clock",
        "_error",
        "_fast_path",
        "_fresh",
        "_is_closed",
        "_limits",
        "_loop",
        "_num_cached_tokens",
        "_num_live",
        "_offer_events",
        "_prompt",
        "_queue",
        "_send",
        "_slow_timer",
        "_take",
        "_timeout_timer",
        "_unread_bytes",
        "_waiter",
        "_wire_id",
        "accepted",
        "is_held",
        "model",
        "num_unsettled",
        "prompt_token_ids",
    )

    def __init__(
        self,
        request: PreparedRequest,
        *,
        wire_id: str,
        send: Callable[[wire.Down], None],
        limits: StreamLimits,
        clock: Clock,
        deadline: float | None = None,
        fast_streams: FastStreams | None = None,
    ) -> None:
        """`fast_streams`: the worker's; None: there is no fast path."""
        self.model = request.model
        self.prompt_token_ids = request.prompt_token_ids
        self.is_held = False
        self.num_unsettled = request.sampling.n
        """Choices whose terminal event the worker still owes."""
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the worker accepted it, or once it ended before that; an error if it was refused."""
        self._wire_id = wire_id
        self._send = send
        self._limits = limits
        self._clock = clock
        self._choices = [
            ChoiceAssembler(request.tokenizer, request.sampling, i, request.output) for i in range(request.sampling.n)
        ]
        self._prompt = PromptAssembler(
            request.tokenizer, request.sampling, request.prompt_token_ids, request.prompt_text
        )
        self._fast_path: FastPath | None = None
        if fast_streams is not None and len(self._choices) == 1 and self._choices[0].is_plain:
            self._fast_path = FastPath(fast_streams, wire_id, self._choices[0], request.tokenizer, request.sampling)
        self._num_cached_tokens: int | None = None
        self._num_live = len(self._choices)
        self._fresh: list[TextDelta] = []
        """Since the last wake()."""
        self._queue: deque[tuple[TextDelta, int]] = deque()
        """What nobody was there for, with what each weighs."""
        self._unread_bytes = 0
        self._error: HeadwayError | None = None
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        """Where the reader sleeps; its result is whether it wants more."""
        self._take: Take | None = None
        """The sleeping reader's, if it has one; the queue is empty then."""
        self._offer_events: OfferEvents | None = None
        """Likewise."""
        self._slow_timer: Timer | None = None
        self._timeout_timer: Timer | None = None
        if deadline is not None:
            self._timeout_timer = clock.call_at(deadline, self._on_timeout)

    # the reader's side

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> TextDelta:
        while not self._queue:
            if self._is_read():
                raise StopAsyncIteration
            await self._sleep(None)
        return self._pop(1)[0]

    async def feed(self, take: Take, offer_events: OfferEvents | None = None) -> bool:
        """Gives the deltas to `take`: those that are there, then each as it comes, while the caller sleeps.

        `offer_events` is asked after each take() that wants more: while it offers some, plain text goes there instead.

        True: `take` wants no more for now; call again when it does. False: that was the end. Raises the error, and what
        `take` raised.
        """
        wants_more = True
        while wants_more:
            if self._queue:
                wants_more = take(self._pop(MAX_QUEUED_DELTAS_A_TAKE))
            elif self._is_read():
                return False
            else:
                wants_more = await self._sleep(take, offer_events)
        return True

    async def __aenter__(self) -> "RequestStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the stream; what still runs is aborted, once. Does not wait for the worker."""
        self.close()

    def close(self, reason: str = "disconnect") -> None:
        """aclose, with the abort's reason."""
        if self._is_closed:
            return
        self._leave_fast_path()
        self._is_closed = True
        if not self.is_ended:
            self._abort_rest(reason)
        self._fresh.clear()
        self._queue.clear()
        self._unread_bytes = 0
        self.wake()

    @property
    def usage(self) -> Usage:
        """So far; final once the iterator has ended."""
        num_tokens = num_reasoning = num_forced = 0
        for choice in self._choices:
            num_tokens += choice.num_tokens
            num_reasoning += choice.num_reasoning
            num_forced += choice.num_forced
        if self._fast_path is not None:
            num_tokens += self._fast_path.num_tokens
            num_forced += self._fast_path.num_forced
        num_cached_tokens = self._num_cached_tokens or 0
        return Usage(len(self.prompt_token_ids), num_tokens, num_cached_tokens, num_reasoning, num_forced)

    # the client's side

    @property
    def is_ended(self) -> bool:
        """Whether every choice has ended for the reader."""
        return not self._num_live

    @property
    def num_overshoot(self) -> int:
        """Tokens that were computed and do not count."""
        return sum(choice.num_overshoot for choice in self._choices)

    @property
    def num_unreadable_calls(self) -> int:
        """Tool calls that could not be read, and became text."""
        return sum(choice.num_unreadable for choice in self._choices)

    def accept(self) -> None:
        """The worker has it."""
        if not self.accepted.done():
            self.accepted.set_result(None)

    @property
    def prompt(self) -> PromptOutput:
        """What there is of the prompt."""
        return self._prompt.output()

    def apply_prompt(self, message: wire.PromptLogprobs) -> None:
        """Takes log-probabilities of the prompt; they come before the first token."""
        if not self.is_ended:
            self._prompt.push(message)

    def apply(self, event: wire.TokenEvent) -> None:
        """Takes an event of the worker. wake() must follow, once for all events of a message."""
        self._leave_fast_path()
        place, choices, finish_reason = event.choice, self._choices, event.finish_reason
        if not 0 <= place < len(choices):
            self.fail(InternalError(f"the worker spoke of choice {place} of {len(choices)}"))
            return
        if finish_reason is not None:
            self.num_unsettled -= 1
        if self._num_cached_tokens is None and place == 0:
            self._num_cached_tokens = event.num_cached_tokens
        if finish_reason == "error":
            self._apply_error(event)
            return
        delta = choices[place].push(event)
        if delta is None:
            return
        self._fresh.append(delta)
        if delta.finish_reason is not None:
            self._num_live -= 1
            if finish_reason is None:
                self._send(wire.Abort(request_id=self._wire_id, choice=place, finish_reason="stop"))
            self._stop_timers_if_ended()

    def wake(self) -> None:
        """Gives what was applied to the reader who sleeps with a taker, and wakes any reader who has to act.

        1. A reader with a taker: it takes, and sleeps on, plain text passing it by from now on where it can, unless it
           wants no more or nothing more will come.
        2. A reader without a taker: to the queue, and it is woken.
        3. Nobody sleeps: to the queue.
        """
        fresh, waiter, take = self._fresh, self._waiter, self._take
        self._fresh = []
        if waiter is None or waiter.done():  # 3.
            self._enqueue(fresh)
        elif take is None:  # 2.
            self._enqueue(fresh)
            waiter.set_result(True)
        else:  # 1.
            try:
                wants_more = not fresh or take(fresh)
            except Exception as error:  # the reader's own fault: it hears of it where it sleeps
                waiter.set_exception(error)
                return
            if not wants_more or not self._num_live or self._error is not None or self._is_closed:
                waiter.set_result(wants_more)
            else:
                self._enter_fast_path()

    def fail(self, error: HeadwayError, *, abort_reason: str = "error") -> None:
        """Ends the stream with an error, after what lies unread; what still runs is aborted. Ended: nothing."""
        if self._error is not None or self._is_closed or self.is_ended:
            return
        self._leave_fast_path()
        self._error = error
        if not self.accepted.done():
            self.accepted.set_exception(error)
            # Whoever waited may be gone: an error that nobody took is no news.
            self.accepted.exception()
        self._abort_rest(abort_reason)
        self.wake()

    def end(self, stop_reason: str) -> None:
        """Ends every choice that still runs with finish_reason "abort" and the text that it has."""
        if self._error is not None or self._is_closed or self.is_ended:
            return
        self._leave_fast_path()
        for choice in self._choices:
            delta = choice.end("abort", stop_reason)
            if delta is not None:
                self._fresh.append(delta)
        self._num_live = 0
        self._send(wire.Abort(request_id=self._wire_id, reason=stop_reason))
        self._stop_timers_if_ended()
        self.accept()
        self.wake()

    def lose_worker(self, error: HeadwayError) -> None:
        """The worker is gone: nothing is owed any more, and an open stream ends with `error`."""
        self._send = _send_nowhere
        self.num_unsettled = 0
        self.fail(error)

    # within

    def _is_read(self) -> bool:
        """Whether nothing comes any more, the queue being empty. Raises the error, once."""
        if self._error is not None and not self._is_closed:
            self._is_closed = True
            raise self._error
        return self._is_closed or not self._num_live

    def _pop(self, max_deltas: int) -> list[TextDelta]:
        queue = self._queue
        deltas: list[TextDelta] = []
        while queue and len(deltas) < max_deltas:
            delta, weight = queue.popleft()
            deltas.append(delta)
            self._unread_bytes -= weight
        if self.is_held:
            self._on_read_while_held()
        return deltas

    async def _sleep(self, take: Take | None, offer_events: OfferEvents | None = None) -> bool:
        self._waiter, self._take, self._offer_events = self._loop.create_future(), take, offer_events
        self._enter_fast_path()
        try:
            return await self._waiter
        finally:
            self._leave_fast_path()
            self._take = self._offer_events = None

    def _enter_fast_path(self) -> None:
        """If there is one, and the sleeping reader offers where it leads to."""
        if self._fast_path is not None and self._offer_events is not None:
            events = self._offer_events()
            if events is not None:
                self._fast_path.enter(events)

    def _leave_fast_path(self) -> None:
        if self._fast_path is not None:
            self._fast_path.leave()

    def _enqueue(self, deltas: Sequence[TextDelta]) -> None:
        """Holds the request if too much lies unread."""
        for delta in deltas:
            weight = _weight(delta)
            self._queue.append((delta, weight))
            self._unread_bytes += weight
        is_over = self._unread_bytes > self._limits.max_unsent_bytes
        if is_over and not self.is_held and not self.is_ended:
            self.is_held = True
            self._send(wire.Hold(request_id=self._wire_id, is_held=True))
            self._start_slow_timer()

    def _apply_error(self, event: wire.TokenEvent) -> None:
        choice = self._choices[event.choice]
        was_ended = choice.is_ended
        choice.drop()
        if was_ended:
            return
        self._num_live -= 1
        error = from_wire(event.error) if event.error else InternalError("the worker gave no reason")
        self._error = self._error or error
        if not self.is_ended:
            self._abort_rest("error")
        self._stop_timers_if_ended()

    def _abort_rest(self, reason: str) -> None:
        for choice in self._choices:
            choice.drop()
        self._num_live = 0
        if self.num_unsettled:
            self._send(wire.Abort(request_id=self._wire_id, reason=reason))
        self._stop_timers_if_ended()

    def _on_timeout(self) -> None:
        self.end("timeout")

    def _on_read_while_held(self) -> None:
        self._cancel_slow_timer()
        if self.is_ended:
            return
        if self._unread_bytes * 2 > self._limits.max_unsent_bytes:
            self._start_slow_timer()
            return
        self.is_held = False
        self._send(wire.Hold(request_id=self._wire_id, is_held=False))

    def _start_slow_timer(self) -> None:
        self._slow_timer = self._clock.call_at(
            self._clock.now() + self._limits.slow_reader_timeout_s, self._on_slow_reader
        )

    def _on_slow_reader(self) -> None:
        seconds, unread = self._limits.slow_reader_timeout_s, self._unread_bytes
        self._queue.clear()
        self._unread_bytes = 0
        self.fail(
            CallerError(f"nothing was read for {seconds:g} s while {unread} bytes waited: the request was aborted"),
            abort_reason="slow_reader",
        )

    def _cancel_slow_timer(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None

    def _stop_timers_if_ended(self) -> None:
        if not self.is_ended:
            return
        self._cancel_slow_timer()
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
            self._timeout_timer = None


def _weight(delta: TextDelta) -> int:
    """Bytes that an unread delta is charged with: its text, and something for what comes with it."""
    text = delta.text
    weight = (len(text) if text.isascii() else len(text.encode())) + _TOKEN_BYTES * len(delta.token_ids)
    if delta.reasoning:
        weight += len(delta.reasoning.encode())
    for call in delta.tool_calls:
        weight += len(call.arguments.encode()) + _CALL_BYTES
    if delta.logprobs:
        weight += _LOGPROB_BYTES * sum(1 + len(entry.top) for entry in delta.logprobs)
    return weight


def _send_nowhere(message: wire.Down) -> None:
    """The worker that the message is for is gone."""
