"""`headway inspect`: what a model is made of, from its files' metadata alone."""

from typing import Any

from typer.core import TyperCommand

from headway.cli.options import make_command, model_argument, setting_options, split_settings
from headway.cli.resolve import resolve_settings
from headway.cli.terminal import fetch_bar, say
from headway.config import CheckpointConfig, EngineConfig
from headway.errors import InvalidConfig


def make() -> TyperCommand:
    """The command."""
    return make_command(
        _act,
        [model_argument(), *setting_options(names=("cache_dir", "revision", "max_model_len", "quantization"))],
        help_text="Show what a model is made of: its Program, one line an operation, and what its weights run as.",
    )


def _act(given: dict[str, Any]) -> None:
    from headway.checkpoint.checkpoint import open_checkpoint
    from headway.checkpoint.sources import resolve_source
    from headway.model.program import describe
    from headway.model.registry import make_program
    from headway.planner.kv_kinds import describe_kv
    from headway.planner.native_costs import describe_forms

    flags, config, _ = split_settings(given)
    settings = resolve_settings(flags, config)
    if settings.model is None:
        raise InvalidConfig("no model is named: headway inspect demo", param="model")
    with fetch_bar() as bar:
        path = resolve_source(
            settings.model, CheckpointConfig(cache_dir=settings.cache_dir, revision=settings.revision), bar
        )
    checkpoint = open_checkpoint(path)
    program = make_program(checkpoint.shape, max_model_len=settings.max_model_len)
    say(str(path))
    say(describe(program))
    for line in describe_kv(program):
        say(line)
    lacking = program.weights.keys() - checkpoint.weights.shapes().keys()
    if lacking:
        say(f"the files lack {len(lacking)} of its weights: {', '.join(sorted(lacking)[:5])}", style="yellow")
        return
    types = {name: checkpoint.weights.type_of(name) for name in program.weights}
    for line in describe_forms(program, types, EngineConfig(quantization=settings.quantization)):
        say(line)
