"""Every quantised type of GGUF files in every place of a model: embedding, head, attention, MLP, stacked experts.

Torch multiplies what the file's blocks say; the native executor, which keeps them as they are, rounds activations and
keys and values besides, where its documents say so. The files are quantised by ggml's own code.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ggml_quants
from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import Checkpoint, open_checkpoint
from headway.executor.native import NativeExecutor
from headway.executor.native_writer import PlanLimits
from headway.executor.torch import TorchExecutor
from headway.model import make_program
from headway.model.program import Program
from program_reference import reference_logits, to_bfloat16

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
WIDTH, NUM_TOKENS, NUM_EXPERTS, BLOCK = 256, 96, 4, 16
PROMPT = np.random.default_rng(1).integers(0, NUM_TOKENS, size=21).tolist()
# As in test_native.py: a float32 sum may put an activation on the other side of a rounding.
QUANTISED_LEAST, QUANTISED_LARGEST = 1e-4, 0.1


def write_model(path: Path, kind: str, *, has_experts: bool, is_tied: bool = False) -> Path:
    """A model of one layer whose matrices all have this type."""
    random = np.random.default_rng(7)
    architecture = "qwen3moe" if has_experts else "llama"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if has_experts:
        writer.add_expert_count(NUM_EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(WIDTH)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"<{number}>" for number in range(NUM_TOKENS)])
    writer.add_token_types([1] * NUM_TOKENS)
    writer.add_token_merges([])

    def matrix(name: str, *shape: int) -> None:
        values = random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
        rows = ggml_quants.quantise(values.reshape(-1, shape[-1]), kind)
        raw_type = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.weight", rows.reshape(*shape[:-1], -1), raw_dtype=raw_type)

    def norm(name: str, size: int) -> None:
        writer.add_tensor(f"{name}.weight", random.uniform(0.5, 1.5, size).astype(np.float32))

    matrix("token_embd", NUM_TOKENS, WIDTH)
    if not is_tied:
        matrix("output", NUM_TOKENS, WIDTH)
    norm("output_norm", WIDTH)
    norm("blk.0.attn_norm", WIDTH)
    norm("blk.0.ffn_norm", WIDTH)
    matrix("blk.0.attn_q", WIDTH, WIDTH)
    matrix("blk.0.attn_k", WIDTH // 2, WIDTH)
    matrix("blk.0.attn_v", WIDTH // 2, WIDTH)
    matrix("blk.0.attn_output", WIDTH, WIDTH)
    if has_experts:
        norm("blk.0.attn_q_norm", WIDTH // 4)
        norm("blk.0.attn_k_norm", WIDTH // 4)
        router = random.standard_normal((NUM_EXPERTS, WIDTH), np.float32)
        writer.add_tensor("blk.0.ffn_gate_inp.weight", router)
    for part in ("gate", "up", "down"):
        if has_experts:
            matrix(f"blk.0.ffn_{part}_exps", NUM_EXPERTS, WIDTH, WIDTH)
        else:
            matrix(f"blk.0.ffn_{part}", WIDTH, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def kv_of(program: Program, dtype: str) -> KVStore:
    return KVStore(program.caches, num_blocks=64, block_size=BLOCK, dtype=dtype)


def reference(program: Program, checkpoint: Checkpoint, *, is_rounded: bool) -> np.ndarray:
    weights = {name: checkpoint.weights.read(name) for name in program.weights}
    if not is_rounded:
        return reference_logits(program, weights, PROMPT)
    quantised = [name for name in program.weights if checkpoint.weights.type_of(name) in TYPES]
    return reference_logits(program, weights, PROMPT, keep=to_bfloat16, quantised=quantised)


@pytest.mark.parametrize("has_experts", [False, True], ids=["dense", "experts"])
@pytest.mark.parametrize("kind", TYPES)
def test_both_executors_multiply_what_the_file_says(
    tmp_path: Path, kind: str, has_experts: bool, sequences_of: Any
) -> None:
    checkpoint = open_checkpoint(write_model(tmp_path / "m.gguf", kind, has_experts=has_experts))
    program = make_program(checkpoint.shape)
    matrices = [name for name, shape in program.weights.items() if len(shape) == 2 and "router" not in name]
    assert {checkpoint.weights.type_of(name) for name in matrices} == {kind}
    step = sequences_of(1, block_size=BLOCK).step({0: PROMPT})
    wanted = reference(program, checkpoint, is_rounded=False)
    torch_executor = TorchExecutor(program, checkpoint.weights, kv_of(program, "float32"), dtype="float32", threads=1)
    assert np.abs(torch_executor.execute(step) - wanted).max() < 1e-4 * wanted.std()
    limits = PlanLimits(max_tokens=64, max_selected=64, max_seqs=2, max_context=128)
    native = NativeExecutor(program, checkpoint.weights, kv_of(program, "bfloat16"), threads=1, limits=limits)
    wanted = reference(program, checkpoint, is_rounded=True)
    errors = np.abs(native.execute(step) - wanted).max(axis=1) / wanted.std()
    assert errors.min() < QUANTISED_LEAST
    assert errors.max() < QUANTISED_LARGEST


@pytest.mark.parametrize("kind", ["Q5_0", "Q6_K"])
def test_a_tied_head_is_the_embedding_in_its_type(tmp_path: Path, kind: str, sequences_of: Any) -> None:
    checkpoint = open_checkpoint(write_model(tmp_path / "m.gguf", kind, has_experts=False, is_tied=True))
    program = make_program(checkpoint.shape)
    assert "lm_head.weight" not in program.weights
    limits = PlanLimits(max_tokens=64, max_selected=64, max_seqs=2, max_context=128)
    native = NativeExecutor(program, checkpoint.weights, kv_of(program, "bfloat16"), threads=1, limits=limits)
    wanted = reference(program, checkpoint, is_rounded=True)
    ours = native.execute(sequences_of(1, block_size=BLOCK).step({0: PROMPT}))
    errors = np.abs(ours - wanted).max(axis=1) / wanted.std()
    assert errors.min() < QUANTISED_LEAST
    assert errors.max() < QUANTISED_LARGEST
