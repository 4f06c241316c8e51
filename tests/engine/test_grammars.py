"""Grammars compile beside the steps, are kept, and fail alone."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llguidance
import pytest
from tests.engine.tiny_rig import TinyRig, make_engine, regex_grammar, right_answer

import headway_wire as wire
from headway.config import EngineConfig
from headway.core.structured import StructuredOutputs
from headway.engine import compiled_grammar, grammars, masks
from headway.engine.compiled_grammar import ALONE, SERVED, Patience
from headway.engine.engine import Engine
from headway.engine.grammars import Grammars
from headway.engine.loading import load_engine
from headway.errors import CorruptCheckpoint, InvalidRequest, QueueFull
from headway.predictors.headway import HeadwayPredictor
from headway.testing.tiny_model import write_tiny_model
from headway.text.grammar_compiler import compile_grammar
from headway.text.structured import structured_grammar
from headway.text.tokenizer import Tokenizer
from headway.worker.loop import Inbox, WorkerLoop

DIGITS = wire.Constraint(grammar=regex_grammar("[0-9]{3}"))


class Gate:
    """compile_grammar, which waits."""

    def __init__(self) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()

    def __call__(self, tokenizer: llguidance.LLTokenizer, text: str) -> llguidance.LLMatcher:
        self.entered.set()
        assert self.opened.wait(30)
        return compile_grammar(tokenizer, text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("grammars") / "tiny")


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    engine = make_engine(folder)
    yield engine
    engine.close()


@pytest.fixture
def rig(engine: Engine) -> TinyRig:
    return TinyRig(engine)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(grammars, "compile_grammar", gate)
    yield gate
    gate.opened.set()


def test_others_go_on_while_a_grammar_is_compiled(rig: TinyRig, gate: Gate) -> None:
    rig.submit("waits", "hello", DIGITS)
    assert gate.entered.wait(30)
    assert "waits" not in rig.answers
    assert not rig.engine.has_work()
    assert rig.engine.wait_s() == pytest.approx(0.002)
    rig.submit("plain", "abc", None, max_tokens=10)
    for _ in range(10):
        assert rig.step().num_tokens
    assert rig.output("plain").finish_reason == "length"
    gate.opened.set()
    rig.run()
    assert isinstance(rig.answers["waits"], wire.Accepted)
    assert rig.output("waits").token_ids == right_answer("hello", "[0-9]{3}").token_ids


def test_a_request_that_waits_can_be_ended_and_its_id_is_in_use(rig: TinyRig, gate: Gate) -> None:
    rig.submit("a", "hello", DIGITS)
    second = wire.Submit(request_id="a", prompt_token_ids=[1])
    refused = rig.engine.submit(second)
    assert isinstance(refused, wire.Refused)
    assert "in use" in refused.error.message
    rig.engine.abort(wire.Abort(request_id="a"))
    assert rig.engine.has_work()
    rig.step()
    assert "was ended" in rig.error("a").message
    gate.opened.set()
    rig.run()
    assert rig.engine.stats().values["num_waiting_for_grammars"] == 0


def test_a_grammar_that_computes_too_long_is_refused_in_time(rig: TinyRig, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    def compile_for_ever(*_: object) -> llguidance.LLMatcher:
        while not given_up.is_set():
            sum(range(1000))
        raise InvalidRequest("at last")

    monkeypatch.setattr(grammars, "compile_grammar", compile_for_ever)
    monkeypatch.setattr(compiled_grammar, "SERVED", Patience(0.02, 0.02))
    monkeypatch.setattr(compiled_grammar, "MAX_COMPILE_CPU_S", 0.01)
    asked = rig.engine._grammars.ask(DIGITS.grammar)
    while asked._compiling_s is None or asked._compiling_s() < 0.02:
        rig.step()
    rig.submit("a", "hello", DIGITS)
    rig.wait("a")
    assert rig.error("a").kind == "InvalidRequest"
    assert "took over 0.01 s of processor time to compile: make" in rig.error("a").message
    assert not given_up.is_set(), "it was not waited for"
    given_up.set()


def serve_by(rig: TinyRig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of an engine that serves many."""
    clock = [0.0]
    assert rig.engine._grammars is not None
    for owner in (rig.engine._waiting_room, rig.engine, rig.engine._grammars):
        monkeypatch.setattr(owner, "_now", lambda: clock[0])
    monkeypatch.setattr(rig.engine._grammars, "_patience", SERVED)
    return clock


def test_a_program_with_its_own_model_waits_for_all_its_grammars(
    rig: TinyRig, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = serve_by(rig, monkeypatch)
    monkeypatch.setattr(rig.engine._grammars, "_patience", ALONE)
    rig.submit("a", "hello", DIGITS)
    for clock[0] in (1.9, 59.9):
        rig.step()
        assert "a" not in rig.answers
    clock[0] = 60.1
    rig.step()
    assert rig.error("a").kind == "QueueFull"


def test_a_grammar_that_had_no_turn_may_come_again_and_is_no_ones_fault(
    rig: TinyRig, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = serve_by(rig, monkeypatch)
    rig.submit("a", "hello", DIGITS)
    assert gate.entered.wait(30)
    clock[0] = 1.9
    rig.wait("a")
    assert rig.error("a").kind == "QueueFull"
    assert "could not be compiled within 1.8 s: others were before it" in rig.error("a").message
    assert not gate.opened.is_set(), "it was not waited for"
    rig.submit("b", "hello", DIGITS)
    gate.opened.set()
    rig.run()
    assert rig.output("b").token_ids == right_answer("hello", "[0-9]{3}").token_ids
    stats = rig.engine.stats().values
    assert (stats["grammar_hits_total"], stats["grammar_failures_total"]) == (1, 0), "compiled once"


def test_a_wait_counts_from_its_own_submit(rig: TinyRig, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = serve_by(rig, monkeypatch)
    rig.submit("early", "hello", DIGITS)
    clock[0] = 1.5
    rig.submit("late", "hello", DIGITS)
    clock[0] = 1.9
    rig.step()
    assert rig.error("early").kind == "QueueFull"
    assert "late" not in rig.answers
    clock[0] = 3.4
    rig.step()
    assert rig.error("late").kind == "QueueFull"


def test_a_grammar_that_nobody_waits_for_any_more_takes_nobodys_turn(
    rig: TinyRig, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.opened.set()
    rig.submit("first", "hello", DIGITS)  # with which the vocabulary is made
    rig.run()
    gate.opened.clear()
    clock = serve_by(rig, monkeypatch)
    kept = rig.engine._grammars
    asked = [kept.ask(regex_grammar(f"{number}+")) for number in range(grammars.NUM_THREADS + 1)]
    while any(grammar._compiling_s is None for grammar in asked[: grammars.NUM_THREADS]):
        threading.Event().wait(0.001)
    clock[0] = 1.9
    gate.opened.set()
    while not all(grammar.is_done for grammar in asked):
        threading.Event().wait(0.001)
    assert [grammar.error is None for grammar in asked] == [True] * grammars.NUM_THREADS + [False]
    assert isinstance(asked[-1].error, QueueFull)
    again = kept.ask(asked[-1].text)
    assert again is not asked[-1]
    while not again.is_done:
        threading.Event().wait(0.001)
    assert again.error is None


def test_what_is_prepared_is_there_before_it_is_needed(
    folder: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(max_model_len=64, kv_cache_memory=2**22)
    engine = load_engine(folder, config, print, prepares_grammars=True)[0]
    kept = engine._grammars
    assert kept is not None
    kept._trials.submit(lambda: None).result(30)
    assert kept._tokens is not None
    monkeypatch.setattr(grammars, "ConstraintTokens", None)  # they are not made again
    child = kept._trial._child
    assert child is not None
    assert not child.is_ready, "it has no vocabulary, whose memory is for those who constrain"
    kept.ask(DIGITS.grammar)
    kept._trials.submit(lambda: None).result(30)
    assert child.is_ready
    assert kept._trial._child is child
    engine.close()


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("start: /(/", "structured_outputs cannot be enforced"),
        ('{"grammars": [{"json_schema": {"type": "no such type"}}]}', "structured_outputs cannot be enforced"),
        ("start: nothing", "structured_outputs cannot be enforced"),
        ("not a grammar at all {", "structured_outputs cannot be enforced"),
    ],
)
def test_a_bad_grammar_is_refused_with_its_reason_and_a_second_time_for_nothing(
    rig: TinyRig, grammar: str, words: str
) -> None:
    rig.submit("a", "hello", wire.Constraint(grammar=grammar))
    rig.wait("a")
    rig.submit("b", "hello", wire.Constraint(grammar=grammar))
    assert rig.error("a") == rig.error("b")
    assert rig.error("a").kind == "InvalidRequest"
    assert words in rig.error("a").message
    stats = rig.engine.stats().values
    assert (stats["grammars_total"], stats["grammar_hits_total"], stats["grammar_failures_total"]) == (2, 1, 1)
    rig.submit("good", "hello", DIGITS)
    rig.run()
    assert rig.output("good").token_ids == right_answer("hello", "[0-9]{3}").token_ids


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (wire.Constraint(trigger="x"), "a trigger and no grammar"),
        (wire.Constraint(grammar="start: /a/", trigger="("), "no regular expression"),
        (wire.Constraint(grammar="start: /a/", max_matches=1), "max_matches is 1"),
        (wire.Constraint(grammar="start: /a/", last_trigger="a"), "a last_trigger: it needs a trigger"),
        (wire.Constraint(grammar="start: /a/", trigger="a", last_trigger="("), "last_trigger is no regular expression"),
        (wire.Constraint(grammar="start: /a/", trigger="a", max_matches=0), "max_matches is 0"),
        (wire.Constraint(max_reasoning_tokens=3), "max_reasoning_tokens is 3"),
        (wire.Constraint(reasoning_end="e", max_reasoning_tokens=-1), "max_reasoning_tokens is -1"),
    ],
)
def test_a_constraint_that_makes_no_sense_is_refused_at_once(
    rig: TinyRig, constraint: wire.Constraint, words: str
) -> None:
    rig.submit("a", "hello", constraint)
    assert words in rig.error("a").message


def test_a_grammar_is_compiled_once_and_the_oldest_are_dropped(rig: TinyRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_KEPT", 2)
    for name, pattern in zip("abcdef", ("x", "y", "x", "z", "x", "y"), strict=True):
        rig.submit(name, "hello", wire.Constraint(grammar=regex_grammar(pattern)))
        rig.run()
        assert rig.text(name) == pattern
    stats = rig.engine.stats().values
    assert stats["grammar_hits_total"] == 2, "x twice; y was dropped when z came"
    assert len(rig.engine._grammars._kept) == 2


def test_texts_that_are_kept_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_KEPT_BYTES", 100)
    kept = Grammars(lambda: make_bytes_tokenizer(tmp_path))
    asked = []
    for number in range(6):
        asked.append(kept.ask(f"start: /{number:030}/"))
        while not asked[-1].is_done:
            threading.Event().wait(0.001)
    assert sum(grammar.num_bytes for grammar in kept._kept.values()) <= 100 + asked[-1].num_bytes
    assert kept._num_kept_bytes == sum(grammar.num_bytes for grammar in kept._kept.values())
    kept.close()


def make_bytes_tokenizer(folder: Path) -> Tokenizer:
    from headway.checkpoint.checkpoint import open_checkpoint
    from headway.text.tokenizer import make_tokenizer

    return make_tokenizer(open_checkpoint(write_tiny_model(folder / "tiny")).text)


def test_a_vocabulary_that_cannot_be_read_refuses_each_request_alone(folder: Path) -> None:
    engine = make_engine(folder)

    def fail() -> Tokenizer:
        raise CorruptCheckpoint("the tokenizer's file is gone")

    engine._grammars = Grammars(fail)
    rig = TinyRig(engine)
    rig.submit("a", "hello", DIGITS)
    rig.submit("plain", "abc", None, max_tokens=2)
    rig.wait("a")
    rig.run()
    assert (rig.error("a").kind, rig.output("plain").finish_reason) == ("CorruptCheckpoint", "length")
    engine.close()


def test_a_mask_that_cannot_be_made_ends_its_own_answer_alone(rig: TinyRig, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = masks.MaskFiller.fill

    def fill(self: Any, sequence: Any, output: Any, mask: Any) -> None:
        if sequence.request_id == "panics" and sequence.num_output_tokens == 2:
            raise RuntimeError("a panic of the library")
        if sequence.request_id == "fuel" and sequence.num_output_tokens == 2:
            output.matcher.consume_token(ord("!"))  # no digit: the matcher is in its error state
        whole(self, sequence, output, mask)

    monkeypatch.setattr(masks.MaskFiller, "fill", fill)
    for name in ("panics", "fuel", "well"):
        rig.submit(name, "hello", wire.Constraint(grammar=regex_grammar("[0-9]{5}")))
    rig.run()
    assert rig.output("well").token_ids == right_answer("hello", "[0-9]{5}").token_ids
    for name, kind in (("panics", "InternalError"), ("fuel", "InvalidRequest")):
        last = rig.told(name)[-1]
        assert last.error is not None
        assert (last.finish_reason, last.error.kind) == ("error", kind)
        assert len(rig.output(name).token_ids) == 2
    rig.submit("again", "hello", wire.Constraint(grammar=regex_grammar("[0-9]{5}")))
    rig.run()
    assert rig.output("again").token_ids == right_answer("hello", "[0-9]{5}").token_ids
    assert rig.engine.stats().values["grammar_hits_total"] == 2, "the grammar that failed is compiled anew"


@pytest.mark.parametrize(
    ("costs", "ended"),
    [
        ({"a": 0.06, "b": 0.001, "c": 0.001}, "a"),
        ({"a": 0.02, "b": 0.03, "c": 0.015}, "b"),
        ({"a": 0.04, "b": 0.005, "c": 0.009}, None),
        ({"a": 0.009, "b": 0.049, "c": 0.009}, None),
    ],
    ids=["one", "together", "slow alone", "fast ones do not count"],
)
def test_who_keeps_a_whole_step_waiting_ends_alone(
    rig: TinyRig, costs: dict[str, float], ended: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, clock = masks.MaskFiller.fill, [0.0]

    def fill(self: Any, sequence: Any, output: Any, mask: Any) -> None:
        whole(self, sequence, output, mask)
        if sequence.num_output_tokens == 2:
            clock[0] += costs[sequence.request_id]

    monkeypatch.setattr(masks.MaskFiller, "fill", fill)
    monkeypatch.setattr(masks.time, "thread_time", lambda: clock[0])
    rig.submit("warm", "hello", wire.Constraint(grammar=regex_grammar("[0-9]{5}")), max_tokens=1)
    rig.run()
    for name in costs:
        rig.submit(name, "hello", wire.Constraint(grammar=regex_grammar("[0-9]{5}")))
    rig.run()
    for name in costs.keys() - {ended}:
        assert rig.output(name).token_ids == right_answer("hello", "[0-9]{5}").token_ids
    if ended is not None:
        error = rig.told(ended)[-1].error
        assert error is not None
        assert (error.kind, len(rig.output(ended).token_ids)) == ("InvalidRequest", 2)
        assert f"took {costs[ended] * 1e3:.0f} ms of processor time, and may take 50; make" in error.message


@pytest.mark.case("so-perf-11")
def test_streams_have_their_token_each_step_while_a_schema_is_compiled_once_for_all(folder: Path, gate: Gate) -> None:
    engine = make_engine(folder, max_num_seqs=17, kv_cache_memory=2**25)
    rig, alone = TinyRig(engine), TinyRig(engine)
    streams = [f"stream {number}" for number in range(8)]
    for number, name in enumerate(streams):
        alone.submit(name, "abc"[: number % 3 + 1], None, max_tokens=150, ignore_eos=True)
        alone.run()
    for number, name in enumerate(streams):
        rig.submit(name, "abc"[: number % 3 + 1], None, max_tokens=150, ignore_eos=True)
    rig.step()
    schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(200)}}
    wanted = StructuredOutputs(kind="json_schema", value={**schema, "required": ["p0", "p199"]})
    constraint = wire.Constraint(grammar=structured_grammar(wanted).text())
    rig.submit("first", "hello", constraint, max_tokens=40)
    assert gate.entered.wait(30)
    for _ in range(20):
        assert [event.request_id for event in rig.step().events] == streams
    gate.opened.set()
    rig.wait("first")
    for number in range(8):
        rig.submit(f"again {number}", "hello", constraint, max_tokens=40)
    rig.run()
    stats = engine.stats().values
    assert (stats["grammars_total"], stats["grammar_hits_total"]) == (9, 8)
    for name in streams:
        assert rig.output(name) == alone.output(name)
    assert len({tuple(rig.output(name).token_ids) for name in ("first", *(f"again {n}" for n in range(8)))}) == 1
    engine.close()


def test_a_step_that_fails_leaves_the_gate_open(rig: TinyRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.submit("a", "hello", wire.Constraint(grammar=regex_grammar("[0-9]{5}")))
    rig.wait("a")
    rig.step()
    computer = rig.engine._bare_runner._computer
    monkeypatch.setattr(type(computer), "compute", lambda *_: 1 / 0)
    rig.step()
    assert rig.told("a")[-1].finish_reason == "error"
    monkeypatch.undo()
    rig.submit("b", "hello", wire.Constraint(grammar=regex_grammar("[0-9]{5}")))
    rig.run()
    assert rig.output("b").token_ids == right_answer("hello", "[0-9]{5}").token_ids


def test_a_shutdown_answers_who_waits_for_a_grammar(folder: Path, gate: Gate) -> None:
    inbox = Inbox()
    told: list[wire.Up] = []

    def send(message: wire.Up) -> None:
        told.append(message)
        if isinstance(message, wire.Ready):
            inbox.put(wire.Submit(request_id="a", prompt_token_ids=[104], sampling=wire.Sampling(constraint=DIGITS)))
            inbox.put(wire.Shutdown())

    loop = WorkerLoop(inbox, send)
    name = f"{HeadwayPredictor.__module__}:HeadwayPredictor"
    options = {"threads": 1, "max_model_len": 64, "max_num_seqs": 2, "kv_cache_memory": 2**22}
    inbox.put(wire.Load(predictor=name, source=str(folder), options=options))
    assert loop.run() == 0
    refused = [message for message in told if isinstance(message, wire.Refused)]
    assert [(message.request_id, "shutdown" in message.error.message) for message in refused] == [("a", True)]
