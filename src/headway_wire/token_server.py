"""TokenServer: a predictor that speaks tokens (Submit in, Step out) in a process where Headway is not installed.

One thread does all. While something runs, what has come is taken between two steps; else it sleeps in the socket.
1. Submit: the predictor takes it, Accepted; or raises whatever it does, Refused: one request ends no others.
2. Abort: its terminal events at once, in a Step.
3. Hold changes nothing: such engines can not leave one request out. Who reads nothing is aborted by the parent.
4. Profile: there are no steps to record. 5. Shutdown: what is open ends with abort events; it returns.
What a step raises ends the process: the engine's state is not known any more.
"""

import logging
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from headway_wire.connection import Connection
from headway_wire.infer_server import describe
from headway_wire.messages import (
    Abort,
    Accepted,
    Down,
    Error,
    Profile,
    ProfileEnd,
    Refused,
    Shutdown,
    Stats,
    Step,
    Submit,
    TokenEvent,
)
from headway_wire.predictor import PredictorError, Report

logger = logging.getLogger("headway_wire")

STATS_INTERVAL_S = 1.0


class TokenPredictor:
    """The base of predictors that speak tokens; each overrides all of these. One thread calls it.

    Its module imports what those of InferPredictor do.
    """

    def load(self, source: str, options: Dict[str, Any], report: Report) -> Dict[str, Any]:
        """Loads and warms up; Ready.info: max_model_len, max_num_seqs, and what people want to know.

        Raises PredictorError; anything else is told as a failed load with its words.
        """
        raise NotImplementedError

    def submit(self, request: Submit) -> None:
        """Takes a request whose id is not in use. Raises PredictorError; whatever it raises, it has not taken it."""
        raise NotImplementedError

    def abort(self, request_id: str, choice: Optional[int], finish_reason: str, reason: str) -> List[TokenEvent]:
        """Ends it, or one choice; the terminal events of what still ran. Unknown ones: none."""
        raise NotImplementedError

    def has_work(self) -> bool:
        """Whether step() would do something."""
        raise NotImplementedError

    def step(self) -> List[TokenEvent]:
        """One step; what it did to each choice."""
        raise NotImplementedError

    def open_ids(self) -> List[str]:
        """Requests that have choices without a terminal event."""
        raise NotImplementedError

    def close(self) -> None:
        """Frees what it holds outside the process; called once, last."""


class TokenServer:
    """A loaded predictor on its connection."""

    def __init__(
        self, connection: Connection, predictor: TokenPredictor, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.predictor = predictor
        self._connection = connection
        self._now = now
        self._stats_at = now()
        self._has_news = True
        self._counts = {"accepted_total": 0.0, "refused_total": 0.0, "steps_total": 0.0}

    def serve(self) -> None:
        """Returns after a Shutdown. Raises ParentGone, NotAMessage, and what a step raises."""
        while True:
            has_work = self.predictor.has_work()
            if not has_work and self._has_news:
                self._send_stats()
            for message in self._connection.receive(0.0 if has_work else None):
                if isinstance(message, Shutdown):
                    for request_id in self.predictor.open_ids():
                        self._abort(Abort(request_id=request_id, reason="shutdown"))
                    return
                self._take(message)
            if self.predictor.has_work():
                self._send_events(self.predictor.step())
                self._counts["steps_total"] += 1
                if self._now() - self._stats_at >= STATS_INTERVAL_S:
                    self._send_stats()

    def _take(self, message: Down) -> None:
        self._has_news = True
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Abort):
            self._abort(message)
        elif isinstance(message, Profile):
            words = "steps of this model can not be recorded: it does not run on Headway's engine"
            self._connection.send([ProfileEnd(error=Error(kind="UnsupportedFeature", message=words))])

    def _submit(self, request: Submit) -> None:
        try:
            self.predictor.submit(request)
        except PredictorError as error:
            self._refuse(request, error.error)
        except MemoryError:
            raise
        except Exception as error:
            # An engine finds faults in a request by exceptions of its own; the others' requests run on.
            logger.error("the engine did not take a request", exc_info=True)
            self._refuse(request, Error(kind="InferenceFailed", message=f"the engine raised {describe(error)}"))
        else:
            self._counts["accepted_total"] += 1
            self._connection.send([Accepted(request_id=request.request_id)])

    def _refuse(self, request: Submit, error: Error) -> None:
        self._counts["refused_total"] += 1
        self._connection.send([Refused(request_id=request.request_id, error=error)])

    def _abort(self, message: Abort) -> None:
        events = self.predictor.abort(message.request_id, message.choice, message.finish_reason, message.reason)
        if events:
            self._send_events(events)

    def _send_events(self, events: Sequence[TokenEvent]) -> None:
        """A step without events is sent too: it is progress."""
        num_tokens = sum(len(event.token_ids) for event in events)
        num_running = len(self.predictor.open_ids())
        self._connection.send([Step(events=list(events), num_running=num_running, num_tokens=num_tokens)])

    def _send_stats(self) -> None:
        self._has_news = False
        self._stats_at = self._now()
        values = {**self._counts, "num_running": float(len(self.predictor.open_ids()))}
        self._connection.send([Stats(values=values)])
