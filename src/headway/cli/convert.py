"""`headway convert`: a pickle checkpoint becomes safetensors, which Headway can map without running anything."""

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from headway.cli.options import make_command, parameter
from headway.cli.terminal import fetch_bar, say


def make() -> TyperCommand:
    """The command."""
    source = typer.Argument(..., metavar="IN", help="A folder with pytorch_model.bin (or .pt, .pth), or one such file.")
    target = typer.Argument(..., metavar="OUT", help="The folder to make; must not hold a model yet.")
    return make_command(
        _act,
        [parameter("source", Path, source), parameter("target", Path, target)],
        help_text="Turn a pickle checkpoint into safetensors (needs torch; reads weights only, runs no code in it).",
    )


def _act(given: dict[str, Any]) -> None:
    from headway.checkpoint.convert import convert

    with fetch_bar() as bar:
        convert(given["source"], given["target"], bar)
    say(str(given["target"]))
