"""The native executor's costs of a small shape, worked out by hand."""

import dataclasses
import math

import numpy as np
import pytest

from headway import _native
from headway.cache.kv_store import KVStore
from headway.checkpoint.ggml_types import find_type
from headway.checkpoint.raw import RawTensor
from headway.checkpoint.shape import RopeShape
from headway.config import EngineConfig
from headway.errors import InvalidConfig, UnsupportedModel
from headway.executor.factory import make_limits
from headway.executor.native import NativeExecutor
from headway.model import make_program
from headway.model.program import Program
from headway.planner.memory import plan_memory
from headway.planner.native_costs import describe_forms, matrix_forms, native_costs, vocabulary_names
from headway.planner.torch_costs import torch_costs
from small_shapes import LLAMA

SHAPE = LLAMA
PROGRAM = make_program(SHAPE)
NORMS = 5 * 64 * 4
GIB = 1 << 30


def types_of(program: Program, kind: str, **others: str) -> dict[str, str]:
    """All matrices of one type, but those that are named (with __ for .)."""
    names = {name.replace("__", "."): other for name, other in others.items()}
    return {name: names.get(name, kind if len(shape) == 2 else "F32") for name, shape in program.weights.items()}


def costs(kind: str = "BF16", threads: int = 1, program: Program = PROGRAM, **config):
    return native_costs(program, types_of(program, kind), EngineConfig(**config), threads)


def matrices(bytes_of_64: int, bytes_of_128: int) -> int:
    """Bytes of a layer's matrices, of panels of 16 rows with 64 columns and with 128."""
    return 2 * (4 + 2 + 2 + 4 + 8 + 8) * bytes_of_64 + 2 * 4 * bytes_of_128


def test_bf16_weights_are_two_bytes_each_and_a_tied_table_is_held_once() -> None:
    table = 63 * 16 * 64 * 2  # 1000 rows in 63 panels
    assert costs().weights_bytes == NORMS + table + matrices(16 * 64 * 2, 16 * 128 * 2)
    untied = make_program(dataclasses.replace(SHAPE, is_tied=False))
    assert costs(program=untied).weights_bytes == costs().weights_bytes + table
    torch = torch_costs(PROGRAM, "bfloat16", EngineConfig())
    assert torch.weights_bytes == torch_costs(untied, "bfloat16", EngineConfig()).weights_bytes  # laid out twice


def test_q4_with_mins_is_ten_bytes_for_sixteen_weights() -> None:
    def panel(cols: int) -> int:
        return 16 * cols // 2 + 2 * (cols // 32) * 16 * 2

    assert costs("Q4_1").weights_bytes == NORMS + 63 * panel(64) + matrices(panel(64), panel(128))
    assert costs("Q4_1").dtype == "q4"


def test_each_matrix_is_counted_in_its_own_form() -> None:
    mixed = types_of(PROGRAM, "Q4_1", embed__weight="Q8_0")
    made = native_costs(PROGRAM, mixed, EngineConfig(), 1)
    table = 63 * (16 * 64 + 64)
    assert made.weights_text == f"q8 ({table / 1024:.1f} KiB), q4 (45.0 KiB), float32 (1.2 KiB)"
    assert made.dtype == "q8"


@pytest.mark.parametrize(("quantization", "layers", "table"), [("int8", "q8", "q8"), ("int4", "q4", "q8"), (None,) * 3])
def test_quantization_reaches_every_matrix(quantization, layers, table) -> None:
    forms = matrix_forms(PROGRAM, types_of(PROGRAM, "F16"), EngineConfig(quantization=quantization))
    assert {form.form for name, form in forms.items() if name != "embed.weight"} == {layers or "bf16"}
    assert forms["embed.weight"].form == (table or "bf16")
    assert len(forms) == 1 + 2 * 7


def test_tables_and_heads_are_vocabulary() -> None:
    assert vocabulary_names(PROGRAM) == {"embed.weight"}
    untied = make_program(dataclasses.replace(SHAPE, is_tied=False))
    assert vocabulary_names(untied) == {"embed.weight", "lm_head.weight"}


def test_the_forms_are_described_with_what_changes_a_value() -> None:
    types = types_of(PROGRAM, "Q4_1", embed__weight="F16")
    table = 63 * 16 * 64 * 2 / 1024
    assert describe_forms(PROGRAM, types, EngineConfig()) == [
        f"F16   runs as bf16      1 matrices, {table:.1f} KiB, values are rounded",
        "Q4_1  runs as q4       14 matrices, 45.0 KiB, no value changes",
    ]
    lines = describe_forms(PROGRAM, types_of(PROGRAM, "BF16"), EngineConfig(quantization="int4"))
    assert [line.split(", ")[-1] for line in lines] == ["values are quantised"] * 2


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="Q2_K"):
        costs("Q2_K")
    with pytest.raises(InvalidConfig, match="quantised already"):
        costs("Q4_1", quantization="int8")


@pytest.mark.parametrize(
    ("kv_cache_dtype", "num_bytes", "kv_dtype"),
    [
        ("auto", 2 * 2 * (16 + 16) * 2, "float16"),
        ("float16", 2 * 2 * (16 + 16) * 2, "float16"),
        ("bfloat16", 2 * 2 * (16 + 16) * 2, "bfloat16"),
        ("int8", 2 * 2 * (16 + 16 + 8), "int8"),  # a scale for K and one for V
    ],
)
def test_a_token_of_kv(kv_cache_dtype, num_bytes, kv_dtype) -> None:
    made = costs(kv_cache_dtype=kv_cache_dtype)
    assert (made.kv_bytes_per_token, made.kv_dtype) == (num_bytes, kv_dtype)


@pytest.mark.parametrize("head_dim", [16, 20, 64])
@pytest.mark.parametrize("kv_cache_dtype", ["float16", "bfloat16", "int8"])
def test_the_cache_takes_what_its_tokens_were_planned_to(kv_cache_dtype: str, head_dim: int) -> None:
    program = make_program(dataclasses.replace(SHAPE, head_dim=head_dim, rope=RopeShape(dims=head_dim)))
    made = costs(program=program, kv_cache_dtype=kv_cache_dtype)
    store = KVStore(program.caches, num_blocks=3, block_size=16, dtype=made.kv_dtype)
    assert store.num_bytes == 3 * 16 * made.kv_bytes_per_token


def test_torch_has_neither_quantization_nor_an_int8_cache() -> None:
    with pytest.raises(InvalidConfig, match="quantization is int8, which the torch executor does not have"):
        torch_costs(PROGRAM, "bfloat16", EngineConfig(quantization="int8"))
    with pytest.raises(InvalidConfig, match=r"kv_cache_dtype is int8; the torch executor keeps K and V in .* float32"):
        torch_costs(PROGRAM, "float32", EngineConfig(kv_cache_dtype="int8"))
    assert torch_costs(PROGRAM, "bfloat16", EngineConfig(kv_cache_dtype="bfloat16")).kv_dtype == "bfloat16"


def test_the_workspace_grows_with_tokens_logits_and_threads() -> None:
    small = costs(max_num_batched_tokens=64, max_num_seqs=1).workspace_bytes
    # At its widest a token holds the residual (64), what the gated product made (128), and that made ready for the next
    # product in four bytes each; that ends in the residual.
    row = (64 + 128 + 128) * 4
    assert costs(max_num_batched_tokens=128, max_num_seqs=1).workspace_bytes - small == 64 * row
    # Many rows whose logits are wanted are wider: by the logits of each; the rest fits where values of tokens were.
    wide = {"max_num_batched_tokens": 64, "max_num_seqs": 32}
    row = 1008 * 4
    assert costs(**wide).workspace_bytes - costs(**(wide | {"max_num_seqs": 31})).workspace_bytes == row
    scratch = 32 * 2 * (16 + 256 + 2 * 32 + 4) + 2 * 256 + 256 * 32
    more = costs(threads=2, max_num_batched_tokens=64, max_num_seqs=1).workspace_bytes
    assert more - small == 4 * scratch + 1000 * 2 * 4


class Zeros:
    """Weights of a Program, of one type but for the vectors."""

    def __init__(self, program: Program, types: dict[str, str]) -> None:
        self._shapes, self._types = program.weights, types

    def shapes(self):
        return self._shapes

    def read(self, name: str):
        return np.zeros(self._shapes[name], np.float32)

    def raw(self, name: str) -> RawTensor:
        rows, cols = self._shapes[name]
        kind = next(kind for kind in map(find_type, range(42)) if kind and kind.name == self._types[name])
        data = np.zeros(rows * cols // kind.block_size * kind.block_bytes, np.uint8)
        return RawTensor(kind.name, data, (rows, cols))

    def release(self, name: str, rows=None) -> None:
        pass


WIDE = {"hidden_size": 256, "intermediate_size": 768, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32}
BIASES = ("has_qkv_bias", "has_o_bias", "has_mlp_bias")
CHANGES = {
    "llama": {},
    "untied": {"is_tied": False},
    "qwen3": {"architecture": "qwen3", "has_qk_norm": True},
    "biases": {"architecture": "qwen2", "has_qkv_bias": True},
    "granite": {"architecture": "granite", "residual_scale": 0.5, "embedding_scale": 2.0, "logits_scale": 0.1},
    "large vocabulary": {"vocab_size": 30_000},
    "gpt2": {"architecture": "gpt2", "rope": None, **dict.fromkeys(BIASES, True)},
    "opt-350m": {"architecture": "opt", "rope": None, "is_post_norm": True, "hidden_size": 512, "embedding_size": 256},
    "gpt_neox": {"architecture": "gpt_neox", "is_parallel": True, "intermediate_size": 1024},
    "gemma3": {"architecture": "gemma3", "local_rope": RopeShape(dims=32), "sliding_window": 8, "logits_soft_cap": 3.0},
    "olmo2": {"architecture": "olmo2"},
}


@pytest.mark.parametrize("kind", ["BF16", "Q4_1", "Q6_K", "mixed"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("limits", [{"max_num_batched_tokens": 512, "max_num_seqs": 8}, {"max_num_batched_tokens": 64}])
def test_what_the_native_executor_takes_is_what_was_planned(kind: str, change: str, limits: dict[str, int]) -> None:
    shape = dataclasses.replace(SHAPE, **(WIDE | {"rope": RopeShape(dims=32)} | CHANGES[change]))
    program = make_program(shape)
    types = types_of(program, "Q4_K" if kind == "mixed" else kind)
    if kind == "mixed":
        types |= {
            "layers.0.mlp.down.weight": "Q6_K",
            "layers.1.attn.v.weight": "Q6_K",
            "layers.1.mlp.up.weight": "Q8_0",  # another form than its gate: two values, and no gated product
        }
    config = EngineConfig(max_num_seqs=64) if "max_num_seqs" not in limits else EngineConfig()
    config = dataclasses.replace(config, **limits)
    store = KVStore(program.caches, num_blocks=40, block_size=16, dtype="bfloat16")
    executor = NativeExecutor(
        program, Zeros(program, types), store, threads=2, limits=make_limits(program, store, config)
    )
    made = native_costs(program, types, config, 2)
    vectors = sum(4 * math.prod(shape) for shape in program.weights.values() if len(shape) == 1)
    assert made.weights_bytes - vectors == executor.weights_bytes
    num_ropes = 0 if shape.rope is None else 1
    rest = 2 * program.vocab_size * 2 * 4 + num_ropes * 2 * 4 * 512 * 16  # sampling, and rotary tables
    assert executor.workspace_bytes <= made.workspace_bytes - rest
    if not _native.step_kernels()[2]:  # else rows for bf16 matrices are half as wide
        assert made.workspace_bytes - rest <= 1.01 * executor.workspace_bytes


def test_the_plan_tells_the_forms_and_what_the_cache_is_kept_in() -> None:
    config = EngineConfig(kv_cache_dtype="int8")
    lines = plan_memory(PROGRAM, native_costs(PROGRAM, types_of(PROGRAM, "Q8_0"), config, 1), config, GIB).lines()
    assert lines[0].startswith("weights") and "in q8 (" in lines[0] and "float32 (1.2 KiB)" in lines[0]  # noqa: PT018
    assert "160 bytes a token in int8; mapped" in lines[1]
