"""What most architectures of GGUF files say alike, as a ModelShape."""

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.gguf_models.rope import read_rope
from headway.checkpoint.shape import ModelShape
from headway.errors import UnsupportedModel

RMS_EPS = "attention.layer_norm_rms_epsilon"
LAYER_EPS = "attention.layer_norm_epsilon"


def read_decoder(
    file: GgufFile,
    keys: Keys,
    name: str,
    *,
    is_interleaved: bool = False,
    has_rope: bool = True,
    eps_key: str = RMS_EPS,
) -> ModelShape:
    """The numbers that Llama and its kin have; each layer has the window, if there is one.

    Args:
        name: ours, of the architecture.
        is_interleaved: the converter interleaves the rows of q and k.
        has_rope: its positions are rotary ones, not learned.
        eps_key: of the norms that it has.
    """
    hidden_size, num_heads = keys.integer("embedding_length"), keys.layered("attention.head_count")
    num_kv_heads = keys.layered("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        keys.fields.fail(keys.name("attention.head_count_kv"), f"is {num_kv_heads}, which does not divide {num_heads}")
    head_dim = _head_dim(keys, hidden_size, num_heads)
    tensors = file.tensors
    return ModelShape(
        architecture=name,
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=hidden_size,
        num_layers=keys.integer("block_count", high=10_000),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=keys.layered("feed_forward_length"),
        max_position=keys.integer("context_length"),
        norm_eps=keys.number(eps_key),
        rope=read_rope(file, keys, head_dim, is_interleaved=is_interleaved) if has_rope else None,
        has_qkv_bias="blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        has_o_bias="blk.0.attn_output.bias" in tensors,
        has_mlp_bias="blk.0.ffn_down.bias" in tensors or "blk.0.ffn_gate.bias" in tensors,
        has_qk_norm="blk.0.attn_q_norm.weight" in tensors,
        is_tied="output.weight" not in tensors,
        sliding_window=keys.integer("attention.sliding_window", 0, low=0) or None,
        attention_scale=keys.number("attention.scale", 0.0, positive=False) or None,
        embedding_scale=keys.number("embedding_scale", 1.0),
        residual_scale=keys.number("residual_scale", 1.0),
        logits_scale=1.0 / keys.number("logit_scale", 1.0),
        dtype=_dtype(file),
    )


def _head_dim(keys: Keys, hidden_size: int, num_heads: int) -> int:
    if not keys.has("attention.key_length") and hidden_size % num_heads:
        keys.fields.fail(keys.name("embedding_length"), f"is {hidden_size}, not a multiple of {num_heads} heads")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads or None, high=1 << 16)
    value_dim = keys.integer("attention.value_length", head_dim, high=1 << 16)
    if value_dim != head_dim:
        raise UnsupportedModel(f"{keys.where}: heads of {head_dim} for keys, {value_dim} for values")
    return head_dim


def _dtype(file: GgufFile) -> str:
    """Of the type that most bytes have; quantised weights are computed with in float32 where nothing else is said."""
    num_bytes: dict[str, int] = {}
    for tensor in file.tensors.values():
        num_bytes[tensor.type.name] = num_bytes.get(tensor.type.name, 0) + tensor.num_bytes
    most = max(num_bytes, key=lambda name: num_bytes[name])
    return {"F16": "float16", "BF16": "bfloat16"}.get(most, "float32")
