"""`headway`: the commands, loaded when they are called, so that --help and completion are quick; and the one place
where an error becomes a line and an exit code (2 the caller's mistake, 1 anything else, 130 interrupted)."""

import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from headway.errors import InvalidConfig

COMMANDS = {
    "serve": ("headway.cli.serve", "Serve a model over HTTP (OpenAI's routes and plain JSON)."),
    "chat": ("headway.cli.chat", "Chat with a model in the terminal."),
    "generate": ("headway.cli.generate", "Continue a prompt, and print the text."),
    "top": ("headway.cli.top", "Watch a running server: throughput, queues, KV cache, latencies."),
    "profile": ("headway.cli.profile", "Record the next steps of a running server, as a trace file."),
    "models": ("headway.cli.models", "The catalog: add, list, change and load models."),
    "pull": ("headway.cli.pull", "Download a model: demo, or a hub id."),
    "convert": ("headway.cli.convert", "Turn a pickle checkpoint into safetensors."),
    "inspect": ("headway.cli.inspect", "Show what a model is made of, without running it."),
    "env": ("headway.cli.env", "Make environments for models of other frameworks."),
    "doctor": ("headway.cli.doctor", "Check this machine and installation."),
    "version": ("headway.cli.version", "Print the version."),
}
"""Name to the module, whose make() gives the command, and the line in the list."""
_OTHERS_FLAGS_IN = frozenset({"serve", "chat", "generate"})


class LazyGroup(TyperGroup):
    """Lists the commands from the table, and loads the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As typer does, with the listed command replaced by the real one."""
        name, listed, rest = super().resolve_command(ctx, args)
        if name in COMMANDS and listed is not None:
            command: TyperCommand | TyperGroup = importlib.import_module(COMMANDS[name][0]).make()
            command.name = name
            return name, command, rest
        return name, listed, rest


def _app() -> typer.Typer:
    app = typer.Typer(
        cls=LazyGroup,
        name="headway",
        help="Headway serves models: a language model on this machine's CPU, behind OpenAI's API.",
        epilog="Begin with: headway serve demo",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def _root(
        _version: bool = typer.Option(
            False, "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ) -> None:
        pass

    for name, (_, line) in COMMANDS.items():
        app.command(name, help=line)(_listed)
    return app


def _listed() -> None:
    """Stands for a command in the list; resolve_command replaces it before it can be called."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from headway import __version__

        typer.echo(f"headway {__version__}")
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point. Ends the process with the exit code."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(args: list[str]) -> int:
    """Runs a command line; returns the exit code, and has printed what there is to say."""
    is_debugging = os.environ.get("HEADWAY_DEBUG", "") not in ("", "0")
    try:
        args = _with_dashes(args) or ["--help"]
        if args and args[0] in _OTHERS_FLAGS_IN:
            from headway.cli.refused import check_refused

            check_refused(args[1:])
        code = typer.main.get_command(_app()).main(args, prog_name="headway", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        _close_stdout()
        return 1
    except typer.TyperException as error:
        return _report(_usage(error), is_debugging)
    except Exception as error:  # the outermost frame: nothing is left that could handle it
        return _report(error, is_debugging)


def _report(error: Exception, is_debugging: bool) -> int:
    from headway.cli.terminal import report_error

    return report_error(error, is_debugging=is_debugging)


def _with_dashes(args: list[str]) -> list[str]:
    """--max_model_len=4 is --max-model-len=4; what follows -- is left alone."""
    end = args.index("--") if "--" in args else len(args)
    return [_with_dash(arg) for arg in args[:end]] + args[end:]


def _with_dash(arg: str) -> str:
    flag, equals, value = arg.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") and " " not in flag else arg


def _usage(error: typer.TyperException) -> "InvalidConfig":
    """A mistake in the command line, in our words: what, the nearest that there is, and where to look."""
    from headway.errors import InvalidConfig

    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "headway"
    name = getattr(error, "option_name", None)
    if name is None or type(error).__name__ != "NoSuchOption":
        message = error.format_message().rstrip(".")
        return InvalidConfig(f"{message[0].lower()}{message[1:]} ({path} --help)" if message else f"see {path} --help")
    known = [flag for each in context.command.params for flag in (*each.opts, *each.secondary_opts)] if context else []
    found = get_close_matches(name, known, 1, 0.6)
    hint = f"did you mean {found[0]}?" if found else f"{path} --help lists them"
    return InvalidConfig(f"{name} is not a flag of {path}; {hint}", param=name)


def _close_stdout() -> None:
    """The reader has gone (| head): nothing more is written, and the interpreter's own flush must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
