"""Building parts that architecture files compose: each appends ops to a Builder and returns the name of what it made.

A part follows the numbers of the shape (biases, scales, windows); how parts stand to each other, and which norms there
are, is the architecture file's to say. decoder() is the order that most have.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from headway.model.builder import Builder
from headway.model.ops import (
    Activation,
    Add,
    Attention,
    Embed,
    Linear,
    Logits,
    Mul,
    Norm,
    NormKind,
    NormOver,
    Rope,
    Scale,
    SelectRows,
)
from headway.model.program import CacheSpec, Program
from headway.model.rope import RopeFrequencies, make_frequencies


@dataclass(frozen=True, slots=True)
class NormStyle:
    """How an architecture normalises. A layer norm has a bias."""

    kind: NormKind = "rms"
    one_plus: bool = False
    """Multiplies by 1 + weight."""
    over: NormOver = "hidden"


Mlp = Callable[[Builder, int, str], str]
"""What a layer adds behind its attention: of a builder, the layer and the normalised hidden state."""
RMS, LAYER, ONE_PLUS = NormStyle(), NormStyle(kind="layer"), NormStyle(one_plus=True)


def ropes(builder: Builder) -> tuple[RopeFrequencies | None, ...]:
    """The rotary frequencies of each layer; None where it has no positions."""
    shape = builder.shape
    if shape.rope is None:
        return (None,) * shape.num_layers
    limits = {"max_position": shape.max_position, "max_model_len": builder.max_model_len}
    rope = make_frequencies(shape.rope, **limits)
    local = rope if shape.local_rope is None else make_frequencies(shape.local_rope, **limits)
    by_layer = (rope if shape.window(layer) is None else local for layer in range(shape.num_layers))
    return tuple(None if layer in shape.rope.skipped_layers else turn for layer, turn in enumerate(by_layer))


def embedding(builder: Builder) -> str:
    """Token embedding: the first hidden state, widened where it is narrower than that."""
    shape = builder.shape
    width = shape.embedding_size or shape.hidden_size
    table = builder.weight("embed.weight", shape.vocab_size, width)
    made = builder.add(Embed(out="embedding", table=table, scale=shape.embedding_scale))
    if width == shape.hidden_size:
        return made
    return linear(builder, "embed_in", made, width=shape.hidden_size, in_width=width, has_bias=False)


def learned_positions(builder: Builder, source: str, *, offset: int = 0) -> str:
    """source + a row of the table of positions; the table begins `offset` rows before position 0."""
    shape = builder.shape
    table = builder.weight("positions.weight", shape.max_position + offset, shape.hidden_size)
    rows = builder.add(Embed(out="positions", table=table, index="position", offset=offset))
    return builder.add(Add(out="placed", left=source, right=rows))


def linear(builder: Builder, name: str, source: str, *, width: int, in_width: int, has_bias: bool) -> str:
    """source @ name.weight.T (+ name.bias)."""
    weight = builder.weight(f"{name}.weight", width, in_width)
    bias = builder.weight(f"{name}.bias", width) if has_bias else None
    return builder.add(Linear(out=name, input=source, weight=weight, bias=bias, adapter=name))


def norm(builder: Builder, name: str, source: str, style: NormStyle, *, width: int | None = None) -> str:
    """Normalised over the hidden state, or over `width`."""
    width = width or builder.shape.hidden_size
    weight = builder.weight(f"{name}.weight", width)
    bias = builder.weight(f"{name}.bias", width) if style.kind == "layer" else None
    return builder.add(
        Norm(
            out=name,
            input=source,
            weight=weight,
            bias=bias,
            eps=builder.shape.norm_eps,
            kind=style.kind,
            over=style.over,
            one_plus=style.one_plus,
        )
    )


def residual(builder: Builder, name: str, source: str, update: str) -> str:
    """source + update * residual_scale."""
    if builder.shape.residual_scale != 1.0:
        update = builder.add(Scale(out=f"{name}.scaled", input=update, factor=builder.shape.residual_scale))
    return builder.add(Add(out=f"{name}.sum", left=source, right=update))


def attention(
    builder: Builder,
    layer: int,
    source: str,
    *,
    rope: RopeFrequencies | None,
    qk_norm: NormStyle | None = None,
    is_causal: bool = True,
) -> str:
    """q k v, their norms and positions where these are given, attention, o: what is added to the hidden state.

    What is not causal has no cache: a text is there as a whole.
    """
    shape, at = builder.shape, f"layers.{layer}.attn"
    heads = {"q": shape.num_heads, "k": shape.num_kv_heads, "v": shape.num_kv_heads}
    widths = {part: num * shape.head_dim for part, num in heads.items()}
    values = {
        part: linear(
            builder, f"{at}.{part}", source, width=width, in_width=shape.hidden_size, has_bias=shape.has_qkv_bias
        )
        for part, width in widths.items()
    }
    for part in ("q", "k"):
        if qk_norm is not None:
            width = shape.head_dim if qk_norm.over == "head" else widths[part]
            values[part] = norm(builder, f"{at}.{part}_norm", values[part], qk_norm, width=width)
        if rope is not None:
            values[part] = _turn(builder, f"{at}.{part}.turned", values[part], rope)
    mixed = _attend(builder, layer, values, _new_cache(builder, layer) if is_causal else None)
    return linear(builder, f"{at}.o", mixed, width=shape.hidden_size, in_width=widths["q"], has_bias=shape.has_o_bias)


def _turn(builder: Builder, name: str, source: str, rope: RopeFrequencies) -> str:
    return builder.add(
        Rope(
            out=name,
            input=source,
            head_dim=builder.shape.head_dim,
            frequencies=rope.frequencies,
            magnitude=rope.magnitude,
        )
    )


def _new_cache(builder: Builder, layer: int) -> int:
    shape = builder.shape
    cache = CacheSpec(
        cache_id=len(builder.caches),
        num_kv_heads=shape.num_kv_heads,
        qk_dim=shape.head_dim,
        v_dim=shape.head_dim,
        window=shape.window(layer),
    )
    builder.caches.append(cache)
    return cache.cache_id


def _attend(builder: Builder, layer: int, values: dict[str, str], cache_id: int | None) -> str:
    shape, dim = builder.shape, builder.shape.head_dim
    return builder.add(
        Attention(
            out=f"layers.{layer}.attn",
            q=values["q"],
            k=values["k"],
            v=values["v"],
            cache_id=cache_id,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            qk_dim=dim,
            v_dim=dim,
            scale=dim**-0.5 if shape.attention_scale is None else shape.attention_scale,
            causal=cache_id is not None,
            window=shape.window(layer),
            soft_cap=shape.attention_soft_cap,
        )
    )


def gated_mlp(builder: Builder, layer: int, source: str) -> str:
    """activation(gate) * up, down: what is added to the hidden state."""
    at = f"layers.{layer}.mlp"
    gate, up = (_into_mlp(builder, f"{at}.{part}", source) for part in ("gate", "up"))
    active = builder.add(Activation(out=f"{at}.active", input=gate, kind=builder.shape.activation))
    product = builder.add(Mul(out=f"{at}.product", left=active, right=up))
    return _out_of_mlp(builder, at, product)


def plain_mlp(builder: Builder, layer: int, source: str) -> str:
    """activation(up), down: what is added to the hidden state."""
    at = f"layers.{layer}.mlp"
    up = _into_mlp(builder, f"{at}.up", source)
    active = builder.add(Activation(out=f"{at}.active", input=up, kind=builder.shape.activation))
    return _out_of_mlp(builder, at, active)


def _into_mlp(builder: Builder, name: str, source: str) -> str:
    shape = builder.shape
    return linear(
        builder,
        name,
        source,
        width=shape.intermediate_size,
        in_width=shape.hidden_size,
        has_bias=shape.has_mlp_bias,
    )


def _out_of_mlp(builder: Builder, at: str, source: str) -> str:
    shape = builder.shape
    return linear(
        builder,
        f"{at}.down",
        source,
        width=shape.hidden_size,
        in_width=shape.intermediate_size,
        has_bias=shape.has_mlp_bias,
    )


def language_head(builder: Builder, source: str, style: NormStyle | None) -> str:
    """Final norm if there is one, the rows whose logits are wanted, scores over the vocabulary (by the embedding where
    tied)."""
    shape = builder.shape
    width = shape.embedding_size or shape.hidden_size
    # Rows are selected before the norm: it works on each row alone, and a long prompt wants one row.
    rows = builder.add(SelectRows(out="selected", input=source))
    if style is not None:
        rows = norm(builder, "final_norm", rows, style)
    if width != shape.hidden_size:
        rows = linear(builder, "embed_out", rows, width=width, in_width=shape.hidden_size, has_bias=False)
    name = "embed.weight" if shape.is_tied else "lm_head.weight"
    weight = builder.weight(name, shape.vocab_size, width)
    scores = builder.add(Linear(out="scores", input=rows, weight=weight))
    return builder.add(Logits(out="logits", input=scores, scale=shape.logits_scale, soft_cap=shape.logits_soft_cap))


def decoder(builder: Builder, *, mlp: Mlp = gated_mlp) -> Program:
    """Pre-norm blocks of attention and an MLP between embedding and head: all that the Llama family shares."""
    qk_norm = replace(RMS, over="head") if builder.shape.has_qk_norm else None
    hidden = embedding(builder)
    for layer, rope in enumerate(ropes(builder)):
        at = f"layers.{layer}"
        normed = norm(builder, f"{at}.attn_norm", hidden, RMS)
        update = attention(builder, layer, normed, rope=rope, qk_norm=qk_norm)
        hidden = residual(builder, f"{at}.attn", hidden, update)
        normed = norm(builder, f"{at}.mlp_norm", hidden, RMS)
        hidden = residual(builder, f"{at}.mlp", hidden, mlp(builder, layer, normed))
    language_head(builder, hidden, RMS)
    return builder.build()
