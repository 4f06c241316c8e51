"""`headway pull`: downloads a model into the cache, so that serving it later needs no network."""

from typing import Any

import typer
from typer.core import TyperCommand

from headway.cli.options import make_command, parameter, setting_options, split_settings
from headway.cli.resolve import resolve_settings
from headway.cli.terminal import fetch_bar, say
from headway.config import CheckpointConfig


def make() -> TyperCommand:
    """The command."""
    source = parameter("source", str, typer.Argument(..., metavar="MODEL", help="demo, or a hub id (ORG/NAME)."))
    return make_command(
        _act,
        [source, *setting_options(names=("cache_dir", "revision"))],
        help_text="Download a model into the cache; prints where it is.",
    )


def _act(given: dict[str, Any]) -> None:
    from headway.checkpoint.sources import resolve_source

    flags, config, rest = split_settings(given)
    settings = resolve_settings(flags, config)
    with fetch_bar() as bar:
        path = resolve_source(
            rest["source"], CheckpointConfig(cache_dir=settings.cache_dir, revision=settings.revision), bar
        )
    say(str(path))
