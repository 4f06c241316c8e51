"""Constrained answers of the model that is worked by hand (testing/tiny_model), beside what they must be.

Its tokens are bytes, so what a regular expression lets come next is asked of the regex package, which knows whether a
text is the beginning of a match: an independent reference for masks and for what is forced.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regex

import headway_wire as wire
from headway.config import EngineConfig
from headway.engine.engine import Engine
from headway.engine.loading import load_engine
from headway.testing.script import END_TOKEN_ID
from headway.testing.tiny_model import logits_by_hand

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def regex_grammar(pattern: str) -> str:
    """A grammar of one regular expression, with slashes escaped."""
    return f"start: /{pattern}/"


def may_be_next(pattern: str, text: str, token_id: int) -> bool:
    """Whether the token may come behind `text` in a match of the whole."""
    if token_id == END_TOKEN_ID:
        return regex.fullmatch(pattern, text) is not None
    return token_id < 128 and regex.fullmatch(pattern, text + chr(token_id), partial=True) is not None


@dataclass(frozen=True)
class Right:
    """What an answer must be."""

    token_ids: list[int]
    num_forced: int
    finish_reason: str


def right_answer(prompt: str, pattern: str, max_tokens: int = 60) -> Right:
    """Greedy under the expression: the likeliest of the bytes that may come, the lowest of equals. A byte is forced
    where it is the only one and the match is not complete; the answer ends where nothing can come behind it."""
    context, text, num_forced = list(prompt.encode()), "", 0
    for _ in range(max_tokens):
        allowed = [token_id for token_id in range(END_TOKEN_ID + 1) if may_be_next(pattern, text, token_id)]
        if allowed == [END_TOKEN_ID]:
            break
        logits = logits_by_hand(context)
        chosen = max(allowed, key=lambda token_id: (logits[token_id], -token_id))
        num_forced += len(allowed) == 1
        context.append(chosen)
        if chosen == END_TOKEN_ID:
            break
        text += chr(chosen)
    else:
        return Right(context[len(prompt) :], num_forced, "length")
    return Right(context[len(prompt) :], num_forced, "stop")


def make_engine(folder: Path, **config: Any) -> Engine:
    """The model on the native executor."""
    settings: dict[str, Any] = {
        "threads": 1,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "kv_cache_memory": 2**24,
        "seed": 1,
    }
    return load_engine(folder, EngineConfig(**{**settings, **config}), lambda message: None)[0]


@dataclass
class TinyRig:
    """An engine and what it has told."""

    engine: Engine
    events: list[wire.TokenEvent] = field(default_factory=list)
    answers: dict[str, wire.Accepted | wire.Refused] = field(default_factory=dict)
    steps: list[wire.Step] = field(default_factory=list)

    def submit(self, request_id: str, prompt: str, constraint: wire.Constraint | None, **sampling: Any) -> None:
        """Greedy, if nothing else is said."""
        fields = {"temperature": 0.0, "max_tokens": 60, **sampling}
        submit = wire.Submit(
            request_id=request_id,
            prompt_token_ids=list(prompt.encode()),
            sampling=wire.Sampling(constraint=constraint, **fields),
        )
        answer = self.engine.submit(wire.decode_down(wire.encode(submit)))  # type: ignore[arg-type]
        if answer is not None:
            self.answers[request_id] = answer

    def wait(self, *request_ids: str) -> None:
        """Until these are answered, or else all that were submitted have their grammars."""
        while any(each not in self.answers for each in request_ids) or len(self.engine._waiting_room):
            self.step()

    def step(self) -> wire.Step:
        """One step, with its invariants."""
        step = self.engine.step()
        for answer in self.engine.take_answers():
            assert answer.request_id not in self.answers
            self.answers[answer.request_id] = answer
        self.engine.check()
        self.events += step.events
        self.steps.append(step)
        return step

    def run(self) -> None:
        """Until nothing is left to do."""
        self.wait()
        for _ in range(3000):
            while len(self.engine._late_masks) and not self.engine.has_work():
                threading.Event().wait(0.001)
            if not self.engine.has_work():
                break
            self.step()
        stats = self.engine.stats().values
        assert stats["num_requests"] == stats["num_used_blocks"] == 0
        assert not self.engine._outputs

    def told(self, request_id: str, choice: int = 0) -> list[wire.TokenEvent]:
        """To one choice; only the last is terminal."""
        events = [event for event in self.events if (event.request_id, event.choice) == (request_id, choice)]
        assert [event.finish_reason is not None for event in events] == [False] * (len(events) - 1) + [True]
        return events

    def output(self, request_id: str, choice: int = 0) -> Right:
        """All that it was told."""
        events = self.told(request_id, choice)
        return Right(
            [token_id for event in events for token_id in event.token_ids],
            sum(event.num_forced_tokens for event in events),
            str(events[-1].finish_reason),
        )

    def text(self, request_id: str, choice: int = 0) -> str:
        """Of an answer, without its end token."""
        return text_of(self.output(request_id, choice).token_ids)

    def error(self, request_id: str) -> wire.Error:
        """Of one that was refused."""
        answer = self.answers[request_id]
        assert isinstance(answer, wire.Refused)
        return answer.error


def text_of(token_ids: Sequence[int]) -> str:
    """Of bytes; the end token has none."""
    return bytes(token_id for token_id in token_ids if token_id < 256).decode()


def closing(engine: Engine) -> Iterator[TinyRig]:
    """A rig for a fixture."""
    yield TinyRig(engine)
    engine.close()
