"""What a rank has of a Program: whole groups of heads, each weight once or everywhere, two sums a layer."""

from dataclasses import replace

import numpy as np
import pytest

from headway.checkpoint.shape import RopeShape
from headway.errors import InvalidConfig, InvariantBroken, UnsupportedModel
from headway.executor.native import native_refusal
from headway.executor.shard import Range, Share, WeightPart, deal, shard_program
from headway.executor.shard_weights import ShardWeights
from headway.model import make_program
from headway.model.ops import AllGather, AllReduce, Attention, Linear
from headway.model.program import Program
from small_shapes import LLAMA


class Arrays:
    """Weights whose elements are all different."""

    def __init__(self, program: Program) -> None:
        self.arrays = {}
        first = 0
        for name, shape in program.weights.items():
            size = int(np.prod(shape))
            self.arrays[name] = np.arange(first, first + size, dtype=np.float32).reshape(shape)
            first += size

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.arrays.items()}

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name]


def heads_of(program: Program) -> list[tuple[int, int]]:
    return [(op.num_heads, op.num_kv_heads) for op in program.ops if isinstance(op, Attention)]


@pytest.mark.parametrize(
    ("units", "size", "ranges"),
    [
        (4, 2, ((0, 2), (2, 4))),
        (7, 3, ((0, 3), (3, 5), (5, 7))),
        (2, 4, ((0, 1), (0, 1), (1, 2), (1, 2))),
        (1, 3, ((0, 1), (0, 1), (0, 1))),
        (5, 1, ((0, 5),)),
    ],
)
def test_units_are_dealt_out_evenly_and_the_first_ranks_have_what_is_left(
    units: int, size: int, ranges: tuple[Range, ...]
) -> None:
    assert deal(units, size) == Share(units, ranges)


def test_a_rank_s_columns_are_those_of_its_units() -> None:
    assert deal(4, 2).columns(1, 64) == (32, 64)
    assert deal(7, 3).columns(1, 14) == (6, 10)


def test_a_rank_has_its_heads_and_its_part_of_each_matrix() -> None:
    shard = shard_program(make_program(LLAMA), 1, 2)
    assert heads_of(shard.program) == [(2, 1), (2, 1)]
    assert [cache.num_kv_heads for cache in shard.program.caches] == [1, 1]
    assert shard.program.weights["layers.0.attn.q.weight"] == (32, 64)
    assert shard.program.weights["layers.0.attn.k.weight"] == (16, 64)
    assert shard.program.weights["layers.0.attn.o.weight"] == (64, 32)
    assert shard.program.weights["layers.0.mlp.gate.weight"] == (64, 64)
    assert shard.program.weights["layers.0.mlp.down.weight"] == (64, 64)
    assert shard.program.weights["embed.weight"] == (1000, 64)
    assert shard.program.weights["embed.weight.part"] == (500, 64)
    assert shard.parts["layers.1.attn.o.weight"] == WeightPart("layers.1.attn.o.weight", columns=(32, 64))
    assert shard.parts["embed.weight.part"] == WeightPart("embed.weight", rows=(500, 1000))


def test_a_layer_has_one_sum_behind_its_attention_and_one_behind_its_mlp() -> None:
    ops = shard_program(make_program(LLAMA), 0, 2).program.ops
    sums = [op.input for op in ops if isinstance(op, AllReduce)]
    assert sums == ["layers.0.attn.o", "layers.0.mlp.down", "layers.1.attn.o", "layers.1.mlp.down"]
    assert [(op.input, op.parts) for op in ops if isinstance(op, AllGather)] == [("scores", (500, 500))]


def test_fewer_key_heads_than_ranks_are_on_several_of_them() -> None:
    ranks = [shard_program(make_program(LLAMA), rank, 4) for rank in range(4)]
    assert [heads_of(rank.program)[0] for rank in ranks] == [(1, 1)] * 4
    assert [rank.parts["layers.0.attn.k.weight"].rows for rank in ranks] == [(0, 16), (0, 16), (16, 32), (16, 32)]


@pytest.mark.parametrize("size", [2, 4])
def test_each_element_of_a_weight_is_on_one_rank_or_on_all_but_for_heads_that_several_need(size: int) -> None:
    program = make_program(replace(LLAMA, has_o_bias=True, has_mlp_bias=True, has_qkv_bias=True, vocab_size=1001))
    arrays = Arrays(program)
    seen: dict[float, int] = {}
    for rank in range(size):
        shard = shard_program(program, rank, size)
        weights = ShardWeights(arrays, shard.parts)
        for name, shape in shard.program.weights.items():
            assert weights.shapes()[name] == weights.read(name).shape == shape
            if name.endswith(".part"):
                continue  # the tied table is whole as well
            for value in weights.read(name).reshape(-1).tolist():
                seen[value] = seen.get(value, 0) + 1
    for name, array in arrays.arrays.items():
        once = "norm" not in name and name != "embed.weight"
        copies = size // 2 if ".attn.k." in name or ".attn.v." in name else 1 if once else size
        assert {seen[value] for value in array.reshape(-1).tolist()} == {copies}, name


def test_the_bias_of_a_sum_is_added_by_the_first_rank_alone() -> None:
    program = make_program(replace(LLAMA, has_o_bias=True))
    has_bias = [
        [
            op.bias is not None
            for op in shard_program(program, rank, 2).program.ops
            if isinstance(op, Linear) and op.out == "layers.0.attn.o"
        ]
        for rank in range(2)
    ]
    assert has_bias == [[True], [False]]


def test_an_mlp_that_does_not_divide_is_dealt_out_all_the_same() -> None:
    program = make_program(replace(LLAMA, intermediate_size=101))
    widths = [shard_program(program, rank, 2).program.weights["layers.0.mlp.up.weight"][0] for rank in range(2)]
    assert widths == [51, 50]


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "size", "fitting"),
    [(9, 3, 2, "1, 3, 9"), (6, 2, 3, "1, 2, 6"), (4, 4, 8, "1, 2, 4"), (12, 3, 2, "1, 3, 6, 12")],
)
def test_heads_that_do_not_divide_are_refused_with_what_does(
    num_heads: int, num_kv_heads: int, size: int, fitting: str
) -> None:
    shape = replace(LLAMA, num_heads=num_heads, num_kv_heads=num_kv_heads)
    words = f"is {size}, .* {num_heads} heads and {num_kv_heads} key and value heads, .*: give one of {fitting}$"
    with pytest.raises(InvalidConfig, match=words) as caught:
        shard_program(make_program(shape), 0, size)
    assert caught.value.param == "tensor_parallel_size"


def test_no_ranks_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size is 0; it must be at least 1"):
        shard_program(make_program(LLAMA), 0, 0)


def test_the_native_executor_does_not_run_a_part() -> None:
    refusal = native_refusal(shard_program(make_program(LLAMA), 0, 2).program, "auto")
    assert isinstance(refusal, UnsupportedModel)


def test_bytes_of_a_part_are_not_handed_out() -> None:
    shard = shard_program(make_program(LLAMA), 0, 2)
    with pytest.raises(InvariantBroken, match=r"layers\.0\.attn\.q\.weight"):
        ShardWeights(Arrays(make_program(LLAMA)), shard.parts).raw("layers.0.attn.q.weight")


def test_positions_turn_a_rank_s_heads_as_they_turn_all() -> None:
    program = make_program(replace(LLAMA, rope=RopeShape(dims=8)))
    turned = [op for op in shard_program(program, 1, 2).program.ops if op.out == "layers.0.attn.q.turned"]
    assert turned == [op for op in program.ops if op.out == "layers.0.attn.q.turned"]
    assert len(turned) == 1
