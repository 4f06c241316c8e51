"""`headway chat`: a conversation in the terminal. --quick asks once; a pipe is one question too."""

import asyncio
import contextlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand

from headway.cli.answers import Answerer, Ask
from headway.cli.asking import asking_options, find_answerer, print_answer, read_stdin, sampling_options
from headway.cli.conversation import Conversation
from headway.cli.options import make_command, model_argument, parameter, split_settings
from headway.cli.resolve import resolve_settings
from headway.cli.terminal import is_terminal, note, report_error
from headway.errors import HeadwayError

_DEFAULT_MODEL = "demo"


def make() -> TyperCommand:
    """The command."""
    quick = typer.Option(None, "--quick", "-q", metavar="TEXT", help="Ask this, print the answer, and leave.")
    system = typer.Option(None, "--system", metavar="TEXT", help="How the model is to answer.")
    return make_command(
        _act,
        [
            model_argument(),
            parameter("quick", str, quick),
            parameter("system", str, system),
            *asking_options("what the context leaves"),
        ],
        help_text="Chat with a model that is loaded here (default: demo), or with a running server (--url).",
    )


def _act(given: dict[str, Any]) -> None:
    flags, config, rest = split_settings(given)
    settings = resolve_settings(flags, config)
    if "url" not in rest and settings.model is None:
        flags["model"] = _DEFAULT_MODEL
    options = sampling_options(rest, settings)
    start = find_answerer(rest, flags, config)
    conversation = Conversation(rest.get("system", ""))
    question = rest.get("quick")
    if question is None and not is_terminal(sys.stdin):
        question = read_stdin()
    # One loop for all answers: Ctrl-C cancels the answer that runs, and the next one finds the same connections.
    with asyncio.Runner() as runner:
        answerer = runner.run(start())
        try:
            if question is not None:
                ask = Ask(messages=conversation.messages(question), options=options)
                runner.run(print_answer(answerer, ask, sys.stdout, []))
            else:
                note(f"{answerer.title}. /help lists the commands.")
                _talk(runner, answerer, conversation, options)
        finally:
            runner.run(answerer.aclose())


def _talk(runner: asyncio.Runner, answerer: Answerer, conversation: Conversation, options: dict[str, Any]) -> None:
    """Question and answer until the person leaves. A fault costs its question, not the conversation."""
    while (line := _read_line()) is not None:
        if not line.strip():
            continue
        if line.startswith("/"):
            act, words = conversation.command(line)
            if act == "exit":
                return
            note(words)
            continue
        said: list[str] = []  # kept outside, for an answer that is stopped midway
        ask = Ask(messages=conversation.messages(line), options=options)
        try:
            runner.run(print_answer(answerer, ask, sys.stdout, said))
        except KeyboardInterrupt:
            note("(stopped)")
        except HeadwayError as error:
            report_error(error, is_debugging=False)
            note("(the question is taken back; /reset begins anew)")
            continue
        conversation.add(line, "".join(said))


def _read_line() -> str | None:
    """A line that was typed; None at the end. Ctrl-C throws away what was typed so far."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() its line editing and history
    while True:
        try:
            return input("> ")
        except EOFError:
            note("")
            return None
        except KeyboardInterrupt:
            note("\n(/exit or Ctrl-D leaves)")
