"""A GGUF file of a Llama shape as the gguf package reads it, under our names: no reader of ours has a part in it."""

from pathlib import Path

import gguf
import numpy as np

_TOP = {"token_embd": "embed", "output_norm": "final_norm", "output": "lm_head"}
_PARTS = {
    "attn_norm": "attn_norm",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_output": "attn.o",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
}


def read_types(path: Path) -> dict[str, str]:
    """ggml's type of each matrix, by our name."""
    return {_our_name(t.name): t.tensor_type.name for t in gguf.GGUFReader(path).tensors if len(t.shape) == 2}


def read_weights(path: Path, head_dim: int) -> dict[str, np.ndarray]:
    """Every tensor in float32, by our name, heads of q and k with their halves apart as Hugging Face has them."""
    weights = {}
    for tensor in gguf.GGUFReader(path).tensors:
        name = _our_name(tensor.name)
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weights[name] = _halves_apart(values, head_dim) if name.endswith((".q.weight", ".k.weight")) else values
    return weights


def _our_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _TOP:
        return f"{_TOP[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"layers.{layer}.{_PARTS[part]}.weight"


def _halves_apart(values: np.ndarray, head_dim: int) -> np.ndarray:
    """Undoes LlamaModel.permute of llama.cpp's converter: rows in pairs."""
    num_rows, num_cols = values.shape
    return values.reshape(num_rows // head_dim, head_dim // 2, 2, num_cols).swapaxes(1, 2).reshape(num_rows, num_cols)
