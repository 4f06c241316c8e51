"""`headway env`: environments for models whose framework is not to be installed beside Headway."""

import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_group

from headway.cli.terminal import note, say

Folder = Annotated[
    Path | None, typer.Option("--folder", metavar="DIR", help="Where they are. Default: ~/.local/share/headway/envs.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the environment; a model's `interpreter` names it.")]


def make() -> TyperGroup:
    """The commands."""
    app = typer.Typer(
        help="Environments with a framework of their own, for models that name one as their interpreter.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )
    app.command("create", help="Make an environment: msgspec, numpy and the packages, or a recipe.")(_create)
    app.command("list", help="Show those that there are.")(_list)
    app.command("remove", help="Remove one.")(_remove)
    return get_group(app)


def _create(
    name: Name,
    packages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PACKAGE]...",
            help="As pip takes them, or recipes: onnx, sklearn, tensorflow, torch, torchvision, transformers, vllm."
            " None: the recipe that NAME is.",
        ),
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="The interpreter that it is made of.")
    ] = None,
    folder: Folder = None,
) -> None:
    from headway.worker.environment_recipes import packages_for
    from headway.worker.environments import create_environment

    wanted, without = packages_for(name, packages or [])
    with _ended_by_sigterm():
        made = create_environment(name, wanted, without=without, python=_whole(python), folder=folder, say=note)
    say(f"{name} is ready: Python {made.python}, {len(made.packages)} packages")
    say(f'a model uses it by "interpreter": "{name}"')


def _list(folder: Folder = None) -> None:
    from headway.worker.environments import list_environments

    found = list_environments(folder)
    if not found:
        note("there are none yet: headway env create torch")
    for made in found:
        day = time.strftime("%Y-%m-%d", time.localtime(made.created))
        say(f"{made.name:<16} Python {made.python:<8} {day}  {', '.join(made.asked)}")


def _remove(name: Name, folder: Folder = None) -> None:
    from headway.worker.environments import remove_environment

    remove_environment(name, folder)
    say(f"removed {name}")


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """As by Ctrl-C: what is half made is cleared."""
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _whole(python: str | None) -> str | None:
    """python3.12 as the path of the one that the shell would run."""
    return None if python is None else shutil.which(python) or python
