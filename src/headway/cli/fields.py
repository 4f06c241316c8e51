"""What a setting is made of: how it looks on the command line, where its value goes, and how its text is read."""

import re
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from headway.cli.sizes import parse_bytes, parse_count, parse_memory, parse_milliseconds, parse_seconds
from headway.config import (
    CatalogConfig,
    CheckpointConfig,
    Dtype,
    EngineConfig,
    ModelConfig,
    PoolConfig,
    ServerConfig,
    TextConfig,
)
from headway.server.hosts import ANY_HOST, host_name

ENV_PREFIX = "HEADWAY_"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s@?#]+")
_DTYPE_NAMES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"}
CONFIGS = {
    "model": ModelConfig,
    "engine": EngineConfig,
    "text": TextConfig,
    "pool": PoolConfig,
    "server": ServerConfig,
    "checkpoint": CheckpointConfig,
    "catalog": CatalogConfig,
}


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field looks on the command line, and where its value goes."""

    group: Literal["Model", "Engine", "Models", "Text", "Server", "Logs"]
    metavar: str
    """What stands for the value in the help; empty for an on/off flag."""
    to: str = ""
    """config.field; empty: read from the settings themselves."""
    off: str = ""
    """The flag that turns it off, for one that is on by default."""
    also_off: str = ""
    """Another name of that flag."""


def default_of(to: str) -> Any:
    """The default that config.py gives `config.field`."""
    config, name = to.split(".")
    return next(field.default for field in fields(CONFIGS[config]) if field.name == name)


def _split_list(value: object) -> object:
    """a,b and [a, "b,c"] -> three; an empty one is a mistake (an empty key would open the door)."""
    if value is None:
        return ()
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("it must be text, or a list of texts; put numbers in quotes")
    found = [piece.strip() for part in parts for piece in part.split(",")]
    if not all(found):
        raise ValueError("it has an empty entry")
    return tuple(found)


def _automatic(value: object) -> object:
    """auto, as None, where None stands for what Headway works out itself."""
    return None if isinstance(value, str) and value.strip().lower() == "auto" else value


def _dtype(value: object) -> object:
    return _DTYPE_NAMES.get(value, value) if isinstance(value, str) else value


def _origins(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value != "*" and not _ORIGIN.fullmatch(value):
            raise ValueError(f"{value!r} is no origin such as https://app.example.com or http://localhost:3000, nor *")
    return values


def _hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(value if value == ANY_HOST else host_name(value) for value in values)


def _not_blank(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise ValueError("it is empty")
    return value


Count = Annotated[int, BeforeValidator(parse_count)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Milliseconds = Annotated[float, BeforeValidator(parse_milliseconds)]
Memory = Annotated[int | float, BeforeValidator(parse_memory)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_list)]
Origins = Annotated[Names, AfterValidator(_origins)]
Hosts = Annotated[Names, AfterValidator(_hosts)]
Text = Annotated[str, AfterValidator(_not_blank)]
DtypeName = Annotated[Dtype, BeforeValidator(_dtype)]
Automatic = BeforeValidator(_automatic)
LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def flag_of(metadata: list[Any]) -> Flag:
    """The Flag of a field, from its pydantic metadata."""
    return next(entry for entry in metadata if isinstance(entry, Flag))


def flag_name(field: str) -> str:
    """max_model_len -> --max-model-len."""
    return "--" + field.replace("_", "-")


def env_name(field: str) -> str:
    """max_model_len -> HEADWAY_MAX_MODEL_LEN."""
    return ENV_PREFIX + field.upper()
