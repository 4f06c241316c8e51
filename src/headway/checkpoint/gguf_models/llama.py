"""Llama and what is laid out like it: Granite, SmolLM3, Qwen 2 and 3. A Mistral file says llama."""

from dataclasses import replace

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models.decoder import read_decoder
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.gguf_models.tensors import GgufNames
from headway.checkpoint.shape import ModelShape

IN_PAIRS = GgufNames(is_interleaved=True)
IN_HALVES = GgufNames()
_SMOLLM3_NO_ROPE_INTERVAL = 4  # llama.cpp has it fixed, the file does not say


def read_llama(file: GgufFile, keys: Keys) -> ModelShape:
    """llama."""
    return read_decoder(file, keys, "llama", is_interleaved=True)


def read_granite(file: GgufFile, keys: Keys) -> ModelShape:
    """granite; without finetuned positions it has none, as llama.cpp reads it."""
    shape = read_decoder(file, keys, "granite", is_interleaved=True)
    if keys.fields.boolean(keys.name("rope.scaling.finetuned"), True):
        return shape
    return _without_positions(shape, frozenset(range(shape.num_layers)))


def read_smollm3(file: GgufFile, keys: Keys) -> ModelShape:
    """smollm3: every fourth layer has no positions."""
    shape, interval = read_decoder(file, keys, "smollm3", is_interleaved=True), _SMOLLM3_NO_ROPE_INTERVAL
    return _without_positions(shape, frozenset(range(interval - 1, shape.num_layers, interval)))


def _without_positions(shape: ModelShape, layers: frozenset[int]) -> ModelShape:
    return shape if shape.rope is None else replace(shape, rope=replace(shape.rope, skipped_layers=layers))


def read_qwen2(file: GgufFile, keys: Keys) -> ModelShape:
    """qwen2."""
    return read_decoder(file, keys, "qwen2")


def read_qwen3(file: GgufFile, keys: Keys) -> ModelShape:
    """qwen3."""
    return read_decoder(file, keys, "qwen3")
