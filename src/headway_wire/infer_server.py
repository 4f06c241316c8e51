"""InferServer: a loaded predictor between its connection and its line.

One thread does all: it reads the socket, computes, answers. So a request to an idle model wakes it once and waits for
nobody. What comes while it computes stays in the socket, and is taken after, as one batch where the model can.
1. Infer waits in the line (batching.py); each gets exactly one Outputs.
   1a. Abort takes it out of the line; what is computed already is answered.   1b. Its time is over: an error.
2. A batch that raises is computed again, each request alone, so that one caller's input fails only its own.
   2a. MemoryError: Failed, exit code 1: who knows what is left.   2b. Anything else: an error with its words.
3. Stats go out when it is idle for a moment, and at most once a second while it is not.
"""

import logging
import os
import time
from bisect import bisect_left
from typing import Callable, Dict, List, Optional, Sequence

from headway_wire.batching import WaitingLine
from headway_wire.connection import Connection
from headway_wire.framing import pack_frame
from headway_wire.messages import Abort, Down, Error, Infer, Outputs, Shutdown, Stats, encode
from headway_wire.predictor import InferPredictor, PredictorError

logger = logging.getLogger("headway_wire")

STATS_INTERVAL_S = 1.0
IDLE_S = 0.1
"""After so long without work it is idle: then Stats go out, and not between two requests that follow each other."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the buckets in which batches are counted."""
_BUCKETS = [f"infer_batch_size_bucket_{number}_total" for number in range(len(BATCH_SIZES) + 1)]
_COUNTERS = (
    "infer_requests_total",
    "infer_failures_total",
    "infer_batches_total",
    "infer_batch_size_sum_total",
    "infer_compute_seconds_total",
)


class OutOfMemory(Exception):
    """The predictor ran out of memory; its process ends."""


class InferServer:
    """A loaded predictor between its connection and its line."""

    def __init__(
        self,
        connection: Connection,
        predictor: InferPredictor,
        line: WaitingLine,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self.predictor = predictor
        self._line = line
        self._now = now
        self._pid = os.getpid()
        self._counts: Dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)
        self._max_batch_s = 0.0
        self._has_news = True
        self._stats_at = now()

    def serve(self) -> None:
        """Returns after a Shutdown. Raises OutOfMemory, ParentGone."""
        while True:
            messages = self._connection.receive(self._wait_s())
            now = self._now()
            for message in messages:
                if isinstance(message, Shutdown):
                    return
                self._take(message, now)
            self._refuse_expired(now)
            batch = self._line.take(now)
            if batch:
                self._answer(self._compute(batch))
            is_idle = not messages and not batch
            if self._has_news and (is_idle or self._now() - self._stats_at >= STATS_INTERVAL_S):
                self._send_stats(is_idle=is_idle)

    def _wait_s(self) -> Optional[float]:
        wait_s = self._line.wait_s(self._now())
        if wait_s is not None:
            return wait_s
        return IDLE_S if self._has_news else None

    def _take(self, message: Down, now: float) -> None:
        if isinstance(message, Infer):
            self._has_news = True
            self._counts["infer_requests_total"] += 1
            self._line.put(message, now)
        elif isinstance(message, Abort):
            if self._line.drop(message.request_id):
                error = Error(kind="InternalError", message=f"aborted while it waited: {message.reason}")
                self._connection.send([Outputs(request_id=message.request_id, error=error)])
        else:
            logger.error("a message of type %s, which is none for this model", type(message).__name__)

    def _refuse_expired(self, now: float) -> None:
        for request in self._line.take_expired(now):
            words = f"waited for {request.timeout_s:g} s to be computed, its time-out: give it more, or try later"
            error = Error(kind="DeadlineExceeded", message=words)
            self._connection.send([Outputs(request_id=request.request_id, error=error)])

    def _compute(self, batch: List[Infer]) -> List[Outputs]:
        start = self._now()
        answers = self._infer(batch)
        seconds = self._now() - start
        self._max_batch_s = max(self._max_batch_s, seconds)
        self._counts["infer_compute_seconds_total"] += seconds
        self._counts["infer_batches_total"] += 1
        self._counts["infer_failures_total"] += sum(answer.error is not None for answer in answers)
        bucket = _BUCKETS[bisect_left(BATCH_SIZES, len(batch))]
        self._counts[bucket] = self._counts.get(bucket, 0.0) + 1
        self._counts["infer_batch_size_sum_total"] += len(batch)
        return answers

    def _infer(self, batch: List[Infer]) -> List[Outputs]:
        try:
            answers = list(self.predictor.infer(batch))
            return _checked(batch, answers)
        except MemoryError as error:
            raise OutOfMemory(f"the model ran out of memory: {error}") from error
        except PredictorError as error:
            told = error.error
        except BaseException as error:
            # A model's code may raise anything, SystemExit too: it fails this batch and not the process.
            logger.error("the model failed on a batch of %d", len(batch), exc_info=True)
            told = Error(kind="InferenceFailed", message=f"the model raised {describe(error)}")
        finally:
            if os.getpid() != self._pid:
                os._exit(1)  # a fork of the predictor's that came back here, and must not answer for us
        if len(batch) > 1:
            return [answer for request in batch for answer in self._infer([request])]
        return [Outputs(request_id=batch[0].request_id, error=told)]

    def _answer(self, answers: List[Outputs]) -> None:
        try:
            self._connection.send(answers)
        except (TypeError, ValueError, OverflowError, RecursionError):
            self._connection.send([_sendable(answer) for answer in answers])

    def _send_stats(self, *, is_idle: bool) -> None:
        self._has_news = not is_idle
        self._stats_at = self._now()
        values = {
            **self._counts,
            "infer_queue_seconds_total": self._line.waited_s,
            "infer_max_batch_seconds": self._max_batch_s,
        }
        self._connection.send([Stats(values=values)])


def describe(error: BaseException) -> str:
    """The class and the words of what was raised, on one line, at most 1,000 characters."""
    words = " ".join(str(error).split())
    return (f"{type(error).__name__}: {words}" if words else type(error).__name__)[:1000]


def _checked(batch: Sequence[Infer], answers: List[Outputs]) -> List[Outputs]:
    """Raises PredictorError where the answers are not those of the batch."""
    if [answer.request_id for answer in answers] != [request.request_id for request in batch]:
        words = f"the predictor gave {len(answers)} answers to {len(batch)} requests, or in another order"
        raise PredictorError("InferenceFailed", words)
    return answers


def _sendable(answer: Outputs) -> Outputs:
    """The answer, or where it can not be sent an error that says why."""
    try:
        pack_frame(encode(answer))
        return answer
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        words = f"the model's answer can not be sent: {describe(error)}; it must be JSON's types, or bytes"
        return Outputs(request_id=answer.request_id, error=Error(kind="InferenceFailed", message=words))
