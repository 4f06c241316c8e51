"""The memory plan of a small shape whose bytes are worked out by hand."""

import dataclasses

import pytest

from headway.config import EngineConfig
from headway.errors import InvalidConfig, OutOfMemory
from headway.executor.shard import shard_program
from headway.model import make_program
from headway.observe.sizes import size_text
from headway.planner.memory import plan_memory
from headway.planner.torch_costs import torch_costs
from small_shapes import LLAMA

SHAPE = LLAMA
PROGRAM = make_program(SHAPE)
LAYER = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128 + 2 * 64  # q, k and v, o, gate up down, norms
WEIGHTS = 2 * 1000 * 64 + 2 * LAYER + 64  # the tied table is laid out twice: for lookups, and for the product
TOKEN = 2 * 2 * 2 * 16 * 4  # layers, K and V, heads, dim, float32
GIB = 1 << 30


def plan(available=GIB, dtype="float32", **config):
    made = EngineConfig(**config)
    return plan_memory(PROGRAM, torch_costs(PROGRAM, dtype, made), made, available)


def test_weights_and_a_token_of_kv_cost_what_their_elements_cost():
    made = plan()
    assert (made.weights_bytes, made.kv_bytes_per_token) == (WEIGHTS * 4, TOKEN)
    half = plan(dtype="bfloat16")
    assert (half.weights_bytes, half.kv_bytes_per_token) == (WEIGHTS * 2, TOKEN // 2)


@pytest.mark.parametrize(
    ("config", "available", "num_blocks"),
    [
        ({}, GIB, 64 * 512 // 16),  # as many sequences as may run, each at the model's length
        ({"max_model_len": 100, "max_num_seqs": 3}, GIB, 3 * 7),  # 100 tokens take 7 blocks
        ({"kv_cache_memory": TOKEN * 16 * 5 + 7}, GIB, 5),  # bytes, rounded down to blocks
        ({"kv_cache_memory": 0.125, "block_size": 32}, GIB, GIB // 8 // (TOKEN * 32)),  # a fraction
        ({"max_num_seqs": 4096}, GIB // 4, GIB // 16 // (TOKEN * 16)),  # 25% of what there is
    ],
)
def test_the_pool_follows_the_rule(config, available, num_blocks):
    made = plan(available, **config)
    assert made.num_blocks == num_blocks
    assert made.kv_bytes == num_blocks * made.block_size * TOKEN


def test_the_models_own_length_is_lowered_to_the_pool_and_said():
    made = plan(kv_cache_memory=TOKEN * 160)
    assert (made.max_model_len, made.kv_tokens, made.is_lowered) == (160, 160, True)
    assert "the model could 512" in made.describe()


def test_a_length_that_was_asked_for_is_kept_and_not_called_lowered():
    made = plan(max_model_len=100)
    assert (made.max_model_len, made.is_lowered) == (100, False)
    assert "could" not in made.describe()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_model_len": 200, "kv_cache_memory": TOKEN * 160}, ["200", "160", str(TOKEN * 208)]),
        ({"max_model_len": 513}, ["513", "512"]),
        ({"kv_cache_memory": 100}, ["100", "16 tokens", str(TOKEN * 16)]),
        ({"kv_cache_memory": 1.5}, ["1.5", "fraction"]),
        ({"kv_cache_memory": 0.0}, ["0.0", "fraction"]),
        ({"kv_cache_memory": -1}, ["-1"]),
    ],
)
def test_what_cannot_be_is_refused_with_its_numbers(config, words):
    with pytest.raises(InvalidConfig) as refusal:
        plan(**config)
    assert all(word in refusal.value.message for word in words), refusal.value.message
    assert refusal.value.param in config


@pytest.mark.parametrize("config", [{}, {"kv_cache_memory": GIB}, {"max_num_batched_tokens": 10_000_000}])
def test_too_little_memory_names_the_bytes_needed_and_had(config):
    available = 100_000 if not config else GIB // 2
    with pytest.raises(OutOfMemory) as refusal:
        plan(available, **config)
    assert f"{available} bytes" in refusal.value.message
    assert "weights" in refusal.value.message


def test_a_pool_takes_no_more_than_weights_and_workspace_leave():
    least = plan()
    available = least.weights_bytes + least.workspace_bytes + 10 * TOKEN * 16
    made = plan(available)
    assert made.num_blocks == 10
    assert made.total_bytes == available


def test_the_workspace_grows_with_the_step_and_with_the_vocabulary():
    small, wide = plan(max_num_batched_tokens=64, max_num_seqs=4), plan(max_num_batched_tokens=128, max_num_seqs=4)
    # At its widest a token holds the residual (64), the gate's 128, the up's 128 and the active gate's 128.
    more_scores = 64 * 512 * 4
    assert wide.workspace_bytes - small.workspace_bytes == 64 * (64 + 3 * 128) * 4 + more_scores
    bigger = make_program(dataclasses.replace(SHAPE, vocab_size=2000))
    config = EngineConfig(max_num_batched_tokens=64, max_num_seqs=4)
    more = plan_memory(bigger, torch_costs(bigger, "float32", config), config, GIB)
    assert more.workspace_bytes - small.workspace_bytes == 4 * 1000 * 4


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 50, "5120.0 TiB")]
)
def test_sizes_read_well(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("config", "holds"),
    [
        ({"max_num_seqs": 3, "max_model_len": 512}, "holds 3.0 of these"),
        ({"max_num_seqs": 3, "max_model_len": 100}, "holds 3.0 of these"),  # 7 blocks of 16 each, 112 tokens
        ({"max_num_seqs": 3, "max_model_len": 100, "block_size": 512}, "holds 3.0 of these"),  # a whole block each
        ({"kv_cache_memory": TOKEN * 16 * 48}, "holds 1.5 of these"),  # 32 blocks each
    ],
)
def test_how_many_contexts_the_cache_holds_counts_whole_blocks(config, holds):
    assert holds in plan(**config).lines()[4]


def test_layers_with_a_window_keep_all_tokens_and_the_plan_says_so():
    shape = dataclasses.replace(SHAPE, num_layers=3, sliding_window=2048, full_layers=frozenset({1}))
    program, config = make_program(shape), EngineConfig()
    made = plan_memory(program, torch_costs(program, "float32", config), config, GIB)
    assert made.kv_bytes_per_token == TOKEN // 2 * 3
    (line,) = (line for line in made.lines() if line.startswith("windows"))
    assert line == "windows    2 of 3 layers see the last 2,048 tokens; they keep K and V of all tokens"
    assert not any(line.startswith("windows") for line in plan().lines())


def test_a_gpu_holds_a_tied_table_once_and_gives_the_pool_nine_tenths():
    config = EngineConfig(max_num_seqs=4096, max_num_batched_tokens=4096)
    costs = torch_costs(PROGRAM, "bfloat16", config, on_gpu=True)
    assert costs.weights_bytes == (WEIGHTS - 1000 * 64) * 2
    eager = torch_costs(PROGRAM, "bfloat16", dataclasses.replace(config, enforce_eager=True), on_gpu=True)
    assert costs.workspace_bytes == 2 * eager.workspace_bytes  # captured steps have their own
    available = 4 * GIB
    made = plan_memory(PROGRAM, costs, config, available, on_gpu=True)
    useful = 4096 * 512 // 16  # blocks; a block of bfloat16 is TOKEN * 8 bytes
    assert made.num_blocks == useful < available * 9 // 10 // (TOKEN * 8)
    less = GIB // 2
    left = less - costs.weights_bytes - costs.workspace_bytes
    assert plan_memory(PROGRAM, costs, config, less, on_gpu=True).num_blocks == min(less * 9 // 10, left) // (TOKEN * 8)


def test_of_several_processes_each_has_its_part_of_the_pool_and_errors_name_what_all_need():
    part = shard_program(PROGRAM, 0, 2).program
    config = EngineConfig(tensor_parallel_size=2, kv_cache_memory=TOKEN * 16 * 5)
    costs = torch_costs(part, "float32", config)
    made = plan_memory(part, costs, config, GIB)
    assert costs.kv_bytes_per_token == TOKEN // 2
    assert (made.num_blocks, made.kv_bytes) == (5, TOKEN * 16 * 5 // 2)
    assert made.lines()[0] == "each of 2 processes (--tensor-parallel-size) holds its part:"
    asked = dataclasses.replace(config, kv_cache_memory=TOKEN * 16, max_model_len=17)
    with pytest.raises(InvalidConfig, match=rf"of {TOKEN * 16} bytes holds 16 tokens: .* at least {TOKEN * 16 * 2}$"):
        plan_memory(part, costs, asked, GIB)
    with pytest.raises(OutOfMemory, match=r"^each of 2 processes of the model needs"):
        plan_memory(part, costs, config, 1000)
