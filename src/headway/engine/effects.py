"""Options that would have no effect beside what else was asked for: refused by name, never ignored in silence.

Refused is what differs from its default. Left alone is what only asks for what is so anyway: --no-enable-prefix-caching
beside --no-kv-cache, --insecure on localhost, --non-strict with a model whose tensors match.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from headway.config import EngineConfig
from headway.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class _Rule:
    """When an option has no effect, and what to say of it."""

    option: str
    is_idle: Callable[[EngineConfig], bool]
    reason: str


_RULES = (
    _Rule(
        "max_queue_delay_ms",
        lambda config: config.batching == "continuous",
        "batching is continuous, where no batch waits to be full: leave it out, or take --batching dynamic or static",
    ),
    _Rule(
        "scheduling_ageing_s",
        lambda config: config.scheduling_policy == "fcfs",
        "scheduling_policy is fcfs, where who came first goes first however long others wait: leave it out, or take "
        "--scheduling-policy priority, sjf or fair",
    ),
    _Rule(
        "step_target_s",
        lambda config: not config.enable_chunked_prefill,
        "without chunked prefill no prompt is cut to fit into a step: leave it out, or leave --no-chunked-prefill out",
    ),
)
_ENCODER_OPTIONS = frozenset(
    {
        "dtype",
        "quantization",
        "kv_cache_dtype",
        "executor",
        "device",
        "max_model_len",
        "memory_limit",
        "max_num_seqs",
        "max_num_batched_tokens",
        "threads",
        "strict",
    }
)
"""Of EngineConfig, what loading an encoder reads."""


def check_effects(config: EngineConfig) -> None:
    """What can be known of a language model's options whatever the model and the device. Raises InvalidConfig."""
    for rule in _RULES:
        if rule.is_idle(config):
            _check_default(config, rule.option, rule.reason)


def check_device_effects(config: EngineConfig, *, on_gpu: bool) -> None:
    """What depends on the device. Raises InvalidConfig."""
    if not on_gpu:
        _check_default(
            config, "enforce_eager", "the model is computed on the CPU, where no step is captured: leave it out"
        )


def check_encoder_effects(config: EngineConfig, source: Path) -> None:
    """What an encoder has no use for. Raises InvalidConfig."""
    for field in fields(EngineConfig):
        if field.name not in _ENCODER_OPTIONS:
            reason = f"{source} is an encoder, which has no KV cache, makes no tokens and is not split: leave it out"
            _check_default(config, field.name, reason)


def _check_default(config: EngineConfig, option: str, reason: str) -> None:
    value = getattr(config, option)
    if value != _DEFAULTS[option] and value != _UNBOUNDED.get(option):
        raise InvalidConfig(f"{option} is {value}, and {reason}", param=option)


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(EngineConfig)}
_UNBOUNDED = {"step_target_s": 0.0}
"""What asks for no limit is so anyway where there is none."""
