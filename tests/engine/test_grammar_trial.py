"""Grammars whose compiling nothing bounds are tried in a process of their own: it ends, others do not wait."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.tiny_rig import TinyRig, make_engine, regex_grammar, right_answer

import headway_wire as wire
from headway.core.structured import StructuredOutputs
from headway.engine import grammar_trial
from headway.engine.engine import Engine
from headway.engine.grammar_trial import GrammarTrial
from headway.engine.trial_messages import TrialVocabulary
from headway.errors import InternalError, InvalidRequest, QueueFull
from headway.testing.tiny_model import write_tiny_model
from headway.text.grammar_compiler import needs_trial
from headway.text.structured import structured_grammar

DIGITS = wire.Constraint(grammar=regex_grammar("[0-9]{3}"))
WORD = "start: WORD\nWORD: LETTER LETTER\nLETTER: /[a-z]/"
VOCABULARY = TrialVocabulary(
    tokens=[*(bytes([byte]) for byte in range(256)), b"<|end|>"], end_token_ids=[256], special_token_ids=[256]
)


def explosive(num: int) -> str:
    """Terminals that come to `num` times 100 characters that may be left out: seconds in the compiler."""
    return f"start: ALL\nALL: {'ONE ' * num}\nONE: " + " ".join(['"a"?'] * 100)


@pytest.fixture
def trial() -> Iterator[GrammarTrial]:
    trial = GrammarTrial()
    yield trial
    trial.end()
    trial.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = make_engine(write_tiny_model(tmp_path / "tiny"))
    yield engine
    engine.close()


def test_explosive_grammars_are_refused_and_nobody_waits_behind_them(engine: Engine) -> None:
    rig = TinyRig(engine)
    rig.submit("plain", "abc", None, max_tokens=200, ignore_eos=True)
    rig.submit("bad", "hello", wire.Constraint(grammar=explosive(400)))
    rig.submit("good", "hello", DIGITS)
    while "good" not in rig.answers:
        rig.step()
    assert isinstance(rig.answers["good"], wire.Accepted)
    assert "bad" not in rig.answers
    rig.run()
    assert rig.error("bad").kind == "InvalidRequest"
    assert "compile" in rig.error("bad").message
    assert rig.output("good").token_ids == right_answer("hello", "[0-9]{3}").token_ids
    rig.submit("after", "hello", wire.Constraint(grammar=WORD))
    rig.run()
    assert rig.output("after").token_ids == right_answer("hello", "[a-z]{2}").token_ids


def test_processor_time_is_limited(trial: GrammarTrial) -> None:
    trial.make_ready(lambda: VOCABULARY)
    with pytest.raises(InvalidRequest, match=r"cannot be compiled in (0\.6 s of processor time|256 MB): make"):
        trial.check(explosive(1000), 30)
    trial.check(WORD, 30)


def test_memory_is_limited(trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = "t.MAX_TRIAL_BYTES = 2**25; t.MAX_TRIAL_CPU_S = 60"
    code = f"from headway.engine import trial_process as t; {limits}; t.serve_parent(t.serve, None)"
    monkeypatch.setattr(grammar_trial, "COMMAND", (sys.executable, "-c", code))
    trial.make_ready(lambda: VOCABULARY)
    trial.check(WORD, 30)
    with pytest.raises(InvalidRequest, match="cannot be compiled in 32 MB: make its repetitions shorter"):
        trial.check(explosive(100), 60)


def test_time_is_limited_by_the_clock_too(trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = "t.MIN_TRIAL_CPU_S = 0"
    code = f"from headway.engine import trial_process as t; {limits}; t.serve_parent(t.serve, None)"
    monkeypatch.setattr(grammar_trial, "COMMAND", (sys.executable, "-c", code))
    trial.make_ready(lambda: VOCABULARY)
    with pytest.raises(InvalidRequest, match=r"cannot be compiled within 0\.05 s"):
        trial.check(explosive(1000), 0.05)
    trial.check(WORD, 30)


def test_who_had_too_little_of_the_processor_may_come_again(trial: GrammarTrial) -> None:
    trial.make_ready(lambda: VOCABULARY)
    with pytest.raises(QueueFull, match=r"could not be compiled within 0\.05 s, for the machine is busy: send"):
        trial.check(explosive(1000), 0.05)
    trial.check(WORD, 30)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("start: A B\nA: /(/\nB: A", "cannot be enforced"),
        ("start: A B\nA: /a/", "cannot be enforced"),
        ("start: A <|end|>\nA: B\nB: <|end|>", "cannot be used in terminals"),
        ("start: A <|nobody|>\nA: B\nB: /a/", "unknown special token"),
        ("start: A <[257]>\nA: B\nB: /a/", "Token range end too large"),
    ],
)
def test_the_compilers_own_words_are_told(trial: GrammarTrial, grammar: str, words: str) -> None:
    trial.make_ready(lambda: VOCABULARY)
    with pytest.raises(InvalidRequest, match=words) as caught:
        trial.check(grammar, 30)
    assert caught.value.param == "structured_outputs"
    trial.check("start: A <|end|> <[3]>\nA: B\nB: /a/", 30)


def test_a_process_that_somebody_ends_is_no_fault_of_the_grammar(engine: Engine) -> None:
    rig = TinyRig(engine)
    rig.submit("first", "hello", wire.Constraint(grammar=WORD))
    rig.run()
    assert engine._grammars is not None
    child = engine._grammars._trial._child
    assert child is not None
    child.process.kill()
    again = wire.Constraint(grammar=WORD + "\n")
    rig.submit("second", "hello", again)
    rig.wait("second")
    assert rig.error("second").kind == "InternalError"
    assert "its process was ended by SIGKILL" in rig.error("second").message
    rig.submit("third", "hello", again)
    rig.run()
    assert rig.output("third").token_ids == right_answer("hello", "[a-z]{2}").token_ids


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("/no/such/python",), "does not start: .*No such file"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "ended with exit code 3 as it started"),
    ],
)
def test_where_the_process_does_not_start_that_is_told(
    engine: Engine, command: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = TinyRig(engine)
    with monkeypatch.context() as patched:
        patched.setattr(grammar_trial, "COMMAND", command)
        rig.submit("a", "hello", wire.Constraint(grammar=WORD))
        rig.submit("others", "hello", DIGITS)
        rig.run()
    assert rig.error("a").kind == "InternalError"
    with pytest.raises(InternalError, match=words):
        raise InternalError(rig.error("a").message)
    assert rig.output("others").finish_reason == "stop"


def test_closing_ends_the_process_in_the_middle_of_a_grammar(engine: Engine) -> None:
    rig = TinyRig(engine)
    rig.submit("a", "hello", wire.Constraint(grammar=WORD))
    rig.run()
    assert engine._grammars is not None
    child = engine._grammars._trial._child
    assert child is not None
    os.kill(child.process.pid, signal.SIGSTOP)  # it does not answer
    asked = engine._grammars.ask(explosive(500))
    engine.close()
    assert child.process.returncode == -signal.SIGKILL
    assert not asked.is_done or isinstance(asked.error, InternalError)


PARENT = f"""
import threading, headway.engine.grammar_trial as g
from headway.engine.trial_messages import TrialVocabulary
trial = g.GrammarTrial()
trial.make_ready(lambda: {VOCABULARY!r})
print(trial._child.process.pid, flush=True)
threading.Event().wait()
"""


def test_no_process_is_left_where_the_worker_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, signal.SIGSTOP)  # it cannot see the end of file
        parent.kill()
    assert is_gone_within(10.0, pid)


def is_gone_within(seconds: float, pid: int) -> bool:
    """Whether a process that is nobody's child here has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def grammar_of(kind: str, value: object) -> str:
    return structured_grammar(StructuredOutputs(kind=kind, value=value, param=kind)).text()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grammar", "wanted"),
    [
        ("start: A\nA: B B\nB: /a/", True),
        ('start: A\n_A: "a"\n  _B_1: _A _A', True),
        ("start: A\nA: /a/", False),
        ("start: a a\na: b b\nb: /c/", False),
        ('root ::= a a\na ::= [A-Z] "B"', False),
        ('start: a // \\\nA: B\nB: "b"', True),
        ('start: a\na: "\\nA" "\\nB"', False),
    ],
)
def test_terminals_that_may_name_each_other_are_tried(grammar: str, wanted: bool) -> None:
    assert needs_trial(grammar_of("grammar", grammar)) is wanted
    inside = '{"grammars":[{"name":"main","lark_grammar":"start: @p"},{"name":"p","lark_grammar":%s}]}'
    assert needs_trial(inside % json.dumps(grammar_of("grammar", grammar))) is wanted


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json_schema", {"type": "object", "properties": {"Name": {"type": "string", "pattern": "^[A-Z]\\n[A-Z]$"}}}),
        ("json_object", None),
        ("regex", "[A-Z]+\n[A-Z]+"),
        ("choice", ["Yes\nNo", "No\nYes"]),
        ("structural_tag", {"triggers": ["<f"], "structures": [{"begin": "<f>\nA\n", "schema": {}, "end": "</f>"}]}),
    ],
)
def test_what_is_bounded_otherwise_is_not_tried(kind: str, value: object) -> None:
    text = grammar_of(kind, value)
    assert "\\n" in text or kind == "json_object"
    assert not needs_trial(text)
