"""EncoderEngine: texts in, vectors or scores out. Whole texts are packed end to end into steps; nothing is kept.

The life of a request: submit() checks it and puts it into the queue (Accepted) or says why not (Refused); a step takes
from the queue, in its order, as many texts as fit; each leaves with one Embedding, or with one terminal event where it
was aborted or its vector is not finite. What a text gives does not depend on the others of its step.
"""

import bisect
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import headway_wire as wire
from headway.core.embedding import check_length
from headway.engine.step_time import StepTime
from headway.errors import HeadwayError, InvalidRequest, NonFiniteLogits
from headway.executor.base import EncoderStep, EncodingExecutor, Float32

_COUNTERS = (
    "accepted_total",
    "refused_total",
    "prompt_tokens_total",
    "computed_tokens_total",
    "steps_total",
    "aborts_total",
)
"""Named as the language models' engine names them, so that one table of metrics serves both."""


@dataclass(frozen=True, slots=True)
class EncoderLimits:
    """What texts and steps stay under."""

    max_model_len: int
    """Tokens of a text."""
    max_tokens: int
    """Of a step; at least max_model_len."""
    max_seqs: int
    """Texts a step."""
    vocab_size: int
    num_token_types: int


class EncoderEngine:
    """One loaded encoder. From one thread."""

    def __init__(self, executor: EncodingExecutor, limits: EncoderLimits) -> None:
        self.limits = limits
        self._executor = executor
        self._queue: list[tuple[int, int, wire.Submit]] = []
        """(priority, number, request), in the order in which they go."""
        self._ended: list[wire.TokenEvent] = []
        """Terminal events that the next step tells."""
        self._numbers = itertools.count()
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._step_time = StepTime(limits.max_tokens)

    def submit(self, message: wire.Submit) -> wire.Accepted | wire.Refused:
        """Queues a text."""
        try:
            self._check(message)
        except HeadwayError as error:
            self._counts["refused_total"] += 1
            return wire.Refused(request_id=message.request_id, error=error.to_wire())
        self._counts["accepted_total"] += 1
        bisect.insort(self._queue, (message.priority, next(self._numbers), message))
        return wire.Accepted(request_id=message.request_id)

    def abort(self, message: wire.Abort) -> None:
        """Takes a text out of the queue; unknown ones are ignored."""
        kept = [entry for entry in self._queue if entry[2].request_id != message.request_id]
        if len(kept) == len(self._queue):
            return
        self._queue = kept
        self._counts["aborts_total"] += 1
        event = wire.TokenEvent(
            request_id=message.request_id,
            choice=0,
            finish_reason=message.finish_reason,
            stop_reason=message.reason or None,
        )
        self._ended.append(event)

    def has_work(self) -> bool:
        """Whether step() would do something."""
        return bool(self._queue or self._ended)

    def step(self) -> list[wire.Up]:
        """Computes the texts whose turn it is: a Step, then an Embedding for each."""
        texts = self._take()
        events, self._ended = self._ended, []
        made: list[wire.Up] = []
        if texts:
            vectors = self._encode(texts)
            is_finite: list[bool] = np.isfinite(vectors).all(axis=1).tolist()  # type: ignore[assignment]
            for text, vector, is_good in zip(texts, vectors, is_finite, strict=True):
                if is_good:
                    data = np.ascontiguousarray(vector, "<f4").tobytes()
                    made.append(wire.Embedding(request_id=text.request_id, data=data))
                else:
                    events.append(_make_failure(text))
        num_tokens = sum(len(text.prompt_token_ids) for text in texts)
        self._counts["steps_total"] += 1
        self._counts["prompt_tokens_total"] += num_tokens
        self._counts["computed_tokens_total"] += num_tokens
        return [wire.Step(events=events, num_tokens=num_tokens, num_waiting=len(self._queue)), *made]

    def stats(self) -> wire.Stats:
        """Gauges, and counters (`*_total`) since the start."""
        gauges = {"num_requests": len(self._queue), "num_running": 0, "num_waiting": len(self._queue)}
        numbers = gauges | self._counts | self._step_time.values()
        return wire.Stats(values={name: float(value) for name, value in numbers.items()})

    def warm_up(self) -> Float32:
        """A step of one short text, so that the first request does not pay for what is made lazily; its vector."""
        token_ids = [0] * min(8, self.limits.max_model_len)
        return self._encode([wire.Submit(request_id="", prompt_token_ids=token_ids)]).copy()

    def _encode(self, texts: Sequence[wire.Submit]) -> Float32:
        step, started_at = make_step(texts), time.perf_counter()
        vectors = self._executor.encode(step)
        self._step_time.note(step.token_ids.size, time.perf_counter() - started_at)
        return vectors

    def _take(self) -> list[wire.Submit]:
        num_tokens = num_texts = 0
        for _, _, text in self._queue[: self.limits.max_seqs]:
            num_tokens += len(text.prompt_token_ids)
            if num_tokens > self.limits.max_tokens:
                break
            num_texts += 1
        taken, self._queue = self._queue[:num_texts], self._queue[num_texts:]
        return [text for _, _, text in taken]

    def _check(self, message: wire.Submit) -> None:
        """Raises InvalidRequest, ContextLengthExceeded: what the parent should have seen."""
        num_tokens, limits = len(message.prompt_token_ids), self.limits
        if not num_tokens:
            raise InvalidRequest("the text is empty: it needs at least one token", param="input")
        check_length(num_tokens, limits.max_model_len)
        outside = [token for token in message.prompt_token_ids if not 0 <= token < limits.vocab_size]
        if outside:
            raise InvalidRequest(f"the token id {outside[0]} is not below {limits.vocab_size}", param="input")
        if message.second_start is not None and limits.num_token_types < 2:
            raise InvalidRequest("this model has one token type: it reads no second text", param="input")


def make_step(texts: Sequence[wire.Submit]) -> EncoderStep:
    """The texts end to end."""
    token_ids: list[int] = []
    starts = [0]
    for text in texts:
        token_ids += text.prompt_token_ids
        starts.append(len(token_ids))
    token_types = np.zeros(len(token_ids), np.int32)
    for text, start, end in zip(texts, starts, starts[1:], strict=False):
        if text.second_start is not None:
            token_types[start + text.second_start : end] = 1
    return EncoderStep(np.array(token_ids, np.int32), token_types, np.array(starts, np.int32))


def _make_failure(text: wire.Submit) -> wire.TokenEvent:
    error = NonFiniteLogits("the model computed NaN or infinity for this text: its weights do not fit it")
    return wire.TokenEvent(request_id=text.request_id, choice=0, finish_reason="error", error=error.to_wire())
