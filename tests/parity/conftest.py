"""Small random models of each family, made by transformers from a configuration, and our executor over the weights."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from headway.checkpoint.shape import ModelShape, RopeShape
from headway.executor.base import StepArrays
from headway.executor.torch import TorchExecutor
from headway.model import make_program

VOCAB = 128
HIDDEN = 64

_NAMES = (
    (r"^model\.embed_tokens\.", "embed."),
    (r"^model\.norm\.", "final_norm."),
    (r"^model\.layers\.", "layers."),
    (r"\.self_attn\.(q|k|v|o)_proj\.", r".attn.\1."),
    (r"\.self_attn\.(q|k)_norm\.", r".attn.\1_norm."),
    (r"\.input_layernorm\.", ".attn_norm."),
    (r"\.post_attention_layernorm\.", ".mlp_norm."),
    (r"\.mlp\.(gate|up|down)_proj\.", r".mlp.\1."),
)


class StateDictWeights:
    """A transformers state dict under the canonical names."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self._arrays = {}
        for name, tensor in state.items():
            for pattern, ours in _NAMES:
                name = re.sub(pattern, ours, name)
            self._arrays[name] = tensor.float().numpy()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self._arrays.items()}

    def read(self, name: str) -> np.ndarray:
        array = self._arrays[name]
        array.flags.writeable = False  # as a mapped file is
        return array


class ArrayKV:
    """KVBuffers in plain memory."""

    def __init__(self, program, num_blocks: int, block_size: int, dtype: str = "float32") -> None:
        self.num_blocks, self.block_size, self.dtype = num_blocks, block_size, dtype
        size = 4 if dtype == "float32" else 2
        slots = num_blocks * block_size * size
        self._buffers = [
            tuple(memoryview(bytearray(slots * c.num_kv_heads * dim)) for dim in (c.qk_dim, c.v_dim))
            for c in program.caches
        ]

    def buffers(self, cache_id: int) -> tuple[memoryview, memoryview]:
        return self._buffers[cache_id]


class Sequences:
    """Block tables of some sequences, in a shuffled order of blocks, and steps over them."""

    def __init__(self, num_seqs: int, *, num_blocks: int = 64, block_size: int = 4, max_blocks: int = 16) -> None:
        self.block_size = block_size
        order = np.random.default_rng(7).permutation(num_blocks)[: num_seqs * max_blocks]
        self.tables = order.reshape(num_seqs, max_blocks).astype(np.int32)
        self.lengths = [0] * num_seqs

    def step(self, new: Mapping[int, list[int]], *, all_logits: bool = True) -> StepArrays:
        tokens, positions, starts, contexts, slots, rows, tables = [], [], [0], [], [], [], []
        for sequence, ids in new.items():
            at = np.arange(self.lengths[sequence], self.lengths[sequence] + len(ids))
            self.lengths[sequence] += len(ids)
            table = self.tables[sequence].copy()
            slots += (table[at // self.block_size] * self.block_size + at % self.block_size).tolist()
            table[-(-self.lengths[sequence] // self.block_size) :] = 0
            tables.append(table)
            tokens += ids
            positions += at.tolist()
            starts.append(len(tokens))
            contexts.append(self.lengths[sequence])
            rows += range(starts[-2], starts[-1]) if all_logits else [starts[-1] - 1]
        return StepArrays(
            token_ids=np.array(tokens, np.int32),
            positions=np.array(positions, np.int32),
            query_starts=np.array(starts, np.int32),
            context_lens=np.array(contexts, np.int32),
            block_tables=np.array(tables, np.int32),
            slots=np.array(slots, np.int64),
            logit_rows=np.array(rows, np.int32),
        )


def _case(name: str, config: dict[str, Any], **shape: Any) -> Any:
    return pytest.param((name.split("-")[0], config, shape), id=name)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.0 + 0.5 * i for i in range(8)],
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}

FAMILIES = [
    _case("llama-gqa", {"num_key_value_heads": 2}),
    _case("llama-mha-tied", {"num_key_value_heads": 4, "tie_word_embeddings": True}, is_tied=True),
    _case("llama-mqa-head_dim", {"num_key_value_heads": 1, "head_dim": 24}, head_dim=24),
    _case(
        "llama-all_biases",
        {"attention_bias": True, "mlp_bias": True},
        has_qkv_bias=True,
        has_o_bias=True,
        has_mlp_bias=True,
    ),
    _case("llama-gelu_tanh", {"hidden_act": "gelu_pytorch_tanh"}, activation="gelu_tanh"),
    _case("llama-linear", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    _case("llama-llama3", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}),
    _case("llama-yarn", {"rope_parameters": {**YARN, "rope_theta": 1e4}}),
    _case(
        "llama-yarn_mscale",
        {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 16.0, "truncate": False}},
    ),
    _case("llama-dynamic", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    _case("llama-longrope", {"rope_parameters": {**LONGROPE, "rope_theta": 1e4}}),
    _case("mistral-full", {"sliding_window": None}),
    _case("mistral-window", {"sliding_window": 6}, sliding_window=6),
    _case("qwen2-bias", {}, has_qkv_bias=True),
    _case("qwen3-qk_norm", {"head_dim": 32}, has_qk_norm=True, head_dim=32),
    _case(
        "smollm3-nope",
        {"no_rope_layers": [1, 0], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        skipped_layers=frozenset({1}),
    ),
    _case(
        "granite-scales",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0, "attention_multiplier": 0.2},
        embedding_scale=3.0,
        residual_scale=0.5,
        logits_scale=0.25,
        attention_scale=0.2,
    ),
]


def make_reference(name: str, config: dict[str, Any]) -> torch.nn.Module:
    """transformers' model of a family with random weights, biases and norms included."""
    import transformers

    classes = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "smollm3": "SmolLM3"}
    prefix = classes.get(name, "Granite")
    numbers = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }
    model_config = getattr(transformers, f"{prefix}Config")(**{**numbers, **config})
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(model_config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def make_shape(name: str, config: dict[str, Any], shape: dict[str, Any], model: Any) -> ModelShape:
    """The ModelShape of the reference, written by hand."""
    numbers = dict(shape)
    head_dim = numbers.pop("head_dim", HIDDEN // 4)
    parameters = dict(model.config.rope_parameters)
    rope = RopeShape(
        theta=parameters.pop("rope_theta"),
        dims=head_dim,
        scaling=parameters,
        skipped_layers=numbers.pop("skipped_layers", frozenset()),
    )
    return ModelShape(
        architecture=name,
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_layers=2,
        num_heads=4,
        num_kv_heads=config.get("num_key_value_heads", 2),
        head_dim=head_dim,
        intermediate_size=96,
        max_position=128,
        norm_eps=model.config.rms_norm_eps,
        rope=rope,
        **numbers,
    )


class Pair:
    """A reference and what makes executors over its weights."""

    def __init__(self, name: str, config: dict[str, Any], shape: dict[str, Any]) -> None:
        self.model = make_reference(name, config)
        self.shape = make_shape(name, config, shape, self.model)
        self.program = make_program(self.shape)
        self.weights = StateDictWeights(self.model.state_dict())

    def executor(self, *, dtype: str = "float32", block_size: int = 4, num_blocks: int = 64, **options: Any) -> Any:
        kv = ArrayKV(self.program, num_blocks, block_size, dtype)
        return TorchExecutor(self.program, self.weights, kv, dtype=dtype, threads=1, **options)

    def logits(self, ids: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0].float().numpy()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=FAMILIES, scope="session")
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(*request.param)


@pytest.fixture(scope="session")
def sequences_of() -> type[Sequences]:
    return Sequences


@pytest.fixture(scope="session")
def llama() -> Pair:
    return Pair("llama", {}, {})
