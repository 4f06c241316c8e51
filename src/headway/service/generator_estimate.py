"""What a language model needs that transformers runs (Framework.is_foreign_engine): its weights, and keys and values
within the same shares as Headway's own engine has.

The size of a token's keys and values is read from config.json; the worker measures it, and keeps to the bytes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.config import ModelConfig
from headway.errors import OutOfMemory
from headway.observe.sizes import size_text
from headway.service.estimate import ModelEstimate, device_of, estimate_model, expected_load_s, with_cache
from headway.service.events import CPU, Amounts, Need

PROCESS_BYTES = 320 << 20
"""Of torch and transformers, and of what a step computes with; measured with a small model."""
_CUDA_HOST_BYTES = 1536 << 20
_KV_SHARE = 0.25
_WEIGHTS_FACTOR = 1.05
_DEFAULT_LEN = 4096
_MAX_CONFIG_BYTES = 4 << 20
_DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def estimate_generator(model: ModelConfig, path: Path, budget: Amounts) -> ModelEstimate:
    """The need of a model whose folder is `path`. Blocks. Raises OutOfMemory: alone it does not fit into the budget.

    Where its config tells too little, what files of their size need.
    """
    token_bytes = kv_token_bytes(model, path)
    device = device_of(model)
    if token_bytes is None or device not in budget:
        return estimate_model(model, path, None, budget)
    config = _read_config(path)
    rest = _weights_bytes(model, path, config) + (PROCESS_BYTES if device == CPU else 0)
    max_len = model.options.get("max_model_len") or _first(config, "max_position_embeddings", "n_positions")
    context_bytes = token_bytes * (max_len or _DEFAULT_LEN)
    num_sequences = model.options.get("max_num_seqs") or model.engine.max_num_seqs
    told = model.options.get("kv_cache_memory")
    kv_bytes = min(told or int(_KV_SHARE * budget[device]), num_sequences * context_bytes)
    if rest + token_bytes > budget[device]:
        raise OutOfMemory(
            f"{path} needs {size_text(rest)} for its weights and its process, and all models together may have"
            f" {size_text(budget[device])}: raise the limit, or take a smaller model"
        )
    kv_bytes = min(kv_bytes, budget[device] - rest)
    amounts = {device: rest} if device == CPU else {device: rest, CPU: _CUDA_HOST_BYTES}
    need = Need(amounts, device, load_s=expected_load_s(model, rest))
    return with_cache(need, kv_bytes=kv_bytes, context_bytes=kv_bytes if told else min(context_bytes, kv_bytes))


def kv_token_bytes(model: ModelConfig, path: Path) -> int | None:
    """Of one token, as its config.json and its dtype say; None: they do not."""
    config = _read_config(path)
    layers = _first(config, "num_hidden_layers", "n_layer", "num_layers")
    heads = _first(config, "num_attention_heads", "n_head", "num_heads")
    width = _first(config, "hidden_size", "n_embd", "d_model")
    if not (layers and heads and width):
        return None
    head_dim = _first(config, "head_dim") or width // heads
    kv_heads = _first(config, "num_key_value_heads") or heads
    return 2 * layers * kv_heads * head_dim * _dtype_bytes(model, config)


def _dtype_bytes(model: ModelConfig, config: Mapping[str, Any]) -> int:
    """Of what it is computed in; 4 where nobody says."""
    asked = model.options.get("dtype") or model.engine.dtype
    return _DTYPE_BYTES.get(str(asked), 0) or _own_dtype_bytes(config)


def _own_dtype_bytes(config: Mapping[str, Any]) -> int:
    return _DTYPE_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)


def _weights_bytes(model: ModelConfig, path: Path, config: Mapping[str, Any]) -> int:
    """As wide as it is computed in."""
    num_bytes = sum(each.stat().st_size for each in path.glob("*.safetensors"))
    return int(_WEIGHTS_FACTOR * num_bytes * _dtype_bytes(model, config) / _own_dtype_bytes(config))


def _read_config(path: Path) -> Mapping[str, Any]:
    """Of the language model in it; empty where there is none: the worker tells what is wrong."""
    try:
        with (path / "config.json").open("rb") as file:
            config = json.loads(file.read(_MAX_CONFIG_BYTES))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    """The first that is a number over 0."""
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), None)
