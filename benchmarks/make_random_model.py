"""A model of Qwen2.5-0.5B's shape with random weights:  make_random_model.py FILE.gguf FOLDER NAME

Writes FOLDER/NAME-bf16 (a Hugging Face folder), FOLDER/NAME-q4_1.gguf and FOLDER/NAME-q8_0.gguf, of the same bfloat16
weights. The tokenizer is FILE.gguf's, filled up with tokens that no text has, since only token ids are measured. As
llama.cpp does, the Q4_1 file keeps the tied embedding in Q8_0. Runs in the transformers peer's environment.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Type
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, VOCAB = 896, 24, 14, 2, 4864, 151_936
HEAD_DIM = HIDDEN // HEADS
CONTEXT, ROPE_THETA, EPS = 32_768, 1_000_000.0, 1e-6
STANDARD_DEVIATION = 0.02
END_TOKEN = 2
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rope_theta": ROPE_THETA,
    "rms_norm_eps": EPS,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": END_TOKEN,
    "torch_dtype": "bfloat16",
}
GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_weights() -> Iterator[tuple[str, torch.Tensor]]:
    """Name and bfloat16 tensor, the same at every call."""
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=random) * STANDARD_DEVIATION).to(torch.bfloat16)

    yield "model.embed_tokens.weight", draw(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", torch.ones(HIDDEN, dtype=torch.bfloat16)
        for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            yield f"{prefix}self_attn.{name}_proj.weight", draw(rows, HIDDEN)
            yield f"{prefix}self_attn.{name}_proj.bias", draw(rows)
        yield prefix + "self_attn.o_proj.weight", draw(HIDDEN, HIDDEN)
        yield prefix + "post_attention_layernorm.weight", torch.ones(HIDDEN, dtype=torch.bfloat16)
        yield prefix + "mlp.gate_proj.weight", draw(INNER, HIDDEN)
        yield prefix + "mlp.up_proj.weight", draw(INNER, HIDDEN)
        yield prefix + "mlp.down_proj.weight", draw(HIDDEN, INNER)
    yield "model.norm.weight", torch.ones(HIDDEN, dtype=torch.bfloat16)


def write_folder(tokenizer_folder: Path, target: Path) -> None:
    """The Hugging Face form; tokenizer files are copied."""
    target.mkdir(parents=True, exist_ok=True)
    save_file(dict(make_weights()), target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(CONFIG, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        if (tokenizer_folder / name).exists():
            shutil.copyfile(tokenizer_folder / name, target / name)


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight: blk.3.ffn_up.weight."""
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def add_settings(writer: gguf.GGUFWriter, file_type: gguf.LlamaFileType) -> None:
    """What a qwen2 file says of its shape."""
    writer.add_name("random weights of Qwen2.5-0.5B's shape")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(file_type)


def add_tokenizer(writer: gguf.GGUFWriter, source: gguf.GGUFReader) -> None:
    """The source's, filled up to VOCAB tokens."""

    def strings(key: str) -> list[str]:
        field = source.fields[key]
        return [bytes(field.parts[i]).decode() for i in field.data]

    tokens = strings("tokenizer.ggml.tokens")
    types = source.fields["tokenizer.ggml.token_type"]
    kinds = [int(types.parts[i][0]) for i in types.data]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(strings("tokenizer.ggml.pre")[0])
    writer.add_token_list(tokens + [f"[unused{i}]" for i in range(len(tokens), VOCAB)])
    writer.add_token_types(kinds + [int(gguf.TokenType.UNUSED)] * (VOCAB - len(tokens)))
    writer.add_token_merges(strings("tokenizer.ggml.merges"))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END_TOKEN)
    writer.add_add_bos_token(False)


def write_gguf(source: Path, target: Path, form: Type, file_type: gguf.LlamaFileType) -> None:
    """Matrices in `form`, the embedding in Q8_0, vectors in float32."""
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "qwen2")
    add_settings(writer, file_type)
    add_tokenizer(writer, gguf.GGUFReader(source))
    for name, tensor in make_weights():
        values = tensor.to(torch.float32).numpy()
        kind = Type.F32 if values.ndim == 1 else Type.Q8_0 if "embed_tokens" in name else form
        data = np.ascontiguousarray(gguf.quants.quantize(values, kind))
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)


def main(source: Path, folder: Path, name: str) -> None:
    write_folder(source.parent / "smollm2-135m-bf16", folder / f"{name}-bf16")
    write_gguf(source, folder / f"{name}-q4_1.gguf", Type.Q4_1, gguf.LlamaFileType.MOSTLY_Q4_1)
    write_gguf(source, folder / f"{name}-q8_0.gguf", Type.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
