"""What mixtures of experts and latent attention cost, worked out by hand."""

import dataclasses
import math

import numpy as np
import pytest

from headway import _native
from headway.cache.kv_store import KVStore, bytes_per_token
from headway.checkpoint.raw import RawTensor
from headway.checkpoint.shape import ExpertsShape, LatentShape, RopeShape
from headway.config import EngineConfig
from headway.executor.factory import make_limits
from headway.executor.native import NativeExecutor
from headway.model import make_program
from headway.model.program import Program
from headway.planner.kv_kinds import describe_kv, kv_costs
from headway.planner.native_costs import matrix_forms, native_costs, router_names
from headway.planner.torch_costs import torch_costs
from small_shapes import LLAMA

EXPERTS = ExpertsShape(num_experts=8, top_k=2, width=96, layers=frozenset({0, 1}), normalise=True)
MIXTRAL = dataclasses.replace(LLAMA, architecture="mixtral", intermediate_size=96, is_tied=False, experts=EXPERTS)
LATENT = LatentShape(q_rank=48, kv_rank=32, nope_dim=16, rope_dim=8, v_dim=24)
DEEPSEEK = dataclasses.replace(
    MIXTRAL,
    architecture="deepseek_v3",
    num_kv_heads=4,
    head_dim=24,
    rope=RopeShape(dims=8),
    latent=LATENT,
    experts=dataclasses.replace(
        EXPERTS, layers=frozenset({1}), scoring="sigmoid", has_choice_bias=True, shared_width=96
    ),
)
QWEN = dataclasses.replace(
    MIXTRAL,
    architecture="qwen2_moe",
    has_qkv_bias=True,
    experts=dataclasses.replace(EXPERTS, shared_width=160, has_shared_gate=True),
)
SHAPES = {"mixtral": MIXTRAL, "qwen2_moe": QWEN, "deepseek_v3": DEEPSEEK}


class Zeros:
    """Weights of a Program in float32."""

    def __init__(self, program: Program) -> None:
        self._shapes = program.weights

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self._shapes)

    def read(self, name: str) -> np.ndarray:
        return np.zeros(self._shapes[name], np.float32)

    def raw(self, name: str) -> RawTensor:
        shape = self._shapes[name]
        return RawTensor("F32", np.zeros(4 * math.prod(shape), np.uint8), shape)

    def release(self, name: str, rows: tuple[int, int] | None = None) -> None:
        pass


def types_of(program: Program) -> dict[str, str]:
    return dict.fromkeys(program.weights, "F32")


def test_a_token_is_multiplied_by_the_experts_that_it_is_given_and_no_others() -> None:
    program = make_program(MIXTRAL)
    assert program.num_weights - program.num_active_weights == 2 * 6 * 3 * 64 * 96
    assert make_program(dataclasses.replace(MIXTRAL, experts=None)).num_active_weights == (
        program.num_active_weights - 2 * (3 * 64 * 96 + 8 * 64)
    )


def test_all_experts_are_held_and_routers_are_never_narrowed() -> None:
    program = make_program(MIXTRAL)
    forms = matrix_forms(program, types_of(program), EngineConfig(quantization="int4"))
    assert router_names(program) == {"layers.0.mlp.router.weight", "layers.1.mlp.router.weight"}
    assert {forms[name].form for name in router_names(program)} == {"bf16"}
    assert {forms[name].form for name in program.weights if ".experts." in name} == {"q4"}
    # Panels of 16 rows: 4 bits a weight, and for each group of 32 columns a scale and a min, aligned to 64 bytes.
    of_one = 2 * 6 * (16 * 64 // 2 + 2 * 64) + 4 * (16 * 96 // 2 + 2 * 128)
    held = native_costs(program, types_of(program), EngineConfig(quantization="int4"), 1).weights_bytes
    fewer = make_program(dataclasses.replace(MIXTRAL, experts=dataclasses.replace(EXPERTS, num_experts=7)))
    less = native_costs(fewer, types_of(fewer), EngineConfig(quantization="int4"), 1).weights_bytes
    assert held - less == 2 * of_one  # a router of 7 rows is as large as one of 8: panels have 16


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("limits", [{"max_num_batched_tokens": 512, "max_num_seqs": 8}, {"max_num_batched_tokens": 64}])
def test_what_the_native_executor_takes_is_what_was_planned(
    name: str, quantization: str | None, limits: dict[str, int]
) -> None:
    program = make_program(SHAPES[name])
    config = dataclasses.replace(EngineConfig(max_num_seqs=64, quantization=quantization), **limits)
    store = KVStore(program.caches, num_blocks=40, block_size=16, dtype="bfloat16")
    executor = NativeExecutor(
        program,
        Zeros(program),
        store,
        threads=2,
        limits=make_limits(program, store, config),
        quantization=quantization,
    )
    made = native_costs(program, types_of(program), config, 2)
    vectors = sum(4 * math.prod(shape) for shape in program.weights.values() if len(shape) == 1)
    # Router and shared gate are planned as two matrices, and held as one where they are of one form.
    assert 0 <= made.weights_bytes - vectors - executor.weights_bytes <= 2 * 16 * 64 * 2
    rope = SHAPES[name].rope
    assert rope is not None
    rest = 2 * 1000 * 2 * 4 + 2 * 4 * 512 * rope.dims // 2  # sampling, and rotary tables
    rest += 2 * 4 * 112 * 256  # of each thread, a block of what experts make
    assert executor.workspace_bytes <= made.workspace_bytes - rest
    if not _native.step_kernels()[2]:  # else rows for bf16 matrices are half as wide
        assert made.workspace_bytes - rest <= 1.02 * executor.workspace_bytes


def test_a_latent_is_kept_once_for_all_heads_and_for_keys_and_values() -> None:
    program = make_program(DEEPSEEK)
    config = EngineConfig()
    assert native_costs(program, types_of(program), config, 1).kv_bytes_per_token == 2 * (32 + 8) * 2
    assert torch_costs(program, "float32", config).kv_bytes_per_token == 2 * (32 + 8) * 4
    int8 = native_costs(program, types_of(program), EngineConfig(kv_cache_dtype="int8"), 1)
    assert int8.kv_bytes_per_token == 2 * (32 + 8 + 4)
    assert bytes_per_token(program.caches[0], "int8") == (32 + 8 + 4, 0)
    store = KVStore(program.caches, num_blocks=3, block_size=16, dtype="bfloat16")
    assert [len(memory) for memory in store.buffers(0)] == [3 * 16 * 40 * 2, 0]


LITE = LatentShape(q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
BIG = {"vocab_size": 256, "hidden_size": 256, "max_position": 4096}
KEPT = {
    "Mixtral 8x7B": (
        dataclasses.replace(MIXTRAL, **BIG, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128),
        [("GQA", 131_072), ("MHA", 524_288), ("MQA", 16_384)],
    ),
    "Qwen3-30B-A3B": (
        dataclasses.replace(MIXTRAL, **BIG, num_layers=48, num_heads=32, num_kv_heads=4, head_dim=128),
        [("GQA", 98_304), ("MHA", 786_432), ("MQA", 24_576)],
    ),
    "DeepSeek-V2-Lite": (
        dataclasses.replace(DEEPSEEK, **BIG, num_layers=27, num_heads=16, num_kv_heads=16, head_dim=192, latent=LITE),
        [("MLA", 31_104), ("MHA", 276_480), ("MQA", 17_280)],
    ),
    "DeepSeek-V3": (
        dataclasses.replace(DEEPSEEK, **BIG, num_layers=61, num_heads=128, num_kv_heads=128, head_dim=192, latent=LITE),
        [("MLA", 70_272), ("MHA", 4_997_120), ("MQA", 39_040)],
    ),
}


@pytest.mark.parametrize("model", KEPT)
def test_bytes_a_token_of_each_kind_of_attention(model: str) -> None:
    shape, wanted = KEPT[model]
    shape = dataclasses.replace(shape, rope=RopeShape(dims=64))
    assert [(cost.kind, cost.bytes_per_token) for cost in kv_costs(make_program(shape), "bfloat16")] == wanted


def test_they_are_told_in_a_line() -> None:
    (line,) = describe_kv(make_program(DEEPSEEK))
    assert line == "KV cache: MLA 160 bytes a token in float16 (of the same heads: MHA 768, MQA 192)"
