"""chat and generate over answers that are written in the test."""

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import pytest

from headway.cli import chat, generate
from headway.cli.answers import Ask, Piece
from headway.cli.asking import print_answer
from headway.cli.conversation import Conversation
from headway.cli.main import run
from headway.errors import ContextLengthExceeded, WorkerDied


class ScriptedAnswers:
    """Answers in order: pieces, or texts; an exception is raised, a callable called."""

    title = "scripted"

    def __init__(self, *answers: Iterable[str | Piece | Exception | Callable[[], Any]]) -> None:
        self.answers = list(answers)
        self.asks: list[Ask] = []
        self.num_closed = 0
        self.num_ended = 0
        self.given: tuple[Any, ...] = ()

    async def answer(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        self.asks.append(ask)
        try:
            for piece in self.answers.pop(0):
                if isinstance(piece, Exception):
                    raise piece
                if callable(piece):
                    piece()
                    await asyncio.Event().wait()  # what was called ends this
                else:
                    yield piece if isinstance(piece, Piece) else Piece(piece)
        finally:
            self.num_ended += 1

    async def aclose(self) -> None:
        self.num_closed += 1


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[ScriptedAnswers], ScriptedAnswers]:
    def install(answers: ScriptedAnswers) -> ScriptedAnswers:
        async def start() -> ScriptedAnswers:
            return answers

        def find_answerer(*given: Any) -> Any:
            answers.given = given
            return start

        for module in (chat, generate):
            monkeypatch.setattr(module, "find_answerer", find_answerer)
        return answers

    return install


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lines that a person types; an exception is what a key does. After the last comes Ctrl-D."""

    def type_in(*lines: str | BaseException) -> None:
        typed = [*lines, EOFError()]

        def next_line(prompt: str = "") -> str:
            line = typed.pop(0)
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", next_line)
        monkeypatch.setattr(chat, "is_terminal", lambda stream: True)

    return type_in


def put_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_quick_asks_once_and_prints_the_text_alone(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answers = install(ScriptedAnswers(["Hel", "lo ", "🚢"]))
    assert (
        run(["chat", "--quick", "hi", "--system", "Be brief.", "--max-tokens", "5", "--stop", "x", "--seed", "3"]) == 0
    )
    assert capsys.readouterr() == ("Hello 🚢", "")
    (ask,) = answers.asks
    assert list(ask.messages) == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert ask.options == {"max_tokens": 5, "stop": ["x"], "seed": 3}
    assert (answers.num_closed, answers.num_ended) == (1, 1)


def test_a_pipe_is_one_question(
    install: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = install(ScriptedAnswers(["ok"]))
    put_stdin(monkeypatch, "two\nlines é\n".encode())
    assert run(["chat"]) == 0
    assert capsys.readouterr().out == "ok"
    assert answers.asks[0].messages[-1]["content"] == "two\nlines é\n"


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "stdin is empty"), (b" \n", "stdin is empty"), (b"ab\xff", "no UTF-8 at byte 2")]
)
@pytest.mark.parametrize("args", [["chat"], ["generate", "-"]])
def test_a_pipe_that_can_not_be_a_question_is_told(
    args: list[str],
    data: bytes,
    words: str,
    install: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(ScriptedAnswers())
    put_stdin(monkeypatch, data)
    assert run(args) == 2
    assert words in capsys.readouterr().err


def test_a_conversation_remembers_until_it_is_told_to_forget(
    install: Any, type_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = install(ScriptedAnswers(["one"], ["two"], ["three"], ["four"]))
    type_in("a", "", "b", "/reset", "c", "/system Be kind.", "d", "/nonsense", "/exit", "never")
    assert run(["chat"]) == 0
    assert [[message["content"] for message in ask.messages] for ask in answers.asks] == [
        ["a"],
        ["a", "one", "b"],
        ["c"],
        ["Be kind.", "d"],
    ]
    out, err = capsys.readouterr()
    assert out == "onetwothreefour"
    assert "/nonsense is no command" in err
    assert "/help lists the commands" in err


def test_ctrl_c_stops_the_answer_and_not_the_program(
    install: Any, type_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = install(ScriptedAnswers(["par", lambda: os.kill(os.getpid(), signal.SIGINT)], ["next"]))
    type_in("a", KeyboardInterrupt(), "b")
    assert run(["chat"]) == 0
    assert answers.num_ended == 2
    assert [message["content"] for message in answers.asks[1].messages] == ["a", "par", "b"]
    out, err = capsys.readouterr()
    assert out == "parnext"
    assert "(stopped)" in err
    assert "Ctrl-D leaves" in err


def test_ctrl_c_during_a_single_answer_ends_the_program_with_130(
    install: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = install(ScriptedAnswers(["par", lambda: os.kill(os.getpid(), signal.SIGINT)]))
    assert run(["chat", "-q", "a"]) == 130
    assert capsys.readouterr().out == "par"
    assert (answers.num_closed, answers.num_ended) == (1, 1)


def test_a_fault_costs_its_question_and_not_the_conversation(
    install: Any, type_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = install(ScriptedAnswers(["one"], [ContextLengthExceeded("9000 tokens are over 8192")], ["three"]))
    type_in("a", "b", "c")
    assert run(["chat"]) == 0
    assert [message["content"] for message in answers.asks[2].messages] == ["a", "one", "c"]
    assert "headway: 9000 tokens are over 8192\n" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


THOUGHT = [Piece("Hm \x1b[31m", is_reasoning=True), Piece("so.", is_reasoning=True), "It is ", "so."]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (THOUGHT, "<Hm [31m><so.>\n\nIt is so.\n"),
        ([Piece("Hm\n", is_reasoning=True), "So."], "<Hm>\n\nSo.\n"),
        ([Piece("Hm", is_reasoning=True), WorkerDied("it died")], "<Hm>\n"),
    ],
)
async def test_a_terminal_shows_reasoning_dimmed_and_apart_from_the_answer(
    pieces: list[Any], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, said = Terminal(), list[str]()
    with contextlib.suppress(WorkerDied):
        await print_answer(ScriptedAnswers(pieces), Ask(prompt="x"), terminal, said)
    assert terminal.getvalue().replace("\x1b[2m", "<").replace("\x1b[0m", ">") == shown
    assert said == [piece for piece in pieces if isinstance(piece, str)]


async def test_a_pipe_gets_the_answer_alone() -> None:
    pipe = io.StringIO()
    await print_answer(ScriptedAnswers(THOUGHT), Ask(prompt="x"), pipe, [])
    assert pipe.getvalue() == "It is so."


@pytest.mark.parametrize("pieces", [["one"], ["one", "\n"], ["one", WorkerDied("it died")]])
async def test_however_an_answer_ends_the_next_line_of_a_terminal_begins_at_its_start(
    pieces: list[str | Exception],
) -> None:
    terminal = Terminal()
    with contextlib.suppress(WorkerDied):
        await print_answer(ScriptedAnswers(pieces), Ask(prompt="x"), terminal, [])
    assert terminal.getvalue() == "one\n"


def test_a_fault_of_a_single_question_is_the_commands_exit_code(
    install: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = install(ScriptedAnswers([ContextLengthExceeded("too long")]))
    assert run(["chat", "-q", "a"]) == 2
    assert capsys.readouterr() == ("", "headway: too long\n")
    assert answers.num_closed == 1


@pytest.mark.parametrize(
    ("line", "act", "words"),
    [
        ("/exit", "exit", ""),
        ("/reset", "go on", "(forgotten)"),
        ("/system", "go on", "(removed)"),
        ("/help", "go on", "Ctrl-C stops an answer"),
        ("/Exit", "go on", "is no command"),
    ],
)
def test_each_command_does_what_help_says(line: str, act: str, words: str) -> None:
    conversation = Conversation("old")
    conversation.add("q", "a")
    did, told = conversation.command(line)
    assert did == act
    assert words in told


def test_a_question_without_an_answer_is_not_kept() -> None:
    conversation = Conversation()
    conversation.add("q", "")
    assert conversation.turns == []


def test_generate_streams_the_text_and_nothing_else(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answers = install(ScriptedAnswers([" a", " time\n"]))
    assert run(["generate", "Once upon", "--temperature", "0", "--top-k", "5"]) == 0
    assert capsys.readouterr() == (" a time\n", "")
    (ask,) = answers.asks
    assert (ask.prompt, ask.options) == ("Once upon", {"max_tokens": 256, "temperature": 0.0, "top_k": 5})
    assert answers.given[1] == {"model": "demo"}


def test_generate_reads_stdin_for_a_dash_and_takes_a_message_with_chat(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = install(ScriptedAnswers(["x"], ["y"]))
    put_stdin(monkeypatch, b"from a pipe")
    assert run(["generate", "-"]) == 0
    assert run(["generate", "hi", "--chat", "-m", "org/name"]) == 0
    assert answers.asks[0].prompt == "from a pipe"
    assert answers.asks[1].prompt is None
    assert list(answers.asks[1].messages) == [{"role": "user", "content": "hi"}]
    assert answers.given[1] == {"model": "org/name"}


def test_the_model_of_the_environment_is_taken_before_the_demo(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_MODEL", "org/other")
    answers = install(ScriptedAnswers(["x"], ["y"]))
    assert run(["generate", "hi"]) == 0
    assert run(["chat", "-q", "hi"]) == 0
    assert answers.given[1] == {}


def test_a_closed_stdin_is_no_crash() -> None:
    code = "from headway.cli import start; start()"
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" generate - --url http://127.0.0.1:1 <&-', sys.executable, code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "stdin is" in done.stderr
