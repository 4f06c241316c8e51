"""The border between the client and whatever carries its messages: a child process, or a thread in tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import headway_wire as wire
from headway._native import FrameWriter

EXIT_LOST_PAGE = 74
"""EX_IOERR. A page of a mapped file is gone; the last line of the output says which file's."""


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker ended. `how` may be shown to a caller; `last_words` (its last lines of output) are for the log."""

    how: str
    last_words: str = ""


class Receiver(Protocol):
    """Who is told what a worker says. All are called on the event loop's thread."""

    def take_plain(self, payload: bytes) -> bytes | None:
        """Is given each message, in order, before it is decoded, and may do what there is to do with what is plain.

        What is left of it, which is to be decoded and told to on_messages: `payload`, or a Step with fewer events;
        None: nothing is. Raises msgspec.DecodeError for what is no message.
        """
        ...

    def on_messages(self, messages: Sequence[wire.Up]) -> None:
        """All messages that came in one read, in order."""
        ...

    def on_end(self, end: WorkerEnd) -> None:
        """The worker is gone; called exactly once, after the last on_messages."""
        ...


class Channel(Protocol):
    """A running worker. Nothing here blocks."""

    @property
    def pid(self) -> int | None:
        """Of its process; None if it has none of its own."""
        ...

    def send(self, message: wire.Down) -> None:
        """Puts a message on its way; after the end it is dropped."""
        ...

    def kill(self, how: str) -> None:
        """Ends the worker at once, whatever it does; on_end follows, saying `how`."""
        ...

    async def close(self, grace_s: float) -> None:
        """Asks it to end, then ends it harder and harder; returns when it is gone. Again: waits as well."""
        ...


@runtime_checkable
class FramedChannel(Protocol):
    """A Channel whose messages native code may send too."""

    @property
    def frames(self) -> FrameWriter | None:
        """None: not now. What is written to it and what send() is given goes in the order of the calls."""
        ...
