"""The demo model's first layers as a bfloat16 Hugging Face folder: real weights in another file format, and quick."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from headway.checkpoint.checkpoint import open_checkpoint

NUM_LAYERS = 6
_NAMES = (
    ("attn_norm", "input_layernorm"),
    ("mlp_norm", "post_attention_layernorm"),
    *((f"attn.{part}.", f"self_attn.{part}_proj.") for part in "qkvo"),
    *((f"mlp.{part}.", f"mlp.{part}_proj.") for part in ("gate", "up", "down")),
)


def write_demo_layers(demo: Path, folder: Path) -> Path:
    """Writes `folder`, with a tokenizer of one token: take the demo's own."""
    checkpoint = open_checkpoint(demo)
    names = [name for name in checkpoint.weights.shapes() if _is_kept(name)]
    tensors = {_theirs(name): torch.tensor(checkpoint.weights.read(name)).to(torch.bfloat16) for name in names}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shape = checkpoint.shape
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope.theta,
        "tie_word_embeddings": shape.is_tied,
    }
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(BPE(vocab={"a": 0}, merges=[])).save(str(folder / "tokenizer.json"))
    return folder


def _is_kept(name: str) -> bool:
    return not name.startswith("layers.") or int(name.split(".")[1]) < NUM_LAYERS


def _theirs(name: str) -> str:
    for ours, theirs in _NAMES:
        name = name.replace(ours, theirs)
    if name.startswith("lm_head"):
        return name
    return "model." + name.replace("final_norm", "norm").replace("embed.", "embed_tokens.")
