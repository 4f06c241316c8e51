"""A Program interpreted in numpy float64, one sequence at once: what executors are compared with.

It rounds only where the native executor's documents say so: K and V as they are kept, and, in front of matrices of 8 or
4 bits, activations in groups of 32.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import erf
from typing import Any

import numpy as np

from headway.model.ops import (
    Activation,
    Add,
    Attention,
    Embed,
    Experts,
    HeadLinear,
    Join,
    Linear,
    Logits,
    Mul,
    Norm,
    Rope,
    Route,
    Scale,
    SelectRows,
)
from headway.model.program import Program

Array = np.ndarray[Any, Any]


def to_bfloat16(values: Array) -> Array:
    """The nearest bfloat16, ties to even, as float64."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def to_float16(values: Array) -> Array:
    """The nearest float16 that is finite, as float64."""
    return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float64)


def to_int8(values: Array) -> Array:
    """Each row of the last axis in 8 bits with one scale, as float64."""
    values = np.asarray(values, np.float32)
    scales = np.abs(values).max(axis=-1, keepdims=True) / np.float32(127)
    quotients = np.rint(values / np.where(scales == 0, np.float32(1), scales))
    return quotients.astype(np.float64) * scales.astype(np.float64)


def to_int8_groups(values: Array) -> Array:
    """Groups of 32 columns in 8 bits by the better one of two scales, as matrix.h has it, as float64."""
    width = values.shape[-1]
    padded = np.pad(np.asarray(values, np.float32), [(0, 0), (0, -width % 32)]).reshape(len(values), -1, 32)
    largest = np.abs(padded).max(axis=-1, keepdims=True)
    fine = np.rint(padded * (np.float32(127 * 256) / np.where(largest == 0, np.float32(1), largest))).astype(np.int64)
    tries = []
    for levels, codes_256 in ((127, fine), (125, fine - ((fine * 516 + 2**14) >> 15))):
        codes = (codes_256 + 128) >> 8
        lost = ((codes_256 - 256 * codes) ** 2).sum(axis=-1, keepdims=True)
        tries.append((codes * (largest / np.float32(levels)).astype(np.float64), lost / levels**2))
    (first, lost_by_first), (second, lost_by_second) = tries
    return np.where(lost_by_second < lost_by_first, second, first).reshape(len(values), -1)[:, :width]


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(erf, otypes=[np.float64])(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def reference_logits(
    program: Program,
    weights: Mapping[str, Array],
    ids: Sequence[int],
    *,
    keep: Callable[[Array], Array] = lambda values: values,
    quantised: Collection[str] = (),
) -> Array:
    """Logits of every token of a sequence, [len(ids), vocab_size].

    Args:
        weights: as they are multiplied.
        keep: what becomes of K and V, [tokens, heads, dim], in the cache.
        quantised: weights whose products take activations in int8 groups.
    """
    values: dict[str, Array] = {}
    positions = np.arange(len(ids))
    for op in program.ops:
        sources = [values[name] for name in op.inputs]
        match op:
            case Embed():
                index = positions if op.index == "position" else np.array(ids)
                made = weights[op.table][index + op.offset] * op.scale
            case Norm():
                made = _norm(op, sources[0], weights)
            case Linear():
                inputs = to_int8_groups(sources[0]) if op.weight in quantised else sources[0]
                made = inputs @ weights[op.weight].T + (0 if op.bias is None else weights[op.bias])
            case Activation():
                made = ACTIVATIONS[op.kind](sources[0])
            case Mul():
                made = sources[0] * sources[1]
            case Add():
                made = sources[0] + sources[1]
            case Scale():
                made = sources[0] * op.factor
            case Rope():
                made = _rope(op, sources[0], positions)
            case Attention():
                made = _attention(op, *sources, keep=keep)
            case Join():
                made = np.concatenate(sources, axis=1)
            case HeadLinear():
                made = _head_linear(op, sources[0], weights[op.weight], op.weight in quantised)
            case Route():
                made = route(op, sources[0], None if op.bias is None else weights[op.bias])
            case Experts():
                made = _experts(op, *sources, weights, quantised)
            case SelectRows():
                made = sources[0]
            case Logits():
                made = sources[0] * op.scale
                made = made if op.soft_cap is None else op.soft_cap * np.tanh(made / op.soft_cap)
        values[op.out] = np.asarray(made, np.float64)
    return values[program.ops[-1].out]


def _norm(op: Norm, x: Array, weights: Mapping[str, Array]) -> Array:
    weight = weights[op.weight].astype(np.float64) + op.one_plus
    heads = x.reshape(len(x), -1, len(weight))
    if op.kind == "layer":
        heads = heads - heads.mean(axis=-1, keepdims=True)
    made = heads / np.sqrt((heads**2).mean(axis=-1, keepdims=True) + op.eps) * weight
    return (made if op.bias is None else made + weights[op.bias]).reshape(x.shape)


def _rope(op: Rope, x: Array, positions: Array) -> Array:
    heads = x.reshape(len(x), -1, op.head_dim)
    angles = (positions.astype(np.float32)[:, None] * np.array(op.frequencies, np.float32)).astype(np.float64)
    cosines, sines = (f(angles)[:, None, :] * op.magnitude for f in (np.cos, np.sin))
    middle, end = op.start + op.dims // 2, op.start + op.dims
    low, high = (
        (slice(op.start, middle), slice(middle, end))
        if op.layout == "half"
        else (
            slice(op.start, end, 2),
            slice(op.start + 1, end, 2),
        )
    )
    made = heads.copy()
    made[..., low] = heads[..., low] * cosines - heads[..., high] * sines
    made[..., high] = heads[..., high] * cosines + heads[..., low] * sines
    return made.reshape(x.shape)


def _head_linear(op: HeadLinear, x: Array, weight: Array, is_quantised: bool) -> Array:
    heads, _, width = weight.shape
    values = x.reshape(len(x), heads, width + op.kept)
    made = []
    for head in range(heads):
        columns = values[:, head, :width]
        made += [(to_int8_groups(columns) if is_quantised else columns) @ weight[head].T, values[:, head, width:]]
    return np.concatenate(made, axis=1)


def route(op: Route, logits: Array, bias: Array | None) -> Array:
    """What each expert counts for each row, one row after the other."""
    made = np.zeros(logits.shape)
    size = logits.shape[1] // op.num_groups
    for row, scores in zip(made, logits.astype(np.float64), strict=True):
        scores = np.exp(scores - scores.max()) if op.scoring == "softmax" else 1 / (1 + np.exp(-scores))
        scores = scores / scores.sum() if op.scoring == "softmax" else scores
        choice = scores if bias is None else scores + bias
        counted = 2 if op.group_score == "two_largest" else 1
        worth = [np.sort(choice[at : at + size])[::-1][:counted].sum() for at in range(0, len(choice), size)]
        groups = np.argsort(-np.array(worth), kind="stable")[: op.top_groups]
        allowed = np.isin(np.arange(len(choice)) // size, groups)
        chosen = np.argsort(-np.where(allowed, choice, -np.inf), kind="stable")[: op.top_k]
        row[chosen] = scores[chosen] / (scores[chosen].sum() if op.normalise else 1) * op.scale
    return made


def _experts(op: Experts, x: Array, routing: Array, weights: Mapping[str, Array], quantised: Collection[str]) -> Array:
    def product(values: Array, name: str) -> Array:
        return (to_int8_groups(values) if name in quantised else values) @ weights[name].T

    total = np.zeros((len(x), len(weights[op.downs[0]])))
    for expert, (gate, up, down) in enumerate(zip(op.gates, op.ups, op.downs, strict=True)):
        hidden = ACTIVATIONS[op.kind](product(x, gate)) * product(x, up)
        total += np.where(routing[:, expert, None] != 0, product(hidden, down) * routing[:, expert, None], 0)
    return total


def _attention(op: Attention, q: Array, k: Array, v: Array | None = None, *, keep: Callable[[Array], Array]) -> Array:
    length, group = len(q), op.num_heads // op.num_kv_heads
    queries = q.reshape(length, op.num_heads, op.qk_dim)
    kept = keep(k.reshape(length, op.num_kv_heads, op.qk_dim))
    keys = np.repeat(kept, group, axis=1)
    own = kept[..., : op.v_dim] if v is None else keep(v.reshape(length, op.num_kv_heads, op.v_dim))
    values = np.repeat(own, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", queries, keys) * op.scale
    if op.soft_cap is not None:
        scores = op.soft_cap * np.tanh(scores / op.soft_cap)
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    hidden = distance < 0
    if op.window is not None:
        hidden |= distance >= op.window
    scores = np.where(hidden, -np.inf, scores)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", shares, values).reshape(length, -1)
