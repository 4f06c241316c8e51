"""Rotary positions of a GGUF file, in config.json's words."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.shape import RopeShape
from headway.errors import CorruptCheckpoint, UnsupportedModel

_FREQUENCIES = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def read_rope(file: GgufFile, keys: Keys, head_dim: int, *, is_interleaved: bool) -> RopeShape:
    """The positions of all layers.

    Args:
        is_interleaved: the converter interleaves the rows of q and k.
    """
    dims = keys.integer("rope.dimension_count", head_dim, high=1 << 16)
    if dims % 2 or dims > head_dim:
        keys.fields.fail(keys.name("rope.dimension_count"), f"is {dims}; even numbers up to {head_dim} are possible")
    if dims != head_dim and is_interleaved:
        # The converter interleaves whole heads; which rows then belong together is not defined.
        raise UnsupportedModel(f"{keys.where} rotates {dims} of {head_dim} dimensions in a {keys.architecture} file")
    return RopeShape(
        theta=keys.number("rope.freq_base", 10000.0),
        dims=dims,
        scaling=_scaling(file, keys, dims),
        frequency_factors=_factors(file, _FREQUENCIES, dims) if _FREQUENCIES in file.tensors else (),
    )


def _scaling(file: GgufFile, keys: Keys, dims: int) -> Mapping[str, Any]:
    kind = keys.fields.string(keys.name("rope.scaling.type"), "none")
    if _LONG in file.tensors or _SHORT in file.tensors or kind == "longrope":
        return _longrope(file, keys, dims)
    if kind == "none":
        if keys.has("rope.scale_linear"):  # old files
            return {"rope_type": "linear", "factor": keys.number("rope.scale_linear")}
        return {}
    if kind not in ("linear", "yarn"):
        raise UnsupportedModel(
            f"{keys.where}: rope scaling of the type {kind!r}; linear, yarn and longrope are supported"
        )
    scaling: dict[str, Any] = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if kind == "linear":
        return scaling
    scaling["original_max_position_embeddings"] = _original_length(keys)
    for key, word in (
        ("yarn_attn_factor", "attention_factor"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        if keys.has(f"rope.scaling.{key}"):
            scaling[word] = keys.number(f"rope.scaling.{key}")
    return scaling


def _original_length(keys: Keys) -> int:
    return keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))


def _longrope(file: GgufFile, keys: Keys, dims: int) -> Mapping[str, Any]:
    """Factors for short and for long runs are tensors; what cosines and sines are multiplied by is a key."""
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": list(_factors(file, _SHORT, dims)),
        "long_factor": list(_factors(file, _LONG, dims)),
        "original_max_position_embeddings": _original_length(keys),
    }
    if keys.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = keys.number("rope.scaling.attn_factor")
    return scaling


def _factors(file: GgufFile, name: str, dims: int) -> tuple[float, ...]:
    if name not in file.tensors:
        raise CorruptCheckpoint(f"{file.file.path}: rope scaling of the type 'longrope' needs the tensor {name!r}")
    factors = file.read(name)
    if factors.shape != (dims // 2,) or not np.all(np.isfinite(factors) & (factors > 0)):
        raise CorruptCheckpoint(f"{file.file.path}: {name} does not hold {dims // 2} positive numbers")
    return tuple(factors.tolist())
