"""A GGUF file's metadata as ModelShape, its tensors under canonical names.

llama.cpp's converter interleaves the halves of each head's q and k rows for the architectures that it rotates in
neighbouring pairs (llama, which mistral files also say, granite, smollm3), not for those it rotates in halves (qwen2,
qwen3). MappedWeights undoes it. Some newer files hold q, k and v as one tensor; each is a run of its rows.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from headway.checkpoint.fields import Fields
from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.shape import ModelShape, RopeShape
from headway.checkpoint.weights import WeightView
from headway.errors import CorruptCheckpoint, UnsupportedModel

_ROTATED_IN: Mapping[str, Literal["pairs", "halves"]] = {
    "llama": "pairs",
    "granite": "pairs",
    "smollm3": "pairs",
    "qwen2": "halves",
    "qwen3": "halves",
}
GGUF_ARCHITECTURES = tuple(_ROTATED_IN)

_NAMES = {
    "token_embd": "embed",
    "output_norm": "final_norm",
    "output": "lm_head",
    "attn_norm": "attn_norm",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_output": "attn.o",
    "attn_q_norm": "attn.q_norm",
    "attn_k_norm": "attn.k_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
}
_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_OUTSIDE = re.compile(r"(token_embd|output_norm|output)\.(weight|bias)")
_FREQUENCIES = "rope_freqs.weight"
_DERIVED = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd(\.weight)?")
"""Not weights: they follow from the metadata."""
_SMOLLM3_NO_ROPE_INTERVAL = 4  # llama.cpp has it fixed, the file does not say


def read_shape(file: GgufFile) -> ModelShape:
    """The architecture's numbers.

    Raises UnsupportedModel for an architecture, or a use of one, that is not there; CorruptCheckpoint for wrong values.
    """
    fields = Fields(file.metadata, str(file.file.path))
    architecture = _check_kind(file, fields)
    keys = _Keys(fields, architecture)
    _check_features(keys)
    hidden_size, num_heads = keys.integer("embedding_length"), keys.layered("attention.head_count")
    num_kv_heads = keys.layered("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        fields.fail(keys.name("attention.head_count_kv"), f"is {num_kv_heads}, which does not divide {num_heads}")
    head_dim = _head_dim(keys, hidden_size, num_heads)
    num_layers = keys.integer("block_count", high=10_000)
    tensors = file.tensors
    return ModelShape(
        architecture=architecture,
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=keys.layered("feed_forward_length"),
        max_position=keys.integer("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(file, keys, head_dim, num_layers),
        has_qkv_bias="blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        has_o_bias="blk.0.attn_output.bias" in tensors,
        has_mlp_bias="blk.0.ffn_gate.bias" in tensors,
        has_qk_norm="blk.0.attn_q_norm.weight" in tensors,
        is_tied="output.weight" not in tensors,
        sliding_window=keys.integer("attention.sliding_window", 0, low=0) or None,
        attention_scale=keys.number("attention.scale", 0.0, positive=False) or None,
        embedding_scale=keys.number("embedding_scale", 1.0),
        residual_scale=keys.number("residual_scale", 1.0),
        logits_scale=1.0 / keys.number("logit_scale", 1.0),
        dtype=_dtype(file),
    )


def canonical_views(file: GgufFile, shape: ModelShape) -> dict[str, WeightView]:
    """Each tensor under its canonical name; one without keeps its own name, so that a comparison shows it."""
    found: dict[str, WeightView] = {}
    for name in file.tensors:
        if _DERIVED.fullmatch(name):
            continue
        for canonical, view in _views_of(file, name, shape):
            if canonical in found:
                raise CorruptCheckpoint(
                    f"{file.file.path}: {name!r} and {found[canonical].name!r} are both {canonical}"
                )
            found[canonical] = view
    return found


def _views_of(file: GgufFile, name: str, shape: ModelShape) -> Iterator[tuple[str, WeightView]]:
    tensor = file.tensors[name]
    if match := _LAYER.fullmatch(name):
        layer, part, kind = match.groups()
        prefix = f"layers.{int(layer)}."
        if part == "attn_qkv":
            yield from _fused_views(file, name, shape, prefix, kind)
            return
        if part in _NAMES:
            heads = _interleaved_heads(shape, part)
            if heads is not None and tensor.shape[0] % (heads * 2):
                raise CorruptCheckpoint(f"{file.file.path}: {name!r} has {tensor.shape[0]} rows for {heads} heads")
            canonical = f"{prefix}{_NAMES[part]}.{kind}"
            yield canonical, WeightView(file, name, tensor.shape, interleaved_heads=heads)
            return
    elif match := _OUTSIDE.fullmatch(name):
        yield f"{_NAMES[match[1]]}.{match[2]}", WeightView(file, name, tensor.shape)
        return
    yield name, WeightView(file, name, tensor.shape)


def _fused_views(
    file: GgufFile, name: str, shape: ModelShape, prefix: str, kind: str
) -> Iterator[tuple[str, WeightView]]:
    tensor = file.tensors[name]
    q_rows, kv_rows = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    if tensor.shape[0] != q_rows + 2 * kv_rows:
        raise CorruptCheckpoint(
            f"{file.file.path}: {name!r} has {tensor.shape[0]} rows, q, k and v have {q_rows + 2 * kv_rows}"
        )
    start = 0
    for part, rows in (("attn_q", q_rows), ("attn_k", kv_rows), ("attn_v", kv_rows)):
        view_shape = (rows, *tensor.shape[1:])
        heads = _interleaved_heads(shape, part)
        yield (
            f"{prefix}{_NAMES[part]}.{kind}",
            WeightView(file, name, view_shape, rows=(start, start + rows), interleaved_heads=heads),
        )
        start += rows


def _interleaved_heads(shape: ModelShape, part: str) -> int | None:
    if _ROTATED_IN[shape.architecture] == "halves":
        return None
    return {"attn_q": shape.num_heads, "attn_k": shape.num_kv_heads}.get(part)


class _Keys:
    """Metadata keys of one architecture: attention.head_count is llama.attention.head_count."""

    def __init__(self, fields: Fields, architecture: str) -> None:
        self.fields = fields
        self._prefix = architecture

    def name(self, key: str) -> str:
        return f"{self._prefix}.{key}"

    def has(self, key: str) -> bool:
        return self.fields.has(self.name(key))

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 31) -> int:
        return self.fields.integer(self.name(key), default, low=low, high=high)

    def number(self, key: str, default: float | None = None, *, positive: bool = True) -> float:
        return self.fields.number(self.name(key), default, positive=positive)

    def layered(self, key: str, default: int | None = None) -> int:
        """A number, or an array with the same number for each layer."""
        value = self.fields.values.get(self.name(key))
        if isinstance(value, np.ndarray):
            different = np.unique(value).tolist()
            if len(different) != 1:
                raise UnsupportedModel(
                    f"{self.fields.where}: {self.name(key)} differs between layers ({different[:5]})"
                )
            return Fields({key: different[0]}, self.fields.where).integer(key)
        return self.integer(key, default)


def _check_kind(file: GgufFile, fields: Fields) -> str:
    architecture = fields.string("general.architecture")
    kind = fields.string("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{fields.where} is a GGUF file of type {kind!r}, not a model")
    if architecture not in GGUF_ARCHITECTURES:
        raise UnsupportedModel(
            f"{fields.where} has the architecture {architecture!r}; there are {', '.join(GGUF_ARCHITECTURES)}"
        )
    num_parts = fields.integer("split.count", 1, low=0)
    if num_parts > 1:
        raise UnsupportedModel(f"{fields.where} is one of {num_parts} parts: join them with llama-gguf-split --merge")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise UnsupportedModel(f"{fields.where} has no tensor token_embd.weight: it is a vocabulary or an adapter")
    if len(embedding.shape) != 2:
        raise CorruptCheckpoint(
            f"{fields.where}: token_embd.weight has the shape {embedding.shape}, not two dimensions"
        )
    return architecture


def _check_features(keys: _Keys) -> None:
    where = keys.fields.where
    if keys.integer("expert_count", 0, low=0):
        raise UnsupportedModel(f"{where} is a mixture of experts, which is not supported yet")
    if not keys.fields.boolean(keys.name("attention.causal"), True):
        raise UnsupportedModel(f"{where} has bidirectional attention, which is not supported yet")


def _head_dim(keys: _Keys, hidden_size: int, num_heads: int) -> int:
    if not keys.has("attention.key_length") and hidden_size % num_heads:
        keys.fields.fail(keys.name("embedding_length"), f"is {hidden_size}, not a multiple of {num_heads} heads")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads or None, high=1 << 16)
    value_dim = keys.integer("attention.value_length", head_dim, high=1 << 16)
    if value_dim != head_dim:
        raise UnsupportedModel(f"{keys.fields.where}: heads of {head_dim} for keys, {value_dim} for values")
    return head_dim


def _rope(file: GgufFile, keys: _Keys, head_dim: int, num_layers: int) -> RopeShape:
    dims = keys.integer("rope.dimension_count", head_dim, high=1 << 16)
    if dims % 2 or dims > head_dim:
        keys.fields.fail(keys.name("rope.dimension_count"), f"is {dims}; even numbers up to {head_dim} are possible")
    architecture = keys.name("")[:-1]
    if dims != head_dim and _ROTATED_IN[architecture] == "pairs":
        # The converter interleaves whole heads; which rows then belong together is not defined.
        raise UnsupportedModel(f"{file.file.path} rotates {dims} of {head_dim} dimensions in a {architecture} file")
    return RopeShape(
        theta=keys.number("rope.freq_base", 10000.0),
        dims=dims,
        scaling=_rope_scaling(keys),
        frequency_factors=_frequency_factors(file, dims),
        skipped_layers=_skipped_layers(keys, architecture, num_layers),
    )


def _skipped_layers(keys: _Keys, architecture: str, num_layers: int) -> frozenset[int]:
    if architecture == "smollm3":
        interval = _SMOLLM3_NO_ROPE_INTERVAL
        return frozenset(layer for layer in range(num_layers) if (layer + 1) % interval == 0)
    if architecture == "granite" and not keys.fields.boolean(keys.name("rope.scaling.finetuned"), True):
        return frozenset(range(num_layers))  # llama.cpp reads it as: no rotary positions
    return frozenset()


def _rope_scaling(keys: _Keys) -> Mapping[str, Any]:
    """In config.json's words."""
    kind = keys.fields.string(keys.name("rope.scaling.type"), "none")
    if kind == "none":
        if keys.has("rope.scale_linear"):  # old files
            return {"rope_type": "linear", "factor": keys.number("rope.scale_linear")}
        return {}
    if kind not in ("linear", "yarn"):
        raise UnsupportedModel(f"{keys.fields.where}: rope scaling of the type {kind!r}; linear and yarn are supported")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if kind == "linear":
        return scaling
    original = "rope.scaling.original_context_length"
    scaling["original_max_position_embeddings"] = keys.integer(original, keys.integer("context_length"))
    for key, word in (
        ("yarn_attn_factor", "attention_factor"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        if keys.has(f"rope.scaling.{key}"):
            scaling[word] = keys.number(f"rope.scaling.{key}")
    return scaling


def _frequency_factors(file: GgufFile, dims: int) -> tuple[float, ...]:
    if long := [name for name in file.tensors if "rope_factors" in name]:
        raise UnsupportedModel(
            f"{file.file.path} has {long[0]!r}: rope scaling of the type 'longrope' is not supported"
        )
    if _FREQUENCIES not in file.tensors:
        return ()
    factors = file.read(_FREQUENCIES)
    if factors.shape != (dims // 2,) or not np.all(np.isfinite(factors) & (factors > 0)):
        raise CorruptCheckpoint(f"{file.file.path}: {_FREQUENCIES} does not hold {dims // 2} positive numbers")
    return tuple(factors.tolist())


def _dtype(file: GgufFile) -> str:
    """Of the type that most bytes have; quantised weights are computed with in float32 where nothing else is said."""
    num_bytes: dict[str, int] = {}
    for tensor in file.tensors.values():
        num_bytes[tensor.type.name] = num_bytes.get(tensor.type.name, 0) + tensor.num_bytes
    most = max(num_bytes, key=lambda name: num_bytes[name])
    return {"F16": "float16", "BF16": "bfloat16"}.get(most, "float32")
