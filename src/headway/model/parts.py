"""Building parts that architecture files share: each appends ops to a Builder and returns the name of what it made."""

from dataclasses import dataclass, field

from headway.checkpoint.shape import ModelShape
from headway.errors import UnsupportedModel
from headway.model.ops import (
    Activation,
    Add,
    Attention,
    Embed,
    Linear,
    Logits,
    Mul,
    Norm,
    Op,
    Rope,
    Scale,
    SelectRows,
)
from headway.model.program import CacheSpec, Program
from headway.model.rope import RopeFrequencies, make_frequencies, rope_kind


@dataclass(slots=True)
class Builder:
    """A Program being written: ops, weights and caches so far. `max_model_len` only chooses among rope frequencies."""

    shape: ModelShape
    max_model_len: int
    ops: list[Op] = field(default_factory=list)
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    caches: list[CacheSpec] = field(default_factory=list)

    def add(self, op: Op) -> str:
        """Appends an op; its output's name."""
        self.ops.append(op)
        return op.out

    def weight(self, name: str, *shape: int) -> str:
        """Declares a weight, once or again with the same shape; its name."""
        self.weights[name] = shape
        return name

    def build(self) -> Program:
        """The checked Program."""
        program = Program(
            architecture=self.shape.architecture,
            ops=tuple(self.ops),
            weights=self.weights,
            caches=tuple(self.caches),
            vocab_size=self.shape.vocab_size,
            hidden_size=self.shape.hidden_size,
            max_position=longest_context(self.shape, self.max_model_len),
        )
        program.check()
        return program


MAX_POSITION = 2**31 - 1
"""Positions are int32."""


def longest_context(shape: ModelShape, max_model_len: int) -> int:
    """Positions that the model can hold: its own number; with YaRN what it is stretched to; with dynamic scaling as far
    as max_model_len asks, up to the factor."""
    scaling = shape.rope.scaling
    factor = float(scaling.get("factor") or 1.0)
    match rope_kind(scaling):
        case "yarn":
            original = scaling.get("original_max_position_embeddings") or shape.max_position
            return max(shape.max_position, int(min(original * factor, MAX_POSITION)))
        case "dynamic":
            return max(shape.max_position, int(min(max_model_len, shape.max_position * factor)))
        case _:
            return shape.max_position


def frequencies(builder: Builder) -> RopeFrequencies:
    """The model's rotary frequencies, to be shared by all its layers."""
    shape = builder.shape
    return make_frequencies(shape.rope, max_position=shape.max_position, max_model_len=builder.max_model_len)


def refuse_window(shape: ModelShape) -> None:
    """Raises UnsupportedModel where a family's optional sliding window is on: it is kept on some layers only."""
    if shape.sliding_window is not None:
        raise UnsupportedModel(
            f"{shape.architecture} with a sliding window ({shape.sliding_window} tokens, on some layers) is not "
            "supported: set use_sliding_window to false in config.json"
        )


def embedding(builder: Builder) -> str:
    """Token embedding: the first hidden state."""
    shape = builder.shape
    table = builder.weight("embed.weight", shape.vocab_size, shape.hidden_size)
    return builder.add(Embed(out="embedding", table=table, scale=shape.embedding_scale))


def linear(builder: Builder, name: str, source: str, *, width: int, in_width: int, has_bias: bool) -> str:
    """source @ name.weight.T (+ name.bias)."""
    weight = builder.weight(f"{name}.weight", width, in_width)
    bias = builder.weight(f"{name}.bias", width) if has_bias else None
    return builder.add(Linear(out=name, input=source, weight=weight, bias=bias, adapter=name))


def rms_norm(builder: Builder, name: str, source: str) -> str:
    """Root-mean-square norm over the hidden state."""
    weight = builder.weight(f"{name}.weight", builder.shape.hidden_size)
    return builder.add(Norm(out=name, input=source, weight=weight, eps=builder.shape.norm_eps))


def residual(builder: Builder, name: str, source: str, update: str) -> str:
    """source + update * residual_scale."""
    if builder.shape.residual_scale != 1.0:
        update = builder.add(Scale(out=f"{name}.scaled", input=update, factor=builder.shape.residual_scale))
    return builder.add(Add(out=f"{name}.sum", left=source, right=update))


def attention_block(
    builder: Builder, layer: int, source: str, *, rope: RopeFrequencies | None, window: int | None = None
) -> str:
    """Norm, q k v, head norms where the shape has them, positions where rope is given, attention, o, residual."""
    shape, at = builder.shape, f"layers.{layer}"
    normed = rms_norm(builder, f"{at}.attn_norm", source)
    heads = {"q": shape.num_heads, "k": shape.num_kv_heads, "v": shape.num_kv_heads}
    values = {
        part: linear(
            builder,
            f"{at}.attn.{part}",
            normed,
            width=num * shape.head_dim,
            in_width=shape.hidden_size,
            has_bias=shape.has_qkv_bias,
        )
        for part, num in heads.items()
    }
    for part in ("q", "k"):
        if shape.has_qk_norm:
            values[part] = _head_norm(builder, f"{at}.attn.{part}_norm", values[part])
        if rope is not None:
            values[part] = _turn(builder, f"{at}.attn.{part}.turned", values[part], rope)
    mixed = _attention(builder, f"{at}.attn", values, window)
    out = linear(
        builder,
        f"{at}.attn.o",
        mixed,
        width=shape.hidden_size,
        in_width=shape.num_heads * shape.head_dim,
        has_bias=shape.has_o_bias,
    )
    return residual(builder, f"{at}.attn", source, out)


def _head_norm(builder: Builder, name: str, source: str) -> str:
    weight = builder.weight(f"{name}.weight", builder.shape.head_dim)
    return builder.add(Norm(out=name, input=source, weight=weight, eps=builder.shape.norm_eps, over="head"))


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


def _attention(builder: Builder, name: str, values: dict[str, str], window: int | None) -> str:
    shape, dim = builder.shape, builder.shape.head_dim
    cache = CacheSpec(
        cache_id=len(builder.caches), num_kv_heads=shape.num_kv_heads, qk_dim=dim, v_dim=dim, window=window
    )
    builder.caches.append(cache)
    return builder.add(
        Attention(
            out=name,
            q=values["q"],
            k=values["k"],
            v=values["v"],
            cache_id=cache.cache_id,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            qk_dim=dim,
            v_dim=dim,
            scale=dim**-0.5 if shape.attention_scale is None else shape.attention_scale,
            window=window,
        )
    )


def gated_mlp_block(builder: Builder, layer: int, source: str) -> str:
    """Norm, activation(gate) * up, down, residual."""
    shape, at = builder.shape, f"layers.{layer}"
    normed = rms_norm(builder, f"{at}.mlp_norm", source)
    gate, up = (
        linear(
            builder,
            f"{at}.mlp.{part}",
            normed,
            width=shape.intermediate_size,
            in_width=shape.hidden_size,
            has_bias=shape.has_mlp_bias,
        )
        for part in ("gate", "up")
    )
    active = builder.add(Activation(out=f"{at}.mlp.active", input=gate, kind=shape.activation))
    product = builder.add(Mul(out=f"{at}.mlp.product", left=active, right=up))
    down = linear(
        builder,
        f"{at}.mlp.down",
        product,
        width=shape.hidden_size,
        in_width=shape.intermediate_size,
        has_bias=shape.has_mlp_bias,
    )
    return residual(builder, f"{at}.mlp", source, down)


def language_head(builder: Builder, source: str) -> str:
    """Final norm, the rows whose logits are wanted, scores over the vocabulary (by the embedding where tied)."""
    shape = builder.shape
    # Rows are selected before the norm: it works on each row alone, and a long prompt wants one row.
    rows = builder.add(SelectRows(out="selected", input=source))
    normed = rms_norm(builder, "final_norm", rows)
    name = "embed.weight" if shape.is_tied else "lm_head.weight"
    weight = builder.weight(name, shape.vocab_size, shape.hidden_size)
    scores = builder.add(Linear(out="scores", input=normed, weight=weight))
    return builder.add(Logits(out="logits", input=scores, scale=shape.logits_scale))


def decoder(builder: Builder, *, skipped_layers: frozenset[int] = frozenset(), window: int | None = None) -> Program:
    """Pre-norm blocks of attention and a gated MLP between embedding and head: all that the Llama family shares.

    Args:
        builder: carries the shape, whose flags and scales the blocks follow.
        skipped_layers: layers whose attention has no positions.
        window: how many tokens each layer sees; None: all.
    """
    rope = frequencies(builder)
    hidden = embedding(builder)
    for layer in range(builder.shape.num_layers):
        layer_rope = None if layer in skipped_layers else rope
        hidden = attention_block(builder, layer, hidden, rope=layer_rope, window=window)
        hidden = gated_mlp_block(builder, layer, hidden)
    language_head(builder, hidden)
    return builder.build()
