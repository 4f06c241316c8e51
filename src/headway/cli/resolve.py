"""Reads the settings: flags, then the environment, then the YAML file, then defaults: the first with a value wins."""

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from headway.cli.fields import ENV_PREFIX, env_name, flag_name
from headway.cli.refused import advice_on
from headway.cli.settings import Settings
from headway.errors import InvalidConfig


def resolve_settings(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """The settings from what was typed (`flags`, by field name), the environment, and the YAML file.

    Args:
        flags: only those that were given.
        config: the YAML file; None: HEADWAY_CONFIG, if that is set.

    Raises:
        InvalidConfig: names where the value stands, the value (not of a key), and what fits.
    """
    path = config or (Path(named) if (named := os.environ.get("HEADWAY_CONFIG")) else None)
    kind = Settings if path is None else _settings_of(path)
    try:
        return kind(**flags)
    except ValidationError as error:
        raise InvalidConfig("\n".join(_explain(line, flags, path) for line in error.errors())) from None


def key_to_send(flags: Mapping[str, Any], settings: Settings) -> str | None:
    """The key for a server's routes for admins: the one that was typed, else the admin's, else the users'."""
    keys = settings.api_key if "api_key" in flags else settings.admin_api_key or settings.api_key
    return keys[0] if keys else None


def _settings_of(path: Path) -> type[Settings]:
    from headway.cli.yaml_file import read_yaml

    return _settings_with(read_yaml(path, list(Settings.model_fields)))


def _settings_with(values: dict[str, Any]) -> type[Settings]:
    """Settings that fall back to these values before the defaults."""

    class SettingsOfFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *args: Any, **sources: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            first = super().settings_customise_sources(settings_cls, *args, **sources)
            return *first, InitSettingsSource(settings_cls, init_kwargs=values)

    return SettingsOfFile


def _explain(error: Any, flags: Mapping[str, Any], path: Path | None) -> str:
    """One line for one wrong value."""
    name = str(error["loc"][0])
    field = Settings.model_fields[name]
    if name in flags:
        where = "MODEL" if name == "model" else flag_name(name)
    elif os.environ.get(env_name(name)):
        where = env_name(name)
    else:
        where = f"{name.replace('_', '-')} in {path}"
    value = "" if name.endswith("api_key") else f" is {error['input']!r}"
    return f"{where}{value}: {_reason(field, error['msg'])}"


def _reason(field: FieldInfo, message: str) -> str:
    kinds = (field.annotation, *get_args(field.annotation))  # Literal["a", "b"], or that or None
    choices = [choice for kind in kinds for choice in get_args(kind) if isinstance(choice, str)]
    if choices:
        return f"it must be one of {', '.join(choices)}"
    if field.annotation is bool:
        return "it must be true or false"
    return message.removeprefix("Value error, ").replace("Input should be", "it must be")


def misspelt_variables(environ: Iterable[str]) -> list[str]:
    """A line for each HEADWAY_* variable that is none but looks like one, or is a flag of others: nothing else would
    tell of it."""
    known = [env_name(name) for name in Settings.model_fields]
    lines = []
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in known:
            continue
        advice = advice_on(name.removeprefix(ENV_PREFIX).lower())
        found = get_close_matches(name, known, 1, 0.85)
        if advice or found:
            words = advice or f"did you mean {found[0]}?"
            lines.append(f"{name} is no setting of Headway and has no effect; {words}")
    return lines
