"""RemoteStream: another server's answer as its reader sees it (service/protocol.GenerateStream).

A pump (openai.py) puts deltas in; the reader takes them out. What lies unread is bounded: the pump waits, so that the
connection fills up and the other server stops by itself; a reader who takes nothing for too long is given up. All on
the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from headway.core.output import PromptOutput, TextDelta, Usage
from headway.errors import CallerError, HeadwayError
from headway.observe.clock import Clock, Timer
from headway.worker.stream import StreamLimits

_DELTA_BYTES = 32
_MAX_DELTAS_A_TAKE = 32


class RemoteStream:
    """One reader's side. Iterate it or feed() it, and close it.

    Args:
        usage: read whenever it is asked for; final once the pump called end().
        on_given_up: called at most once, when nothing more is wanted before the pump said end().
    """

    def __init__(
        self,
        model: str,
        num_choices: int,
        *,
        limits: StreamLimits,
        clock: Clock,
        deadline: float | None,
        usage: Callable[[], Usage],
        on_given_up: Callable[[], None],
        prompt_text: str = "",
    ) -> None:
        self.model = model
        self.prompt_token_ids: Sequence[int] = ()
        """The other server's tokens are not known."""
        self.prompt = PromptOutput(prompt_text, ())
        self._limits = limits
        self._clock = clock
        self._usage = usage
        self._on_given_up = on_given_up
        self._live = set(range(num_choices))
        self._queue: deque[TextDelta] = deque()
        self.num_unread_bytes = 0
        self._error: HeadwayError | None = None
        self._is_ended = False
        """Nothing more is put in."""
        self.is_full = False
        """The pump waits for the reader."""
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._slow_timer: Timer | None = None
        self._timer = None if deadline is None else clock.call_at(deadline, self._on_timeout)

    # the reader's side

    def __aiter__(self) -> "RemoteStream":
        return self

    async def __anext__(self) -> TextDelta:
        if not await self._wait():
            raise StopAsyncIteration
        return self._pop(1)[0]

    async def feed(self, take: Callable[[Sequence[TextDelta]], bool], offer_events: object = None) -> bool:
        """See the protocol."""
        while await self._wait():
            if not take(self._pop(_MAX_DELTAS_A_TAKE)):
                return True
        return False

    async def __aenter__(self) -> "RemoteStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wants nothing more; does not wait for the other server."""
        self._queue.clear()
        self.num_unread_bytes = 0
        self._give_up(None)
        self._error = None

    @property
    def usage(self) -> Usage:
        """So far; what the other server told, at its end."""
        return self._usage()

    # the pump's side

    async def put(self, deltas: Sequence[TextDelta]) -> None:
        """Adds deltas; waits while too much lies unread. Ended: nothing."""
        if self._is_ended:
            return
        for delta in deltas:
            self._queue.append(delta)
            self.num_unread_bytes += _weight(delta)
            if delta.finish_reason is not None:
                self._live.discard(delta.choice)
        self._news.set()
        if self.num_unread_bytes > self._limits.max_unsent_bytes:
            self.is_full = True
            self._room.clear()
            self._start_slow_timer()
            await self._room.wait()

    def end(self, error: HeadwayError | None = None) -> None:
        """The pump's last word; with an error the reader hears it after what lies unread. Ended: nothing."""
        if self._is_ended:
            return
        self._error = error
        self._is_ended = True
        self._cancel_slow_timer()
        if self._timer is not None:
            self._timer.cancel()
        self._news.set()
        self._room.set()

    def fail(self, error: HeadwayError) -> None:
        """Ends it with an error before the pump did, which is told."""
        self._give_up(error)

    # within

    async def _wait(self) -> bool:
        """Whether there is something to take; False: the end. Raises the error, once."""
        while not self._queue:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._is_ended:
                return False
            self._news.clear()
            await self._news.wait()
        return True

    def _pop(self, max_deltas: int) -> list[TextDelta]:
        deltas: list[TextDelta] = []
        while self._queue and len(deltas) < max_deltas:
            delta = self._queue.popleft()
            self.num_unread_bytes -= _weight(delta)
            deltas.append(delta)
        if self.is_full:
            self._cancel_slow_timer()
            if self.num_unread_bytes * 2 > self._limits.max_unsent_bytes:
                self._start_slow_timer()
            else:
                self.is_full = False
                self._room.set()
        return deltas

    def _give_up(self, error: HeadwayError | None) -> None:
        if not self._is_ended:
            self.end(error)
            self._on_given_up()

    def _on_timeout(self) -> None:
        """The request's own time-out: what there is, is its answer."""
        if not self._is_ended:
            for choice in sorted(self._live):
                self._queue.append(TextDelta(choice, "", finish_reason="abort", stop_reason="timeout"))
            self._give_up(None)

    def _start_slow_timer(self) -> None:
        if self._slow_timer is None:
            due = self._clock.now() + self._limits.slow_reader_timeout_s
            self._slow_timer = self._clock.call_at(due, self._on_slow_reader)

    def _on_slow_reader(self) -> None:
        seconds, unread = self._limits.slow_reader_timeout_s, self.num_unread_bytes
        self._queue.clear()
        self.num_unread_bytes = 0
        self._give_up(
            CallerError(f"nothing was read for {seconds:g} s while {unread} bytes waited: the request was aborted")
        )

    def _cancel_slow_timer(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None


def _weight(delta: TextDelta) -> int:
    """Bytes that an unread delta is charged with."""
    weight = _DELTA_BYTES + len(delta.text) + len(delta.reasoning) + 64 * len(delta.logprobs)
    return weight + sum(len(call.arguments) for call in delta.tool_calls)
