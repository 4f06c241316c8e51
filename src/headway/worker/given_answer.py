"""What a model has answered already to a request that left the native way (server/native_door) and goes on in Python.

The request is read and answered as any other; where it would ask its model, it finds the answer here.
"""

from contextvars import ContextVar

import headway_wire as wire

Outcome = wire.Outputs | Exception
"""Of a model of tensors; an error. None: it said nothing that is of use, and is asked again."""


class GivenAnswer:
    """Of one request."""

    __slots__ = ("_outcome", "arrived_s")

    def __init__(self, outcome: Outcome | None, arrived_s: float) -> None:
        self._outcome = outcome
        self.arrived_s = arrived_s
        """When the request came, of the system's monotonic clock."""

    def take(self) -> Outcome | None:
        """What the model said, once: a call that is made again is asked anew."""
        outcome, self._outcome = self._outcome, None
        return outcome


GIVEN_ANSWER: ContextVar[GivenAnswer | None] = ContextVar("headway_given_answer", default=None)


def take_given_answer() -> Outcome | None:
    """Of the request that the caller works for; None: it has to be asked for."""
    given = GIVEN_ANSWER.get()
    return None if given is None else given.take()
