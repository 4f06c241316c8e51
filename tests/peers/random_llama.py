"""Small Llama-shaped models with random weights, written by the gguf package for llama.cpp to quantise."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

NUM_LAYERS, VOCAB_SIZE, CONTEXT = 2, 300, 256
NUM_PROMPTS, PROMPT_LENGTH = 16, 64
_LOGITS_SPREAD = 3.0
"""Standard deviation of the logits: a model with opinions, whose greedy tokens are mostly clear."""


@dataclass(frozen=True)
class Shape:
    """What differs from model to model."""

    hidden: int
    inner: int
    num_heads: int
    num_kv_heads: int
    source: str
    """F32 or F16: the type of the file that is quantised."""
    is_tied: bool = False


SHAPES = {
    # Every row is whole blocks of 256.
    "256": Shape(256, 512, 4, 2, "F32"),
    # As SmolLM2-135M: the down projection's rows are whole blocks of 256, the others' only of 32.
    "576": Shape(576, 768, 9, 3, "F16", is_tied=True),
    # Blocks of 32 everywhere, of 256 nowhere.
    "288": Shape(288, 352, 9, 3, "F32", is_tied=True),
    # No whole blocks at all but in the down projection.
    "80": Shape(80, 96, 5, 1, "F32"),
}


def random_prompts() -> np.ndarray:
    """[NUM_PROMPTS, PROMPT_LENGTH] ids."""
    return np.random.default_rng(11).integers(0, VOCAB_SIZE, (NUM_PROMPTS, PROMPT_LENGTH)).astype(np.int32)


def write_source(shape: Shape, path: Path) -> None:
    """The model with matrices of shape.source."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_dimension_count(shape.hidden // shape.num_heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    _add_tokenizer(writer)
    for name, values in _tensors(shape):
        kind = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else shape.source]
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(shape: Shape) -> Iterator[tuple[str, np.ndarray]]:
    """Matrices that keep the length of what they multiply, so that no layer drowns another."""
    random = np.random.default_rng(shape.hidden)
    kv_rows = shape.hidden // shape.num_heads * shape.num_kv_heads

    def matrix(num_rows: int, num_cols: int, gain: float = 1.0) -> np.ndarray:
        values = random.standard_normal((num_rows, num_cols), np.float32)
        return values * np.float32(gain / num_cols**0.5)

    def norm() -> np.ndarray:
        return 1 + random.standard_normal(shape.hidden, np.float32) / 10

    yield "token_embd.weight", matrix(VOCAB_SIZE, shape.hidden, _LOGITS_SPREAD)
    yield "output_norm.weight", norm()
    if not shape.is_tied:
        yield "output.weight", matrix(VOCAB_SIZE, shape.hidden, _LOGITS_SPREAD)
    for layer in range(NUM_LAYERS):
        prefix = f"blk.{layer}."
        yield f"{prefix}attn_norm.weight", norm()
        yield f"{prefix}attn_q.weight", matrix(shape.hidden, shape.hidden)
        yield f"{prefix}attn_k.weight", matrix(kv_rows, shape.hidden)
        yield f"{prefix}attn_v.weight", matrix(kv_rows, shape.hidden)
        yield f"{prefix}attn_output.weight", matrix(shape.hidden, shape.hidden)
        yield f"{prefix}ffn_norm.weight", norm()
        yield f"{prefix}ffn_gate.weight", matrix(shape.inner, shape.hidden)
        yield f"{prefix}ffn_up.weight", matrix(shape.inner, shape.hidden)
        yield f"{prefix}ffn_down.weight", matrix(shape.hidden, shape.inner)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Byte-level, with as many pairs of letters as fill the vocabulary: llama.cpp opens no file without one."""
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    pairs = [("a", letter) for letter in letters[: VOCAB_SIZE - len(letters) - 1]]
    tokens = [*letters, *(left + right for left, right in pairs), "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([f"{left} {right}" for left, right in pairs])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
