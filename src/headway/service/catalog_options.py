"""An entry's options, and the ModelConfig that an entry means.

Of framework headway the options are fields of EngineConfig and TextConfig; of others they are the predictor's, which
checks them as it loads.
"""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import msgspec

from headway.config import EngineConfig, ModelConfig, ResidencyConfig, TextConfig
from headway.core.catalog import CatalogEntry
from headway.engine.effects import check_effects
from headway.errors import InvalidConfig, InvalidRequest
from headway.service.remote.options import check_remote_options

_ENGINE = frozenset(field.name for field in fields(EngineConfig)) - {"device", "memory_limit", "warm_chat_template"}
_TEXT = frozenset(field.name for field in fields(TextConfig))
_MAY_BE_ZERO = frozenset({"seed", "step_target_s", "max_queue_delay_ms", "max_preemptions"})


def check_options(framework: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for what the engine has not, or can not have so, and for options of models on other servers
    that there are not: a key in clear must not get into the catalog. Other frameworks check as they load."""
    if framework == "headway":
        engine_of(options, "auto")
        return
    try:
        check_remote_options(framework, options)
    except InvalidConfig as error:
        raise InvalidRequest(error.message, param="options") from None


def engine_of(options: Mapping[str, Any], device: str) -> tuple[EngineConfig, TextConfig]:
    """The configs that options of framework headway mean. Raises InvalidRequest."""
    given = {name.replace("-", "_"): value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in _ENGINE | _TEXT:
            near = get_close_matches(name, _ENGINE | _TEXT, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(sorted(_ENGINE | _TEXT))}"
            raise InvalidRequest(f"options has {name[:64]!r}, which framework headway has not; {hint}", param="options")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not (value > 0 or (value == 0 and name in _MAY_BE_ZERO)):
            raise InvalidRequest(f"options.{name} is {value}; it must be over 0", param=f"options.{name}")
    try:
        engine = msgspec.convert({k: v for k, v in given.items() if k in _ENGINE} | {"device": device}, EngineConfig)
        text = msgspec.convert({k: v for k, v in given.items() if k in _TEXT}, TextConfig)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"options can not be used: {error}", param="options") from None
    try:
        check_effects(engine)
    except InvalidConfig as error:
        raise InvalidRequest(f"options: {error.message}", param="options") from None
    return engine, text


def to_config(entry: CatalogEntry) -> ModelConfig:
    """What is served where the entry is. Raises InvalidRequest."""
    is_ours = entry.framework == "headway"
    engine, text = engine_of(entry.options, entry.device) if is_ours else (EngineConfig(), TextConfig())
    options = {} if is_ours else dict(entry.options)
    if not is_ours and entry.device != "auto":
        options.setdefault("device", entry.device)
    return ModelConfig(
        source=entry.source or entry.id,
        served_names=(entry.id, *entry.aliases),
        engine=engine,
        text=text,
        framework=entry.framework,
        type=entry.type,
        version=entry.version,
        is_default=entry.is_default,
        description=entry.description or entry.name,
        interpreter=entry.interpreter,
        options=options,
        infer=entry.infer,
        residency=ResidencyConfig(
            expected_bytes=entry.measured_bytes or entry.expected_bytes,
            expected_load_s=entry.measured_load_s or entry.expected_load_s,
            is_pinned=entry.is_pinned,
            idle_timeout_s=entry.idle_timeout_s,
        ),
        presets=entry.presets,
        sha256=entry.sha256,
    )


def runs_alike(one: ModelConfig, other: ModelConfig) -> bool:
    """Whether a process that was started for one serves the other: they differ in names and residency alone."""
    free = {"served_names", "is_default", "description", "residency", "presets"}
    return all(getattr(one, each.name) == getattr(other, each.name) for each in fields(one) if each.name not in free)
