"""`headway version`."""

from typing import Any

from typer.core import TyperCommand

from headway import __version__
from headway.cli.options import make_command
from headway.cli.terminal import say


def make() -> TyperCommand:
    """The command."""
    return make_command(_act, [], help_text="Print the version.")


def _act(given: dict[str, Any]) -> None:
    say(f"headway {__version__}")
