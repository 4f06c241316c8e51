"""ScriptedPredictor: plays a Script instead of running a model (predictors/base.Predictor).

Everything around it is real: it runs in worker/loop, in a thread or in a child process
(predictor="headway.testing.scripted_engine:ScriptedPredictor", the script in Load.options).

It follows Submit's sampling where that is exact: n, max_tokens, min_tokens, ignore_eos, stop_token_ids, logprobs,
prompt_logprobs. The log-probability of a token that it says, or is told, is LOGPROB; the i-th likeliest other one has
LOGPROB - i and the id i above.
"""

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import headway_wire as wire
from headway.errors import InternalError, InvalidRequest, from_wire
from headway.predictors.base import Report
from headway.testing.script import END_TOKEN_ID, FIRST_WORD_ID, Reply, Script, token_ids, words

LOGPROB = -0.25
GATE_PREFIX = "gate:"
"""A Hold(is_held=False) of the request "gate:NAME" opens the gate NAME: a message, so that a child hears it too."""


@dataclass(slots=True)
class _Sequence:
    request_id: str
    choice: int
    reply: Reply
    script_ids: list[int]
    sampling: wire.Sampling
    position: int = 0
    is_held: bool = False

    def next_id(self) -> int:
        """The token at the position; behind the script's last the end token, or the first again."""
        place = self.position % max(1, len(self.script_ids)) if self._repeats() else self.position
        return self.script_ids[place] if place < len(self.script_ids) else END_TOKEN_ID

    def _repeats(self) -> bool:
        is_wanted = self.sampling.ignore_eos or self.position < self.sampling.min_tokens or self.reply.is_endless
        return is_wanted and bool(self.script_ids)


class ScriptedPredictor:
    """A model as a script. Attributes are for tests that run it in their own process."""

    def __init__(self) -> None:
        self.script = Script()
        self.submits: list[wire.Submit] = []
        self.aborts: list[wire.Abort] = []
        """All that came, in order."""
        self.holds: list[wire.Hold] = []
        self.num_computed = 0
        """Output tokens made."""
        self._sequences: list[_Sequence] = []
        self._pending: list[wire.TokenEvent] = []
        self._pending_prompts: list[wire.PromptLogprobs] = []
        self._open_gates: set[str] = set()
        self._closed = threading.Event()

    def load(self, source: str, options: dict[str, Any], report: Report) -> wire.Ready:
        """`options["script"]` is a Script as plain data; without it the default script is played."""
        self.script = msgspec.convert(options.get("script", {}), Script)
        for place, phase in enumerate(self.script.phases):
            report(wire.Loading(phase=phase, fraction=place / len(self.script.phases)))
        while self.script.load_waits_for and not Path(self.script.load_waits_for).exists():
            time.sleep(0.005)
        if self.script.load_error is not None:
            raise from_wire(self.script.load_error)
        if self.script.load_raises is not None:
            raise RuntimeError(self.script.load_raises)
        vocab_size = FIRST_WORD_ID + len(words(self.script))
        limits = {"max_model_len": self.script.max_model_len, "max_num_seqs": self.script.max_num_seqs}
        return wire.Ready(info={**limits, "vocab_size": vocab_size})

    def handle(self, message: wire.Submit | wire.Abort | wire.Hold | wire.Infer) -> Iterable[wire.Up]:
        """Takes one message."""
        match message:
            case wire.Submit():
                self.submits.append(message)
                return [self._submit(message)]
            case wire.Abort():
                self.aborts.append(message)
                self._abort(message)
            case wire.Hold():
                self._hold(message)
            case wire.Infer():
                error = InvalidRequest("a scripted model answers prompts, no tensors").to_wire()
                return [wire.Outputs(request_id=message.request_id, error=error)]
        return []

    def has_work(self) -> bool:
        """Whether a sequence can go on, or an end is to be told."""
        return bool(self._pending) or any(self._is_runnable(sequence) for sequence in self._running())

    def step(self) -> Iterable[wire.Up]:
        """Every sequence that can goes on by its reply's tokens_per_step."""
        events, self._pending = self._pending, []
        runnable = [sequence for sequence in self._running() if self._is_runnable(sequence)]
        time.sleep(max((sequence.reply.delay_s for sequence in runnable), default=0.0))
        for sequence in runnable:
            event = self._play(sequence)
            events.append(event)
            if event.finish_reason is not None:
                self._sequences.remove(sequence)
        num_tokens = sum(len(event.token_ids) for event in events)
        prompts, self._pending_prompts = self._pending_prompts, []
        return [
            *prompts,
            wire.Step(
                events=events, num_running=len(self._running()), num_waiting=self._num_waiting(), num_tokens=num_tokens
            ),
        ]

    def stats(self) -> wire.Stats:
        """Gauges of now and the tokens made."""
        return wire.Stats(
            values={
                "num_running": float(len(self._running())),
                "num_waiting": float(self._num_waiting()),
                "computed_output_tokens_total": float(self.num_computed),
                "step_token_s": self.script.step_token_s,
                "step_max_tokens": float(self.script.max_model_len),
            }
        )

    def close(self) -> None:
        """Ends a step that hangs, too."""
        self._closed.set()

    def _submit(self, message: wire.Submit) -> wire.Up:
        prompt = bytes(token_id for token_id in message.prompt_token_ids if token_id < 256).decode(errors="replace")
        reply = next((reply for key, reply in self.script.replies.items() if key in prompt), self.script.reply)
        if reply.refusal is not None:
            return wire.Refused(request_id=message.request_id, error=reply.refusal)
        for choice in range(message.sampling.n):
            script_ids = token_ids(self.script, reply.by_choice.get(choice, reply.tokens))
            self._sequences.append(_Sequence(message.request_id, choice, reply, script_ids, message.sampling))
        num_top, behind = message.sampling.prompt_logprobs, message.prompt_token_ids[1:]
        if num_top is not None and behind:
            logprobs = [_logprobs(token_id, num_top) for token_id in behind]
            self._pending_prompts.append(wire.PromptLogprobs(request_id=message.request_id, start=1, logprobs=logprobs))
        return wire.Accepted(request_id=message.request_id)

    def _abort(self, message: wire.Abort) -> None:
        ended = [
            sequence
            for sequence in self._sequences
            if sequence.request_id == message.request_id and message.choice in (None, sequence.choice)
        ]
        for sequence in ended:
            self._sequences.remove(sequence)
            self._pending.append(
                wire.TokenEvent(
                    message.request_id, sequence.choice, [], None, message.finish_reason, message.reason or None
                )
            )

    def _hold(self, message: wire.Hold) -> None:
        if message.request_id.startswith(GATE_PREFIX):
            self._open_gates.add(message.request_id.removeprefix(GATE_PREFIX))
            return
        self.holds.append(message)
        for sequence in self._sequences:
            if sequence.request_id == message.request_id:
                sequence.is_held = message.is_held

    def _running(self) -> list[_Sequence]:
        return self._sequences[: self.script.max_num_seqs]

    def _num_waiting(self) -> int:
        return max(0, len(self._sequences) - self.script.max_num_seqs)

    def _is_runnable(self, sequence: _Sequence) -> bool:
        gate = sequence.reply.gates.get(sequence.position)
        return not sequence.is_held and (gate is None or gate in self._open_gates)

    def _play(self, sequence: _Sequence) -> wire.TokenEvent:
        """The sequence's next tokens, up to its end, its next gate or its next mishap."""
        reply, said = sequence.reply, list[int]()
        finish_reason: str | None = "length" if sequence.sampling.max_tokens == 0 else None
        stop_reason: int | None = None
        while len(said) < reply.tokens_per_step and finish_reason is None:
            if said and not self._is_runnable(sequence):
                break
            self._misbehave(reply, sequence.position)
            if reply.error_at == sequence.position:
                error = InternalError(f"scripted to fail at {sequence.position}").to_wire()
                return self._event(sequence, said, "error", None, error)
            said.append(sequence.next_id())
            finish_reason, stop_reason = self._end_of(sequence, said[-1])
            sequence.position += 1
        return self._event(sequence, said, finish_reason, stop_reason, None)

    def _end_of(self, sequence: _Sequence, token_id: int) -> tuple[str | None, int | None]:
        sampling, num_output = sequence.sampling, sequence.position + 1
        is_end = token_id in sampling.stop_token_ids or (token_id == END_TOKEN_ID and not sampling.ignore_eos)
        if is_end and num_output > sampling.min_tokens:
            return "stop", token_id
        if sampling.max_tokens is not None and num_output >= sampling.max_tokens:
            return "length", None
        return None, None

    def _event(
        self,
        sequence: _Sequence,
        said: list[int],
        finish_reason: str | None,
        stop_reason: int | None,
        error: wire.Error | None,
    ) -> wire.TokenEvent:
        self.num_computed += len(said)
        num_top = sequence.sampling.logprobs
        logprobs = None if num_top is None else [_logprobs(token_id, num_top) for token_id in said]
        return wire.TokenEvent(
            sequence.request_id,
            sequence.choice,
            said,
            logprobs,
            finish_reason,
            stop_reason,
            sequence.reply.num_cached_tokens,
            error,
        )

    def _misbehave(self, reply: Reply, position: int) -> None:
        if reply.raise_at == position:
            raise RuntimeError(f"scripted to raise at {position}")
        if reply.exit_at == position:
            os._exit(9)
        if reply.hang_at == position:
            self._closed.wait()


def _logprobs(token_id: int, num_top: int) -> wire.TokenLogprobs:
    top_ids = [(token_id + place) % FIRST_WORD_ID if place else token_id for place in range(num_top)]
    return wire.TokenLogprobs(LOGPROB, top_ids, [LOGPROB - place for place in range(num_top)])
