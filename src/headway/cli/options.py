"""Makes typer commands out of the settings' fields, so that a flag is written once: in settings.py."""

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperCommand
from typer.main import get_command

from headway.cli.fields import Flag, flag_name, flag_of
from headway.cli.settings import Settings

MODEL_GROUPS = ("Model", "Engine", "Text")
Act = Callable[[dict[str, Any]], int | None]
EPILOG = (
    "Each flag is also an environment variable (--max-num-seqs: HEADWAY_MAX_NUM_SEQS) and a key of the --config file."
)
ALL_GROUPS = (*MODEL_GROUPS, "Models", "Server", "Logs")


def setting_options(groups: Collection[str] = (), names: Collection[str] = ()) -> list[inspect.Parameter]:
    """--config, and an option for each field that is named or is in one of the groups."""
    config = "A YAML file of settings; each key is a flag's name. Also HEADWAY_CONFIG."
    parameters = [parameter("config", Path, typer.Option(None, "--config", metavar="FILE", help=config))]
    for name, field in Settings.model_fields.items():
        flag = flag_of(field.metadata)
        if name != "model" and (flag.group in groups or name in names):
            parameters.append(_option(name, flag, field.description or "", _shown(field.default)))
    return parameters


def model_argument() -> inspect.Parameter:
    """MODEL, which the environment or the YAML file may give instead."""
    return parameter(
        "model", str, typer.Argument(None, metavar="MODEL", help=Settings.model_fields["model"].description)
    )


def parameter(name: str, kind: Any, info: Any) -> inspect.Parameter:
    """One parameter of a command: `info` is a typer.Option or typer.Argument whose default is None."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind | None)


class GroupedCommand(TyperCommand):
    """Help in plain text, the options under their groups: rich's table cuts long flags short on a narrow terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes a section for each group, in the order of the fields."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(each, "rich_help_panel", None) or "Options", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=34)


def make_command(
    act: Callable[[dict[str, Any]], int | None],
    parameters: list[inspect.Parameter],
    *,
    help_text: str,
    epilog: str = "",
) -> TyperCommand:
    """A command that calls act({name: value}) with what was given; a number that it returns is the exit code."""

    def run(**given: Any) -> None:
        code = act({name: value for name, value in given.items() if value is not None and value != []})
        if code:
            raise typer.Exit(code)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=GroupedCommand, help=help_text, epilog=epilog or None)(run)
    command = get_command(app)
    if not isinstance(command, TyperCommand):
        raise TypeError("typer made no single command")
    return command


def split_settings(given: Mapping[str, Any]) -> tuple[dict[str, Any], Path | None, dict[str, Any]]:
    """What was given, as (settings' flags, --config, the rest)."""
    flags = {name: value for name, value in given.items() if name in Settings.model_fields}
    rest = {name: value for name, value in given.items() if name not in flags and name != "config"}
    return flags, given.get("config"), rest


def _option(name: str, flag: Flag, help_text: str, default: str) -> inspect.Parameter:
    words = " ".join(help_text.split())
    is_list = Settings.model_fields[name].default == ()
    is_switch = not flag.metavar
    declarations = [flag_name(name) + (f"/{flag.off}" if flag.off else "")]
    if flag.also_off:
        declarations.append(f" /{flag.also_off}")  # the blank is click's way to say: off only
    info = typer.Option(
        None,
        *declarations,
        metavar=flag.metavar or None,
        help=f"{words} Default: {default}." if default else words,
        show_default=False,
        rich_help_panel=flag.group,
    )
    return parameter(name, bool if is_switch else list[str] if is_list else str, info)


def _shown(default: Any) -> str:
    """The default as the help shows it; empty where there is none, or where the help's words tell it."""
    if isinstance(default, bool):
        return "on" if default else ""
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if isinstance(default, int | str) and not get_args(default) else ""
