"""What a token takes in the KV cache, and what it would with other kinds of attention of the same heads. Pure.

MHA has a key and a value for each query head, GQA for some of them together, MQA one for all. MLA keeps one latent for
all heads, of which their keys and values are made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headway.model.ops import Attention, HeadLinear
from headway.model.program import CacheSpec, Program
from headway.planner.native_costs import DEFAULT_KV_DTYPE, token_bytes

Kind = Literal["MHA", "GQA", "MQA", "MLA"]


@dataclass(frozen=True, slots=True)
class KVCost:
    """Of all layers."""

    kind: Kind
    bytes_per_token: int


def kind_of(op: Attention) -> Kind:
    """Which kind an attention is."""
    if op.v is None:
        return "MLA"
    if op.num_kv_heads == op.num_heads:
        return "MHA"
    return "MQA" if op.num_kv_heads == 1 else "GQA"


def kv_costs(program: Program, kv_dtype: str) -> tuple[KVCost, ...]:
    """The program's own first, then MHA and MQA of the same heads where it is neither. Nothing for an encoder.

    Args:
        kv_dtype: float16, bfloat16 or int8.
    """
    layers = [op for op in program.ops if isinstance(op, Attention) and op.cache_id is not None]
    if not layers:
        return ()
    kind = kind_of(layers[0])
    own = sum(token_bytes(cache, kv_dtype) for cache in program.caches)
    qk_dim, v_dim = _expanded_dims(program, layers[0])
    others: dict[Kind, int] = {"MHA": layers[0].num_heads, "MQA": 1}
    return (
        KVCost(kind, own),
        *(
            KVCost(other, len(layers) * token_bytes(_cache(num_heads, qk_dim, v_dim), kv_dtype))
            for other, num_heads in others.items()
            if other != kind
        ),
    )


def describe_kv(program: Program, kv_dtype: str = DEFAULT_KV_DTYPE) -> Iterator[str]:
    """kv_costs as a line for people."""
    costs = kv_costs(program, kv_dtype)
    if costs:
        own, *others = (f"{cost.kind} {cost.bytes_per_token:,}" for cost in costs)
        yield f"KV cache: {own} bytes a token in {kv_dtype} (of the same heads: {', '.join(others)})"


def _expanded_dims(program: Program, op: Attention) -> tuple[int, int]:
    """Of a head's key and value: of latent attention those that it would have if they were made of the latent."""
    if op.v is not None:
        return op.qk_dim, op.v_dim
    products = [made for made in program.ops if isinstance(made, HeadLinear)]
    nope_dim = program.weights[products[0].weight][2]
    v_dim = program.weights[next(made.weight for made in products if made.input == op.out)][1]
    return nope_dim + op.qk_dim - op.v_dim, v_dim


def _cache(num_kv_heads: int, qk_dim: int, v_dim: int) -> CacheSpec:
    return CacheSpec(cache_id=0, num_kv_heads=num_kv_heads, qk_dim=qk_dim, v_dim=v_dim)
