"""WaitingLine: requests that wait to be computed, and which of them go together. Pure: the caller has the clock.

The oldest goes first, with those behind it that are of its kind: the same inputs by name, datatype and shape but for
the first axis, or values; the same outputs and parameters. It waits for more of them until it has waited for the delay.
"""

from typing import Any, List, Optional

import msgspec

from headway_wire.messages import Infer

_encode = msgspec.msgpack.Encoder(order="sorted").encode


class _Waiting:
    __slots__ = ("arrived_at", "kind", "request")

    def __init__(self, request: Infer, arrived_at: float) -> None:
        self.request = request
        self.arrived_at = arrived_at
        self.kind: Any = None
        """Found when it is asked for: who is computed alone has no need of it."""


class WaitingLine:
    """In the order of arrival. Seconds are of any clock that does not go back."""

    def __init__(self, max_batch_size: int, delay_s: float) -> None:
        self._max_batch_size = max_batch_size
        self._delay_s = delay_s
        self._line: List[_Waiting] = []
        self._expires_at = _NEVER
        """Of all that are in the line the earliest, or earlier: one that has left may have been it."""
        self.waited_s = 0.0
        """Of all requests that were taken."""

    def __len__(self) -> int:
        return len(self._line)

    def put(self, request: Infer, now: float) -> None:
        """At the end."""
        self._line.append(_Waiting(request, now))
        if request.timeout_s is not None:
            self._expires_at = min(self._expires_at, now + request.timeout_s)

    def drop(self, request_id: str) -> bool:
        """Takes one out; False: it does not wait here."""
        for index, waiting in enumerate(self._line):
            if waiting.request.request_id == request_id:
                del self._line[index]
                return True
        return False

    def take_expired(self, now: float) -> List[Infer]:
        """Takes those out whose time is over."""
        if now < self._expires_at:
            return []
        expired = [it.request for it in self._line if _expires_at(it) <= now]
        self._line = [it for it in self._line if _expires_at(it) > now]
        self._expires_at = min(map(_expires_at, self._line), default=_NEVER)
        return expired

    def wait_s(self, now: float) -> Optional[float]:
        """Seconds until take() has something to give, 0 if it has now; None: nothing waits."""
        if not self._line:
            return None
        left_s = self._line[0].arrived_at + self._delay_s - now
        if left_s <= 0 or self._max_batch_size == 1:
            return 0.0
        return 0.0 if len(self._next()) >= self._max_batch_size else left_s

    def take(self, now: float) -> List[Infer]:
        """The next batch; empty: none is due."""
        if self.wait_s(now) != 0.0:
            return []
        places = self._next()
        batch = [self._line[place] for place in places]
        if places[-1] == len(places) - 1:  # one behind the other, as nearly always
            del self._line[: len(places)]
        else:
            taken = set(places)
            self._line = [it for place, it in enumerate(self._line) if place not in taken]
        self.waited_s += sum([now - it.arrived_at for it in batch])
        return [it.request for it in batch]

    def _next(self) -> List[int]:
        """Where the oldest and those of its kind are, as many as go together."""
        if len(self._line) == 1 or self._max_batch_size == 1:
            return [0]
        places: List[int] = []
        wanted = _kind_of(self._line[0])
        for place, waiting in enumerate(self._line):
            if _kind_of(waiting) == wanted:
                places.append(place)
                if len(places) == self._max_batch_size:
                    break
        return places


_NEVER = float("inf")


def kind_of(request: Infer) -> Any:
    """What requests must have in common to be computed together."""
    tensors = [(it.name, it.datatype, bool(it.shape), tuple(it.shape[1:])) for it in request.tensors]
    if len(tensors) > 1:
        tensors.sort()
    parameters = _encode(request.parameters) if request.parameters else b""
    return tuple(tensors), tuple(request.outputs), parameters


def _kind_of(waiting: _Waiting) -> Any:
    if waiting.kind is None:
        waiting.kind = kind_of(waiting.request)
    return waiting.kind


def _expires_at(waiting: _Waiting) -> float:
    timeout_s = waiting.request.timeout_s
    return _NEVER if timeout_s is None else waiting.arrived_at + timeout_s
