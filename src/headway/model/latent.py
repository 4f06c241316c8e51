"""Multi-head latent attention with absorbed weights: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.

What is cached of a token is the latent that keys and values of all heads are made of, and the key's columns with
positions. A query is multiplied by its head's key matrix, and not every key of the past; what a head reads, a mixture
of latents, by its value matrix:   q . (k_up c) = (q k_up) . c   and   sum of w (v_up c) = v_up (sum of w c)
Prompts are computed as single tokens are, though with expanded keys they would need fewer operations: so a token's sums
do not depend on how many tokens came with it, and nothing is ever expanded.
"""

import math

from headway.checkpoint.shape import LatentShape, ModelShape
from headway.model import parts
from headway.model.builder import Builder
from headway.model.ops import Attention, HeadLinear, Join, Rope
from headway.model.program import CacheSpec
from headway.model.rope import RopeFrequencies


def latent_attention(builder: Builder, latent: LatentShape, layer: int, source: str, rope: RopeFrequencies) -> str:
    """What is added to the hidden state."""
    shape, at = builder.shape, f"layers.{layer}.attn"
    query = _query(builder, latent, at, source, rope)
    key = _key(builder, latent, at, source, rope)
    mixed = _attend(builder, latent, layer, query, key)
    up = builder.weight(f"{at}.v_up.weight", shape.num_heads, latent.v_dim, latent.kv_rank)
    values = builder.add(HeadLinear(out=f"{at}.v_up", input=mixed, weight=up))
    in_width = shape.num_heads * latent.v_dim
    return parts.linear(
        builder, f"{at}.o", values, width=shape.hidden_size, in_width=in_width, has_bias=shape.has_o_bias
    )


def latent_scale(shape: ModelShape) -> float:
    """1 / sqrt(head_dim); times the square of YaRN's factor for all columns, where positions are stretched."""
    scaling = {} if shape.rope is None else shape.rope.scaling
    weight, factor = float(scaling.get("mscale_all_dim") or 0.0), float(scaling.get("factor") or 1.0)
    stretch = 1.0 + 0.1 * weight * math.log(factor) if factor > 1 else 1.0
    return float(shape.head_dim**-0.5 * stretch * stretch)


def _query(builder: Builder, latent: LatentShape, at: str, source: str, rope: RopeFrequencies) -> str:
    """[tokens, heads * (kv_rank + rope_dim)]: what a key's columns of latent and of positions are multiplied by."""
    shape = builder.shape
    width = shape.num_heads * (latent.nope_dim + latent.rope_dim)
    if latent.q_rank is None:
        query = parts.linear(builder, f"{at}.q", source, width=width, in_width=shape.hidden_size, has_bias=False)
    else:
        rank, has_bias = latent.q_rank, shape.has_qkv_bias
        narrow = parts.linear(builder, f"{at}.q_a", source, width=rank, in_width=shape.hidden_size, has_bias=has_bias)
        normed = parts.norm(builder, f"{at}.q_a_norm", narrow, parts.RMS, width=rank)
        query = parts.linear(builder, f"{at}.q_b", normed, width=width, in_width=rank, has_bias=False)
    up = builder.weight(f"{at}.k_up.weight", shape.num_heads, latent.kv_rank, latent.nope_dim)
    absorbed = builder.add(HeadLinear(out=f"{at}.k_up", input=query, weight=up, kept=latent.rope_dim))
    return _turn(builder, f"{at}.q.turned", absorbed, rope, start=latent.kv_rank)


def _key(builder: Builder, latent: LatentShape, at: str, source: str, rope: RopeFrequencies) -> str:
    """[tokens, kv_rank + rope_dim]: what is cached."""
    made = {
        part: parts.linear(
            builder,
            f"{at}.{part}",
            source,
            width=width,
            in_width=builder.shape.hidden_size,
            has_bias=builder.shape.has_qkv_bias,
        )
        for part, width in (("latent", latent.kv_rank), ("k_rope", latent.rope_dim))
    }
    normed = parts.norm(builder, f"{at}.latent_norm", made["latent"], parts.RMS, width=latent.kv_rank)
    turned = _turn(builder, f"{at}.k_rope.turned", made["k_rope"], rope)
    return builder.add(Join(out=f"{at}.k", parts=(normed, turned)))


def _turn(builder: Builder, name: str, source: str, rope: RopeFrequencies, *, start: int = 0) -> str:
    head_dim = start + 2 * len(rope.frequencies)
    return builder.add(
        Rope(
            out=name,
            input=source,
            head_dim=head_dim,
            frequencies=rope.frequencies,
            layout="interleaved",
            magnitude=rope.magnitude,
            start=start,
        )
    )


def _attend(builder: Builder, latent: LatentShape, layer: int, query: str, key: str) -> str:
    cache = CacheSpec(
        cache_id=len(builder.caches),
        num_kv_heads=1,
        qk_dim=latent.kv_rank + latent.rope_dim,
        v_dim=latent.kv_rank,
        v_in_k=True,
    )
    builder.caches.append(cache)
    return builder.add(
        Attention(
            out=f"layers.{layer}.attn",
            q=query,
            k=key,
            v=None,
            cache_id=cache.cache_id,
            num_heads=builder.shape.num_heads,
            num_kv_heads=1,
            qk_dim=cache.qk_dim,
            v_dim=cache.v_dim,
            scale=latent_scale(builder.shape),
        )
    )
