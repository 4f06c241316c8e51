"""Grouping of a step's sequences, against what can be said of it by hand and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.executor.base import StepArrays
from headway.executor.groups import GPU_LIMITS, MAX_SLICES, GroupLimits, make_groups

BLOCK = 4


def step_of(runs):
    """A step of (query length, context length) runs; sequence s has blocks 100 s, 100 s + 1, ..."""
    lengths = np.array([length for length, _ in runs], np.int32)
    contexts = np.array([context for _, context in runs], np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    positions = [np.arange(context - length, context) for length, context in runs]
    width = int(max(contexts, default=0) + BLOCK - 1) // BLOCK
    blocks = np.arange(len(runs))[:, None] * 100 + np.arange(width)[None, :]
    used = np.arange(width)[None, :] < -(-contexts[:, None] // BLOCK)
    return StepArrays(
        token_ids=np.zeros(int(starts[-1]), np.int32),
        positions=np.concatenate([*positions, []]).astype(np.int32),
        query_starts=starts,
        context_lens=contexts,
        block_tables=np.where(used, blocks, 0).astype(np.int32),
        slots=np.zeros(int(starts[-1]), np.int64),
        logit_rows=np.zeros(0, np.int32),
    )


def test_nothing_to_do_makes_no_group():
    assert make_groups(step_of([]), BLOCK) == ()


def test_decodes_of_like_contexts_are_one_group_in_their_order():
    (group,) = make_groups(step_of([(1, 5), (1, 64), (1, 33)]), BLOCK)
    assert group.rows.tolist() == [[0], [1], [2]]
    assert group.query_positions.tolist() == [[4], [63], [32]]
    assert group.context_lens.tolist() == [5, 64, 33]
    assert group.blocks.shape == (3, 16)
    assert group.blocks[0].tolist() == [0, 1, *[0] * 14]
    assert not group.is_fresh


def test_short_queries_are_padded_by_their_last_token():
    (group,) = make_groups(step_of([(3, 10), (4, 11)]), BLOCK)
    assert group.rows.tolist() == [[0, 1, 2, 2], [3, 4, 5, 6]]
    assert group.query_positions.tolist() == [[7, 8, 9, 9], [7, 8, 9, 10]]


def test_prompts_from_their_start_and_chunks_in_the_middle_are_apart():
    fresh, middle = sorted(make_groups(step_of([(8, 8), (8, 16)]), BLOCK), key=lambda group: not group.is_fresh)
    assert (fresh.is_fresh, fresh.rows[0, 0]) == (True, 0)
    assert (middle.is_fresh, middle.rows[0, 0]) == (False, 8)


def test_a_long_chunk_is_cut_so_that_no_call_has_more_scores_than_allowed():
    groups = make_groups(step_of([(64, 128)]), BLOCK, GroupLimits(max_scores=2048))
    assert sorted(group.query_positions.tolist()[0][0] for group in groups) == [64, 80, 96, 112]
    assert all(group.query_len == 16 for group in groups)
    assert sorted(group.context_lens[0] for group in groups) == [80, 96, 112, 128]


@pytest.mark.parametrize("context", [16, 200])
def test_the_number_of_groups_does_not_grow_with_the_number_of_sequences(context):
    counts = [len(make_groups(step_of([(1, context)] * num), 16)) for num in (1, 8, 64, 256)]
    assert counts[0] == 1
    assert max(counts) <= MAX_SLICES


def test_on_a_gpu_a_class_is_one_group_unless_it_gathers_more_than_it_may():
    assert len(make_groups(step_of([(1, 200)] * 64), 16, GPU_LIMITS)) == 1
    assert len(make_groups(step_of([(1, 4096)] * 128), 16, GPU_LIMITS)) == 2  # 262,144 tokens each


RUNS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 90)).map(lambda pair: (pair[0], sum(pair))), min_size=1, max_size=12
)


@given(RUNS, st.sampled_from([64, 500, 1 << 24]))
def test_every_token_is_in_one_group_with_all_of_its_context(runs, max_scores):
    step = step_of(runs)
    seen = {}
    for group in make_groups(step, BLOCK, GroupLimits(max_scores=max_scores)):
        for rows, positions, context, blocks in zip(
            group.rows, group.query_positions, group.context_lens, group.blocks, strict=True
        ):
            for row, position in dict(zip(rows.tolist(), positions.tolist(), strict=True)).items():
                assert row not in seen
                seen[row] = position
                assert position < context
                sequence = int(np.searchsorted(step.query_starts, row, side="right")) - 1
                needed = -(-int(context) // BLOCK)
                assert blocks[:needed].tolist() == [sequence * 100 + at for at in range(needed)]
    assert seen == dict(enumerate(step.positions.tolist()))
