"""Mixtures of experts in GGUF files: llama with experts (Mixtral), qwen2moe, qwen3moe.

One tensor holds a matrix of all experts; an expert's is a part of it.
"""

from dataclasses import replace

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models import llama
from headway.checkpoint.gguf_models.decoder import read_decoder
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.gguf_models.tensors import GgufNames
from headway.checkpoint.pieces import Split, stacked_experts, stacked_qkv
from headway.checkpoint.shape import ExpertsShape, ModelShape
from headway.errors import UnsupportedModel

MAX_EXPERTS = 1024


EXPERT_SPLITS: dict[str, Split] = {f"ffn_{part}_exps": stacked_experts(part) for part in ("gate", "up", "down")}
SPLITS: dict[str, Split] = {"attn_qkv": stacked_qkv, **EXPERT_SPLITS}
IN_PAIRS = GgufNames(is_interleaved=True, splits=SPLITS)
IN_HALVES = GgufNames(splits=SPLITS)


def read_llama(file: GgufFile, keys: Keys) -> ModelShape:
    """llama; with experts it is Mixtral."""
    if not keys.integer("expert_count", 0, low=0):
        return llama.read_llama(file, keys)
    shape = read_decoder(file, keys, "mixtral", is_interleaved=True)
    return replace(shape, experts=replace(read_experts(file, keys, shape, shape.intermediate_size), normalise=True))


def read_qwen2_moe(file: GgufFile, keys: Keys) -> ModelShape:
    """qwen2moe."""
    shape = read_decoder(file, keys, "qwen2_moe")
    experts = read_experts(file, keys, shape, None)
    shared_width = keys.integer("expert_shared_feed_forward_length", shape.intermediate_size)
    return replace(shape, experts=replace(experts, shared_width=shared_width, has_shared_gate=True))


def read_qwen3_moe(file: GgufFile, keys: Keys) -> ModelShape:
    """qwen3moe; the shares of a token's experts add up to one, as llama.cpp has it."""
    shape = read_decoder(file, keys, "qwen3_moe")
    return replace(shape, experts=replace(read_experts(file, keys, shape, None), normalise=True))


def read_experts(file: GgufFile, keys: Keys, shape: ModelShape, width: int | None) -> ExpertsShape:
    """How many there are, on which layers: those that have a router.

    Args:
        width: of an expert, where the file does not say.
    """
    num_experts = keys.integer("expert_count")
    if num_experts > MAX_EXPERTS:
        raise UnsupportedModel(f"{keys.where} has {num_experts} experts; at most {MAX_EXPERTS} are possible")
    layers = range(shape.num_layers)
    return ExpertsShape(
        num_experts=num_experts,
        top_k=keys.integer("expert_used_count", high=num_experts),
        width=keys.integer("expert_feed_forward_length", width),
        layers=frozenset(layer for layer in layers if f"blk.{layer}.ffn_gate_inp.weight" in file.tensors),
    )
