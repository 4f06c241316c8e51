"""WaitingLine: requests that wait to be computed, and which of them go together. Pure: the caller has the clock.

The oldest goes first, with those behind it that are of its kind: the same inputs by name, datatype and shape but for
the first axis, or values; the same outputs and parameters. It waits for more of them until it has waited for the delay.
"""

from typing import Any, List, NamedTuple, Optional

import msgspec

from headway_wire.messages import Infer

_encode = msgspec.msgpack.Encoder(order="sorted").encode


class _Waiting(NamedTuple):
    request: Infer
    arrived_at: float
    kind: Any


class WaitingLine:
    """In the order of arrival. Seconds are of any clock that does not go back."""

    def __init__(self, max_batch_size: int, delay_s: float) -> None:
        self._max_batch_size = max_batch_size
        self._delay_s = delay_s
        self._line: List[_Waiting] = []
        self.waited_s = 0.0
        """Of all requests that were taken."""

    def __len__(self) -> int:
        return len(self._line)

    def put(self, request: Infer, now: float) -> None:
        """At the end."""
        kind = kind_of(request) if self._max_batch_size > 1 else None
        self._line.append(_Waiting(request, now, kind))

    def drop(self, request_id: str) -> bool:
        """Takes one out; False: it does not wait here."""
        for index, waiting in enumerate(self._line):
            if waiting.request.request_id == request_id:
                del self._line[index]
                return True
        return False

    def take_expired(self, now: float) -> List[Infer]:
        """Takes those out whose time is over."""
        expired = [it for it in self._line if it.request.timeout_s is not None and _is_over(it, now)]
        if expired:
            self._line = [it for it in self._line if it not in expired]
        return [it.request for it in expired]

    def wait_s(self, now: float) -> Optional[float]:
        """Seconds until take() has something to give, 0 if it has now; None: nothing waits."""
        if not self._line:
            return None
        oldest = self._line[0]
        left_s = oldest.arrived_at + self._delay_s - now
        if left_s <= 0 or self._max_batch_size == 1:
            return 0.0
        num_alike = sum(it.kind == oldest.kind for it in self._line)
        return 0.0 if num_alike >= self._max_batch_size else left_s

    def take(self, now: float) -> List[Infer]:
        """The next batch; empty: none is due."""
        if self.wait_s(now) != 0.0:
            return []
        kind = self._line[0].kind
        batch: List[Infer] = []
        rest: List[_Waiting] = []
        for waiting in self._line:
            if len(batch) < self._max_batch_size and waiting.kind == kind:
                batch.append(waiting.request)
                self.waited_s += now - waiting.arrived_at
            else:
                rest.append(waiting)
        self._line = rest
        return batch


def kind_of(request: Infer) -> Any:
    """What requests must have in common to be computed together."""
    tensors = sorted((it.name, it.datatype, bool(it.shape), tuple(it.shape[1:])) for it in request.tensors)
    parameters = _encode(request.parameters) if request.parameters else b""
    return tuple(tensors), tuple(request.outputs), parameters


def _is_over(waiting: _Waiting, now: float) -> bool:
    timeout_s = waiting.request.timeout_s
    return timeout_s is not None and now - waiting.arrived_at >= timeout_s
