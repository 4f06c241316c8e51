"""`headway doctor`: can this machine and installation serve a model? One line a finding; exit code 1 if it can not."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from headway.cli.checks import (
    Check,
    check_cache,
    check_demo,
    check_executors,
    check_extras,
    check_gpus,
    check_memory,
    check_module,
    check_port,
    check_processor,
    check_python,
    check_settings,
    find_port_holder,
)
from headway.cli.options import make_command, parameter, setting_options, split_settings
from headway.cli.resolve import misspelt_variables, resolve_settings
from headway.cli.settings import Settings
from headway.cli.terminal import say
from headway.errors import InvalidConfig

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}
_NATIVE_ADVICE = "install Headway again with a C++ compiler there (apt install g++ python3-dev)"


def make() -> TyperCommand:
    """The command."""
    as_json = parameter("json", bool, typer.Option(None, "--json", help="Print the findings as JSON."))
    return make_command(
        _act,
        [*setting_options(names=("host", "port", "cache_dir")), as_json],
        help_text="Check this machine and installation; exit code 1 if something that is needed is missing.",
    )


def _act(given: dict[str, Any]) -> int:
    flags, config, rest = split_settings(given)
    checks = examine(flags, config)
    if rest.get("json"):
        say(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _print(checks)
    return int(any(check.status == "missing" for check in checks))


def examine(flags: Mapping[str, Any], config: Path | None) -> list[Check]:
    """All findings, in the order in which they are printed."""
    from headway.checkpoint.demo import is_demo_cached
    from headway.observe.gpus import open_gpus
    from headway.observe.machine import available_memory_bytes, isa_flags, total_memory_bytes, usable_cores

    settings, mistake = _settings(flags, config)
    return [
        check_python(),
        check_processor(isa_flags(), usable_cores(), os.cpu_count() or 1),
        check_memory(available_memory_bytes(), total_memory_bytes()),
        check_cache(settings.cache_dir),
        check_demo(is_demo_cached(settings.cache_dir)),
        _formats(),
        check_module("headway._native", needed_for="running models", advice=_NATIVE_ADVICE, is_needed=True),
        check_executors(),
        check_gpus(open_gpus()),
        check_extras(),
        check_port(settings.host, settings.port, find_port_holder),
        check_settings(mistake, misspelt_variables(os.environ)),
    ]


def _settings(flags: Mapping[str, Any], config: Path | None) -> tuple[Settings, str | None]:
    """The settings, and what is wrong with them (then they are the defaults)."""
    try:
        return resolve_settings(flags, config), None
    except InvalidConfig as error:
        return Settings.model_construct(), error.message


def _formats() -> Check:
    from headway.checkpoint.ggml_types import READABLE_TYPES
    from headway.checkpoint.safetensors import READABLE_DTYPES
    from headway.model.registry import ARCHITECTURES

    detail = (
        f"GGUF ({', '.join(READABLE_TYPES)}), safetensors ({', '.join(READABLE_DTYPES)}); "
        f"architectures: {', '.join(sorted(ARCHITECTURES))}"
    )
    return Check("formats", "ok", detail)


def _print(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        advice = f" -> {check.advice}" if check.advice else ""
        say(f"{check.status:<8} {check.name:<{width}}  {check.detail}{advice}", style=_STYLES[check.status])
