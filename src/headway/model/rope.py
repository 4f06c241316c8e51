"""Rotary frequencies of a RopeShape, chosen once at load. Pure arithmetic in float32, as transformers does it.

Kinds: default, linear, llama3, yarn, dynamic, longrope. The last two depend on how long a sequence is: transformers
changes them in the middle of a run, which no KV cache survives; here max_model_len decides for the whole run.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.checkpoint.shape import RopeShape
from headway.errors import UnsupportedModel

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeFrequencies:
    """Radians a position for each pair of columns, and what cosine and sine are multiplied by."""

    frequencies: tuple[float, ...]
    magnitude: float


@dataclass(frozen=True, slots=True)
class _Context:
    shape: RopeShape
    max_position: int
    max_model_len: int

    def number(self, key: str) -> float:
        value = self.shape.scaling.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UnsupportedModel(f"rope scaling {dict(self.shape.scaling)} has no number {key!r}")
        return float(value)

    def original_max_position(self) -> float:
        if self.shape.scaling.get("original_max_position_embeddings") is None:
            return float(self.max_position)
        return self.number("original_max_position_embeddings")


def rope_kind(scaling: Mapping[str, Any]) -> str:
    """config.json's rope_type (older files: type), "default" where there is none."""
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def make_frequencies(shape: RopeShape, *, max_position: int, max_model_len: int) -> RopeFrequencies:
    """The frequencies for sequences up to max_model_len.

    Raises UnsupportedModel for a kind that we do not have, and for numbers that give none.
    """
    kind = rope_kind(shape.scaling)
    make = _KINDS.get(kind)
    if make is None:
        raise UnsupportedModel(f"rope scaling {kind!r} is not supported; supported: {', '.join(sorted(_KINDS))}")
    try:
        with np.errstate(all="ignore"):
            frequencies, magnitude = make(_Context(shape, max_position, max_model_len))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise _impossible(shape, str(error)) from error
    if not (np.isfinite(frequencies).all() and math.isfinite(magnitude)):
        raise _impossible(shape, "it gives frequencies that are not finite")
    if shape.frequency_factors:
        if len(shape.frequency_factors) != len(frequencies):
            raise UnsupportedModel(
                f"{len(shape.frequency_factors)} rope frequency factors for {len(frequencies)} frequencies"
            )
        frequencies = np.divide(frequencies, np.asarray(shape.frequency_factors, np.float32), dtype=np.float32)
    return RopeFrequencies(tuple(float(value) for value in frequencies), magnitude)


def _impossible(shape: RopeShape, why: str) -> UnsupportedModel:
    numbers = str({"rope_theta": shape.theta, **shape.scaling})
    return UnsupportedModel(f"rope scaling {numbers[:500]} can not be computed: {why}")


def _plain(theta: float, dims: int) -> Array:
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    powers: Array = np.power(np.float32(theta), exponents)
    return np.float32(1.0) / powers


def _default(context: _Context) -> tuple[Array, float]:
    return _plain(context.shape.theta, context.shape.dims), 1.0


def _linear(context: _Context) -> tuple[Array, float]:
    return _default(context)[0] / np.float32(context.number("factor")), 1.0


def _dynamic(context: _Context) -> tuple[Array, float]:
    """NTK-aware: a larger base, once sequences may be longer than the model was trained for."""
    factor, dims = context.number("factor"), context.shape.dims
    ratio = max(context.max_model_len, context.max_position) / context.max_position
    theta = context.shape.theta * (factor * ratio - (factor - 1)) ** (dims / (dims - 2))
    return _plain(theta, dims), 1.0


def _llama3(context: _Context) -> tuple[Array, float]:
    """Slow pairs are slowed by factor, fast ones kept, those between interpolated."""
    factor, original = context.number("factor"), context.original_max_position()
    low, high = context.number("low_freq_factor"), context.number("high_freq_factor")
    plain = _default(context)[0]
    wavelengths = 2 * math.pi / plain
    smooth = (original / wavelengths - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    is_slow, is_fast = wavelengths > original / low, wavelengths < original / high
    return np.where(is_slow, plain / factor, np.where(is_fast, plain, between)).astype(np.float32), 1.0


def _yarn(context: _Context) -> tuple[Array, float]:
    """YaRN (Peng et al. 2023): interpolation for slow pairs, none for fast ones, a ramp between."""
    scaling, dims, original = context.shape.scaling, context.shape.dims, context.original_max_position()
    has_factor = scaling.get("factor") is not None
    factor = context.number("factor") if has_factor else context.max_position / original

    def pair_of(num_rotations: float) -> float:
        return dims * math.log(original / (num_rotations * 2 * math.pi)) / (2 * math.log(context.shape.theta))

    low, high = pair_of(float(scaling.get("beta_fast") or 32)), pair_of(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = (np.arange(dims // 2, dtype=np.float32) - low) / (high - low if high != low else 0.001)
    kept = 1 - np.clip(ramp, 0, 1).astype(np.float32)
    plain = _default(context)[0]
    return (plain / factor * (1 - kept) + plain * kept).astype(np.float32), _yarn_magnitude(scaling, factor)


def _yarn_magnitude(scaling: Mapping[str, Any], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    above, below = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return magnitude(float(above)) / magnitude(float(below)) if above and below else magnitude(1.0)


def _longrope(context: _Context) -> tuple[Array, float]:
    """LongRoPE (Ding et al. 2024): a factor for each pair, one list for short runs and one for long ones."""
    scaling, original = context.shape.scaling, context.original_max_position()
    key = "long_factor" if context.max_model_len > original else "short_factor"
    factors = scaling.get(key)
    if not isinstance(factors, list | tuple) or len(factors) != context.shape.dims // 2:
        raise UnsupportedModel(f"rope scaling longrope needs {context.shape.dims // 2} numbers in {key!r}")
    stretch = context.number("factor") if scaling.get("factor") is not None else context.max_position / original
    magnitude = scaling.get("attention_factor")
    if magnitude is None:
        magnitude = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    frequencies = np.divide(_default(context)[0], np.asarray(factors, np.float32), dtype=np.float32)
    return frequencies, float(magnitude)


_KINDS: dict[str, Callable[[_Context], tuple[Array, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
