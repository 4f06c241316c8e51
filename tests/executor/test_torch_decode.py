"""Which steps are replayed, what they are padded to, and that padding touches nobody."""

import dataclasses

import numpy as np
import pytest
import torch

from executor.test_torch import RandomWeights, make, prompts
from headway.errors import OutOfMemory
from headway.executor.base import StepArrays
from headway.executor.torch import DecodePlan
from headway.executor.torch_decode import DecodeGraphs, DecodeShape, decode_shapes, decode_sizes, run_again
from headway.executor.torch_staging import HostRows, PinnedRows
from recorded_capture import RecordedCapture


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def decodes(contexts: list[int], *, block_size: int = 16, logit_rows: list[int] | None = None) -> StepArrays:
    """A step of one token for each context; only its sizes matter."""
    count, blocks = len(contexts), -(-max(contexts) // block_size)
    return StepArrays(
        token_ids=np.zeros(count, np.int32),
        positions=np.array(contexts, np.int32) - 1,
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lens=np.array(contexts, np.int32),
        block_tables=np.zeros((count, blocks), np.int32),
        slots=np.zeros(count, np.int64),
        logit_rows=np.array(range(count) if logit_rows is None else logit_rows, np.int32),
    )


def graphs(max_num_seqs: int, max_context: int, *, block_size: int = 16) -> DecodeGraphs:
    return DecodeGraphs(
        decode_shapes(max_num_seqs, max_context, block_size),
        block_size=block_size,
        pad_block=99,
        vocab_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
        body=lambda tensors: torch.zeros(tensors.token_ids.shape[0], 4),
        capture=run_again,
    )


def test_sizes_are_few_and_end_with_the_largest_step() -> None:
    assert decode_sizes(1) == (1,)
    assert decode_sizes(6) == (1, 2, 4, 6)
    assert decode_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert decode_sizes(70)[-2:] == (64, 70)
    assert decode_sizes(10_000)[-2:] == (240, 256)


def test_contexts_double_up_to_the_longest_and_no_shape_gathers_more_than_a_step_may() -> None:
    # 128 tokens are 8 blocks of 16; 1,000 are 63.
    assert [shape.num_blocks for shape in decode_shapes(1, 1000, 16)] == [8, 16, 32, 63]
    assert decode_shapes(2, 5, 1)[0] == DecodeShape(1, 5)
    shapes = decode_shapes(64, 131_072, 16)
    assert max(shape.num_seqs * shape.num_blocks * 16 for shape in shapes) == 262_144
    assert DecodeShape(1, 8192) in shapes
    assert DecodeShape(64, 256) in shapes
    assert DecodeShape(64, 512) not in shapes


def test_a_step_takes_the_least_shape_that_holds_it() -> None:
    made = graphs(64, 4096)
    assert made.choose(decodes([1])) == DecodeShape(1, 8)
    assert made.choose(decodes([128] * 3)) == DecodeShape(4, 8)
    assert made.choose(decodes([129] * 33)) == DecodeShape(40, 16)
    assert made.choose(decodes([4096] * 2)) == DecodeShape(2, 256)


def test_what_no_shape_holds_runs_op_by_op() -> None:
    made = graphs(4, 256)
    assert made.choose(decodes([9] * 5)) is None  # more sequences
    assert made.choose(decodes([257])) is None  # a longer one
    assert made.choose(decodes([9, 9], logit_rows=[1])) is None  # not everybody's logits
    assert made.choose(decodes([9, 9], logit_rows=[1, 0])) is None  # in another order
    assert made.choose(prompts([[1, 2]])) is None  # two tokens of one
    assert made.choose(dataclasses.replace(prompts([]), block_tables=np.zeros((0, 1), np.int32))) is None


def test_a_step_that_would_mostly_gather_padding_runs_op_by_op() -> None:
    made = graphs(64, 4096)
    assert made.choose(decodes([4096] + [16] * 3)) == DecodeShape(4, 256)  # 16,384 tokens altogether are few
    assert made.choose(decodes([4096] + [16] * 7)) is None
    assert made.choose(decodes([4096] + [2048] * 7)) == DecodeShape(8, 256)


def test_rows_that_pad_a_step_write_to_no_block_of_a_sequence_and_read_none() -> None:
    executor, alone = make(decode=DecodePlan(8, 64, RecordedCapture()), num_blocks=4), make(num_blocks=4)
    runs, tables = [[3, 5, 7], [9, 1], [2, 2, 2, 2]], [[0], [3], [1]]
    for each in (executor, alone):
        each.execute(prompts(runs, tables=tables))
    for position in range(6):
        step = prompts([[4], [6], [8]], tables=tables, first_positions=[3 + position, 2 + position, 4 + position])
        np.testing.assert_allclose(executor.execute(step), alone.execute(step), atol=1e-5)
    # Block 2 is nobody's: a whole prompt there finds it as new, and sequence 0 goes on where it was.
    step = prompts([[5] * 16, [1]], tables=[[2], [0]], first_positions=[0, 9])
    np.testing.assert_allclose(executor.execute(step), alone.execute(step), atol=1e-5)


def test_a_sequence_that_became_nan_spoils_neither_its_neighbours_nor_who_gets_its_blocks() -> None:
    embed = RandomWeights().arrays["embed.weight"].copy()
    embed[13] = np.nan
    executor = make(weights=RandomWeights(embed__weight=embed), decode=DecodePlan(2, 64, RecordedCapture()))
    clean, columns = make(), [at for at in range(40) if at != 13]
    spoilt = executor.execute(prompts([[13] * 16, [3, 5, 7]], tables=[[0], [1]]))
    assert np.isnan(spoilt[0]).all()
    assert np.isfinite(spoilt[1, columns]).all()
    token = executor.execute(prompts([[13], [4]], tables=[[2], [1]], first_positions=[0, 3]))
    wanted = clean.execute(prompts([[3, 5, 7, 4]]))
    np.testing.assert_allclose(token[1, columns], wanted[0, columns], atol=1e-5)
    # Block 0 is full of NaN: the next sequence there has three of its slots, then a fourth.
    executor.execute(prompts([[3, 5, 7]], tables=[[0]]))
    again = executor.execute(prompts([[4]], tables=[[0]], first_positions=[3]))
    np.testing.assert_allclose(again[0, columns], wanted[0, columns], atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_replayed_half_types_give_what_they_give_op_by_op(dtype: str) -> None:
    executor, plain = make(dtype=dtype, decode=DecodePlan(4, 64, RecordedCapture())), make(dtype=dtype)
    for step in (
        prompts([[3, 5, 7], [9]], tables=[[0], [1]]),
        prompts([[4], [6]], tables=[[0], [1]], first_positions=[3, 1]),
    ):
        made, wanted = executor.execute(step), plain.execute(step)
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, wanted, atol=0.05 * float(np.abs(wanted).max()))


def test_each_shape_is_captured_once_and_a_profile_runs_op_by_op() -> None:
    capture = RecordedCapture()
    executor = make(decode=DecodePlan(4, 300, capture))
    assert capture.num_captured == 3 * 3  # 1, 2, 4 sequences of 128, 256, 300 tokens
    step = prompts([[4]])
    wanted = executor.execute(step).copy()
    executor.time_ops(True)
    np.testing.assert_allclose(executor.execute(step), wanted, atol=1e-5)
    assert capture.num_replays == 1
    assert executor.op_times()


def test_memory_that_a_device_does_not_give_is_told_with_what_was_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = make()
    said = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB."

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError(said)

    monkeypatch.setattr(executor, "_compute", fail)
    with pytest.raises(OutOfMemory, match=r"no memory left while a step is computed: Tried to allocate 2\.00 GiB: "):
        executor.execute(prompts([[1]]))


@pytest.mark.parametrize("num_elements", [1, 6, 7, 1000])
def test_staged_rows_arrive_whatever_the_size_of_the_pieces(num_elements: int) -> None:
    staging = PinnedRows(torch.bfloat16, torch.device("cpu"), num_elements=num_elements)
    for shape in ((5, 3), (7,), (2, 3, 4), (9, 40)):
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        array.flags.writeable = False
        target = torch.empty(shape, dtype=torch.bfloat16)
        staging.copy(target, array)
        assert torch.equal(target, torch.from_numpy(array.copy()).bfloat16())


def test_logits_come_to_the_host_as_float32() -> None:
    rows = HostRows().read(torch.ones(2, 3, dtype=torch.bfloat16))
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1, 1, 1], [1, 1, 1]]
