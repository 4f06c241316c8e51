"""`headway generate`: continues a prompt, and writes nothing but the text to stdout."""

import asyncio
import sys
from typing import Any

import typer
from typer.core import TyperCommand

from headway.cli.answers import Ask
from headway.cli.asking import asking_options, find_answerer, print_answer, read_stdin, sampling_options
from headway.cli.options import make_command, parameter, split_settings
from headway.cli.resolve import resolve_settings

_DEFAULT_MODEL = "demo"
# A text may have no end of its own: without a limit it would fill the context.
_DEFAULT_MAX_TOKENS = 256


def make() -> TyperCommand:
    """The command."""
    prompt = typer.Argument(..., metavar="PROMPT", help="The text to continue; - reads it from stdin.")
    model = typer.Option(None, "--model", "-m", metavar="MODEL", help="As in `headway serve`. Default: demo.")
    chat = typer.Option(None, "--chat", help="Put the prompt as a message into the model's chat template.")
    return make_command(
        _act,
        [
            parameter("prompt", str, prompt),
            parameter("model", str, model),
            parameter("chat", bool, chat),
            *asking_options("256"),
        ],
        help_text="Continue a prompt; the text goes to stdout as it is made.",
    )


def _act(given: dict[str, Any]) -> None:
    flags, config, rest = split_settings(given)
    settings = resolve_settings(flags, config)
    if "url" not in rest and settings.model is None:
        flags["model"] = _DEFAULT_MODEL
    text = read_stdin() if rest["prompt"] == "-" else rest["prompt"]
    options = {"max_tokens": _DEFAULT_MAX_TOKENS, **sampling_options(rest, settings)}
    ask = (
        Ask(messages=({"role": "user", "content": text},), options=options)
        if rest.get("chat")
        else Ask(prompt=text, options=options)
    )

    start = find_answerer(rest, flags, config)

    async def answer() -> None:
        answerer = await start()
        try:
            await print_answer(answerer, ask, sys.stdout, [])
        finally:
            await answerer.aclose()

    asyncio.run(answer())
