import gc
import sys
from collections.abc import Callable

import numpy as np
import pytest

from headway.core.sequence import Sequence
from headway.core.step import StepPlan, TableChange
from headway.engine.batch import Batch


def make_sequence(name: str, row: int, tokens: list[int], num_computed: int) -> Sequence:
    return Sequence(
        request_id=name,
        choice=0,
        arrival=row,
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        max_total_tokens=12,
        row=row,
        num_computed_tokens=num_computed,
    )


def lists(step) -> dict[str, list]:
    arrays = step.arrays
    return {name: getattr(arrays, name).tolist() for name in arrays.__dataclass_fields__}


def test_a_mixed_step_of_a_stream_a_chunk_and_a_whole_prompt():
    matrix = np.zeros((4, 12), np.int32)
    batch = Batch(matrix, block_size=4)
    stream = make_sequence("stream", 2, [10, 11, 12, 13, 14], 4)  # in blocks 7, 5
    chunk = make_sequence("chunk", 0, [20, 21, 22, 23, 24, 25, 26, 27, 28], 3)  # in blocks 1, 2; 9 tokens in all
    prompt = make_sequence("prompt", 3, [30, 31], 0)  # in block 6
    for sequence in (stream, chunk, prompt):
        batch.start(sequence)
    batch.change_tables([TableChange(stream, 0, [7, 5]), TableChange(chunk, 0, [1]), TableChange(prompt, 0, [6])])
    batch.change_tables([TableChange(chunk, 1, [2])])
    plan = StepPlan(sequences=[stream, chunk, prompt], num_tokens=[1, 4, 2])
    step = batch.make_step(plan)
    assert lists(step) == {
        "token_ids": [14, 23, 24, 25, 26, 30, 31],
        "positions": [4, 3, 4, 5, 6, 0, 1],
        "query_starts": [0, 1, 5, 7],
        "context_lens": [5, 7, 2],
        "block_tables": [[7, 5], [1, 2], [6, 0]],
        "slots": [20, 7, 8, 9, 10, 24, 25],
        "logit_rows": [0, 4, 6],
    }
    assert (step.sampled, step.behind, step.is_sampled.tolist()) == ([stream, prompt], [chunk], [True, False, True])
    assert (step.rows.tolist(), step.num_tokens.tolist()) == ([2, 3], [5, 2])
    batch.append(step, np.array([15, 32], np.int32))
    assert matrix[2, :7].tolist() == [10, 11, 12, 13, 14, 15, 0]
    assert matrix[3, :4].tolist() == [30, 31, 32, 0]
    kinds = {name: getattr(step.arrays, name).dtype for name in lists(step)}
    assert kinds.pop("slots") == np.int64
    assert set(kinds.values()) == {np.dtype(np.int32)}


def test_a_step_of_streams_only():
    batch = Batch(np.zeros((4, 12), np.int32), block_size=4)
    first, second = make_sequence("a", 1, [1, 2, 3], 2), make_sequence("b", 0, [4, 5, 6, 7, 8, 9, 10, 11, 12], 8)
    for sequence, block_ids in ((first, [3]), (second, [0, 1, 2])):
        batch.start(sequence)
        batch.change_tables([TableChange(sequence, 0, block_ids)])
    step = batch.make_step(StepPlan(sequences=[first, second], num_tokens=[1, 1]))
    assert lists(step) == {
        "token_ids": [3, 12],
        "positions": [2, 8],
        "query_starts": [0, 1, 2],
        "context_lens": [3, 9],
        "block_tables": [[3, 0, 0], [0, 1, 2]],
        "slots": [14, 8],
        "logit_rows": [0, 1],
    }
    assert (step.sampled, step.behind, step.is_sampled) == ([first, second], [], None)
    assert (step.rows.tolist(), step.num_tokens.tolist()) == ([1, 0], [3, 9])
    kinds = {name: getattr(step.arrays, name).dtype for name in lists(step)}
    assert kinds == dict.fromkeys(kinds, np.dtype(np.int32)) | {"slots": np.dtype(np.int64)}


def test_a_row_forgets_the_blocks_of_its_last_sequence():
    batch = Batch(np.zeros((2, 12), np.int32), block_size=4)
    for tokens, block_ids in (([1] * 11, [4, 5, 6]), ([2] * 3, [7])):
        sequence = make_sequence("a", 1, tokens, 0)
        batch.start(sequence)
        batch.change_tables([TableChange(sequence, 0, block_ids)])
        other = make_sequence("b", 0, [3] * 11, 10)
        batch.start(other)
        batch.change_tables([TableChange(other, 0, [1, 2, 3])])
    step = batch.make_step(StepPlan(sequences=[sequence, other], num_tokens=[3, 1]))
    assert step.arrays.block_tables.tolist() == [[7, 0, 0], [1, 2, 3]]


def test_a_chunk_that_reaches_no_end_is_not_sampled_and_its_last_token_is_looked_at():
    batch = Batch(np.zeros((1, 12), np.int32), block_size=4)
    sequence = make_sequence("a", 0, [1] * 9, 0)
    batch.start(sequence)
    batch.change_tables([TableChange(sequence, 0, [2])])
    step = batch.make_step(StepPlan(sequences=[sequence], num_tokens=[4]))
    assert (step.sampled, step.behind, step.arrays.logit_rows.tolist()) == ([], [sequence], [3])


@pytest.mark.parametrize("num_seqs", [1, 8])
def test_no_python_runs_for_each_token(num_seqs):
    batch = Batch(np.zeros((8, 4096), np.int32), block_size=16)
    sequences = [make_sequence(str(row), row, [1] * 4000, 0) for row in range(num_seqs)]
    for sequence in sequences:
        batch.start(sequence)
        batch.change_tables([TableChange(sequence, 0, list(range(250)))])
    num_calls = [
        count_calls(lambda plan=plan: batch.make_step(plan))
        for plan in (StepPlan(sequences=sequences, num_tokens=[length] * num_seqs) for length in (2, 3000))
    ]
    assert num_calls[0] == num_calls[1]


def count_calls(act: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, that `act` makes."""
    num_calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    gc.disable()  # what else is just collected does not count
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return num_calls
