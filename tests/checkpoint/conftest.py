"""Small checkpoints, written by the gguf, safetensors and transformers packages."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

import ggml_quants
from checkpoint.http_stand_in import StandIn, serve

TOKENS = ["<unk>", "<s>", "</s>", "<|im_end|>", "a", "b", "c", "<|end|>"]
TYPES = [2, 3, 3, 3, 1, 1, 1, 1]

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
TOKENIZER = {"version": "1.0", "added_tokens": [{"id": 7, "content": "<|im_end|>", "special": True}], "model": {}}


QUANTISED = {
    "token_embd": gguf.GGMLQuantizationType.Q4_1,
    "blk.0.attn_q": gguf.GGMLQuantizationType.Q4_K,
    "blk.0.attn_k": gguf.GGMLQuantizationType.Q5_K,
    "blk.0.attn_v": gguf.GGMLQuantizationType.Q6_K,
    "blk.0.attn_output": gguf.GGMLQuantizationType.Q8_0,
    "blk.0.ffn_gate": gguf.GGMLQuantizationType.Q4_0,
    "blk.0.ffn_up": gguf.GGMLQuantizationType.Q5_1,
    "blk.0.ffn_down": gguf.GGMLQuantizationType.Q5_0,
}


@dataclass
class GgufModel:
    """A one-layer llama: 2 heads of 4, one of them for k and v. Tensors: name -> (array, type)."""

    architecture: str = "llama"
    keys: dict[str, Any] = field(default_factory=dict)
    """Over or beside the usual ones, without the architecture; None takes one away."""
    entries: dict[str, Any] = field(default_factory=dict)
    """Whole keys."""
    tensors: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def write(self, path: Path, tensors_a_file: int = 0) -> Path:
        """Writes the file, or with a number of tensors a file several, named by the gguf package."""
        writer = gguf.GGUFWriter(path, self.architecture, split_max_tensors=tensors_a_file)
        for key, value in self.all_keys().items():
            _add(writer, f"{self.architecture}.{key}", value)
        for key, value in (vocabulary_entries() | self.entries).items():
            _add(writer, key, value)
        for name, (array, kind) in (random_tensors() | self.tensors).items():
            if name not in self.without:
                writer.add_tensor(name, _quantised(array, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def all_keys(self) -> Mapping[str, Any]:
        usual = {
            "block_count": 1,
            "context_length": 64,
            "embedding_length": 8,
            "feed_forward_length": 12,
            "attention.head_count": 2,
            "attention.head_count_kv": 1,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
        }
        return {key: value for key, value in (usual | self.keys).items() if value is not None}


def quantised_model() -> GgufModel:
    """A layer of 256 in all quantised types at once."""
    random = np.random.default_rng(5)
    num_rows = {"token_embd": len(TOKENS), "blk.0.attn_k": 128, "blk.0.attn_v": 128}
    tensors = {
        f"{name}.weight": (random.standard_normal((num_rows.get(name, 256), 256), np.float32), kind)
        for name, kind in QUANTISED.items()
    }
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        tensors[f"{name}.weight"] = (np.ones(256, np.float32), gguf.GGMLQuantizationType.F32)
    return GgufModel(keys={"embedding_length": 256, "feed_forward_length": 256}, tensors=tensors)


def _quantised(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    if kind == gguf.GGMLQuantizationType.F32:
        return array
    # The package only reads the K types.
    return ggml_quants.quantise(array, kind.name) if kind.name.endswith("_K") else gguf.quantize(array, kind)


def vocabulary_entries() -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 2,
    }


def random_tensors() -> dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]:
    shapes = {
        "token_embd.weight": (len(TOKENS), 8),
        "output_norm.weight": (8,),
        "blk.0.attn_norm.weight": (8,),
        "blk.0.attn_q.weight": (8, 8),
        "blk.0.attn_k.weight": (4, 8),
        "blk.0.attn_v.weight": (4, 8),
        "blk.0.attn_output.weight": (8, 8),
        "blk.0.ffn_norm.weight": (8,),
        "blk.0.ffn_gate.weight": (12, 8),
        "blk.0.ffn_up.weight": (12, 8),
        "blk.0.ffn_down.weight": (8, 12),
    }
    random = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType.F32
    return {name: (random.standard_normal(shape, np.float32), kind) for name, shape in shapes.items()}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value) if value >= 0 else writer.add_int32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a GgufModel(**changes)."""

    def write(**changes: Any) -> Path:
        return GgufModel(**changes).write(tmp_path / "model.gguf")

    return write


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """A local HTTP server that answers from a table."""
    with serve() as running:
        yield running


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., tuple[Path, torch.nn.Module]]:
    """A small random model of an architecture, saved by transformers, with a tokenizer.json."""

    def save(architecture: str, *, max_shard_size: str = "1GB", **changes: Any) -> tuple[Path, torch.nn.Module]:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        config_class = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
        known = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        model = getattr(transformers, architecture)(config_class(**(SIZES | known | changes)))
        model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
        (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        return tmp_path, model

    return save


@pytest.fixture
def folder(saved: Callable[..., tuple[Path, torch.nn.Module]]) -> Path:
    return saved("LlamaForCausalLM")[0]


@pytest.fixture
def put(folder: Path) -> Callable[[str, Any], None]:
    """Writes a text, or a value as JSON, into the folder."""

    def write(name: str, value: Any) -> None:
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))

    return write
