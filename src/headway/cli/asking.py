"""What chat and generate have in common: their flags, how an answerer is made from them, and how text is streamed."""

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, TextIO

import typer

from headway.cli.answers import Answerer, Ask
from headway.cli.options import MODEL_GROUPS, parameter, setting_options
from headway.cli.resolve import resolve_settings
from headway.cli.settings import Settings
from headway.cli.terminal import AnswerWriter
from headway.errors import InvalidConfig

Start = Callable[[], Coroutine[Any, Any, Answerer]]
_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "stop")
_MAX_INPUT = 16 << 20


def asking_options(max_tokens: str) -> list[inspect.Parameter]:
    """--url and its company, sampling (`max_tokens`: its default, in words), and the settings of a model run here."""

    def option(name: str, kind: Any, metavar: str, words: str, panel: str) -> inspect.Parameter:
        flag = "--" + name.replace("_", "-")
        return parameter(name, kind, typer.Option(None, flag, metavar=metavar, help=words, rich_help_panel=panel))

    where, how = "Running server", "Sampling"
    return [
        option("url", str, "URL", "Ask a running server instead, e.g. http://127.0.0.1:8000.", where),
        option("model_name", str, "NAME", "The server's model. Default: its first.", where),
        option("max_tokens", int, "TOKENS", f"The longest answer. Default: {max_tokens}.", how),
        option(
            "temperature",
            float,
            "T",
            "0 always takes the likeliest token. Default: the model's, else 0.7 here and the server's there.",
            how,
        ),
        option("top_p", float, "P", "Only the likeliest tokens that make up this probability.", how),
        option("top_k", int, "K", "Only the K likeliest tokens.", how),
        option("min_p", float, "P", "Only tokens at least so likely, as a share of the likeliest one.", how),
        option("stop", list[str], "TEXT", "End before this text; repeat it for more.", how),
        *setting_options(MODEL_GROUPS, names=("api_key",)),
    ]


def sampling_options(given: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """What was said about sampling, checked. Raises InvalidRequest that names the field, the value and the limit."""
    from headway.core.sampling import SamplingParams

    options = {name: given[name] for name in _SAMPLING if name in given}
    if settings.seed is not None:
        options["seed"] = settings.seed
    SamplingParams(**{**options, "stop": tuple(options.get("stop", ()))})
    return options


def find_answerer(given: Mapping[str, Any], flags: Mapping[str, Any], config: Path | None) -> Start:
    """A running server's answers with --url, else those of a model that is loaded here; started by calling it.

    Blocks, since it may download: outside of any event loop, so that Ctrl-C ends a download at once.
    """
    url = given.get("url")
    if url is None:
        from headway.cli.local import LocalAnswerer, make_service

        service = make_service(flags, config)
        return lambda: LocalAnswerer.start(service)
    unused = [name for name in flags if name not in ("api_key", "seed")]
    if unused:
        raise InvalidConfig(
            f"with --url the model runs elsewhere, so {', '.join(unused)} would have no effect: leave out either",
            param=unused[0],
        )
    from headway.cli.remote import RemoteAnswerer, base_url

    base = base_url(url)
    keys = resolve_settings(flags, config).api_key
    model = given.get("model_name")
    return lambda: RemoteAnswerer.connect(base, api_key=keys[0] if keys else None, model=model)


async def print_answer(answerer: Answerer, ask: Ask, stream: TextIO, said: list[str]) -> None:
    """Writes the pieces as they come, and adds the answer's to `said`: reasoning is none of it (AnswerWriter)."""
    writer = AnswerWriter(stream)
    try:
        async with aclosing(answerer.answer(ask)) as pieces:
            async for piece in pieces:
                if not piece.is_reasoning:
                    said.append(piece.text)
                writer.write(piece.text, is_reasoning=piece.is_reasoning)
    finally:
        writer.end()


def read_stdin() -> str:
    """All of stdin as text. Raises InvalidConfig if it is closed, empty, too long or no UTF-8."""
    if sys.stdin is None or sys.stdin.closed:
        raise InvalidConfig("stdin is closed: give the text as an argument")
    data = sys.stdin.buffer.read(_MAX_INPUT + 1)
    if len(data) > _MAX_INPUT:
        raise InvalidConfig(f"stdin is over {_MAX_INPUT} bytes: send a part of it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"stdin is no UTF-8 at byte {error.start}: convert it first") from None
    if not text.strip():
        raise InvalidConfig("stdin is empty: there is nothing to ask")
    return text
