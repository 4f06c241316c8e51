"""PlainTexts: an encoder's requests on the native way (server/native_door): their texts go to its process as they are.

Told by the worker's client, whose requests and these are one crowd for all limits. What ends without a vector is asked
once more in Python, which says why.
"""

import math
from collections.abc import Callable

import headway_wire as wire
from headway._native import FrameWriter, PlainInstance, PlainModel
from headway.errors import HeadwayError

MAX_OPEN_BYTES = 1 << 28
"""Of the texts of all that are open; one alone is always taken."""


class PlainTexts:
    """Of one worker that is ready and makes ids itself."""

    def __init__(self, frames: FrameWriter | None, send: Callable[[wire.Down], None], max_queued: int | None) -> None:
        """`max_queued`: so many may be open, whichever way they came; None: any number."""
        self.model = PlainModel()
        # Whether there is a place for one more of so many is for Python to say: no place is counted here.
        self.model.set_limits(max_at_work=None, max_queued=max_queued, max_open_bytes=MAX_OPEN_BYTES, num_places=0)
        self._send = send
        self._instance = PlainInstance(self.model, frames, self._abort, _read_end)
        self._instance.is_ready = True

    @property
    def num_open(self) -> int:
        """Requests that the worker owes an answer."""
        return self._instance.num_in_flight

    def take(self, payload: bytes) -> bool:
        """Whether it was the answer to one; then it is dealt with. Raises msgspec.DecodeError: it is no message."""
        return self._instance.take(payload)

    def note_others(self, num_more: int) -> None:
        """So many texts more, or fewer, are open that came through Python."""
        self.model.num_at_work += num_more

    def shut_down(self, error: HeadwayError) -> None:
        """All that are open end with it; the worker need not compute them."""
        for wire_id in self._instance.expire(math.inf, error):
            self._send(wire.Abort(request_id=wire_id, reason="shutdown"))

    def lose_worker(self, error: HeadwayError) -> None:
        """It is gone: nothing is owed any more."""
        self.model.close()
        self._instance.fail(error)

    def _abort(self, wire_id: str) -> None:
        self._send(wire.Abort(request_id=wire_id, reason="disconnect"))


def _read_end(payload: bytes) -> None:
    """What the native way does not read; whatever it is, Python asks anew."""
    wire.decode_up(payload)
