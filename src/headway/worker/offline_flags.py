"""Keyword arguments of LLM and AsyncLLM: `headway serve`'s flags that are about the model, as configs."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from headway.config import (
    BatchingMode,
    CheckpointConfig,
    Dtype,
    EngineConfig,
    ExecutorName,
    KVCacheDtype,
    ModelConfig,
    Quantization,
    SchedulingPolicy,
    TextConfig,
    default_cache_dir,
)
from headway.errors import InvalidConfig


class Flags(TypedDict, total=False):
    """What LLM and AsyncLLM take beside the model; config.py says what each means."""

    dtype: Dtype
    quantization: Quantization | None
    kv_cache_dtype: KVCacheDtype
    executor: ExecutorName
    device: str
    enforce_eager: bool
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    step_target_s: float
    block_size: int
    kv_cache_memory: int | float | None
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    enable_kv_cache: bool
    force_tokens: bool
    scheduling_policy: SchedulingPolicy
    scheduling_ageing_s: float
    batching: BatchingMode
    max_queue_delay_ms: float
    warm_prefix: str | None
    warm_chat_template: str | None
    seed: int | None
    threads: int | None
    strict: bool
    max_preemptions: int
    chat_template: str | None
    generation_config: Literal["auto", "headway"] | str
    tool_call_parser: str
    reasoning_parser: str
    served_model_name: str
    cache_dir: str | Path
    revision: str | None


def make_configs(model: str, flags: Flags) -> tuple[ModelConfig, CheckpointConfig]:
    """The configs that the flags name. Raises InvalidConfig for one that there is not, or whose value is none."""
    known = set(Flags.__annotations__)
    unknown = sorted(set(flags) - known)
    if unknown:
        raise InvalidConfig(f"there is no flag {unknown[0]!r}; there are: {', '.join(sorted(known))}", param=unknown[0])
    values = cast(dict[str, Any], flags)
    engine, text = (
        {field.name: values[field.name] for field in fields(kind) if field.name in values}
        for kind in (EngineConfig, TextConfig)
    )
    name = values.get("served_model_name")
    checkpoint = CheckpointConfig(
        cache_dir=Path(values["cache_dir"]) if "cache_dir" in values else default_cache_dir(),
        revision=values.get("revision"),
    )
    config = ModelConfig(
        source=str(model),
        served_names=(name,) if name else (),
        engine=EngineConfig(**engine),
        text=TextConfig(**text),
    )
    return config, checkpoint
