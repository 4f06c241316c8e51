import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.sequence import Fork, SequenceStatus
from headway.errors import InvalidConfig, InvariantBroken
from headway.scheduler.scheduler import SchedulerLimits


def test_sequences_join_and_leave_at_each_step(make_line):
    line = make_line(max_num_seqs=2)
    line.add("A", 3, 3)
    assert line.step() == {"A": 3}  # A alone
    line.add("B", 2, 4)
    assert line.step() == {"A": 1, "B": 2}  # B joins
    line.add("C", 4, 3)
    assert line.step() == {"A": 1, "B": 1}  # A gets its last token
    assert line.sequences["A"].status is SequenceStatus.FINISHED
    line.add("D", 1, 2)
    assert line.step() == {"B": 1, "C": 4}  # C takes A's place at once; B gets its third
    assert line.step() == {"B": 1, "C": 1}  # B ends
    assert line.step() == {"C": 1, "D": 1}  # D takes B's place; C ends
    assert line.step() == {"D": 1}
    assert not line.scheduler.has_work()
    assert line.kv_cache.num_used_blocks == 0


def test_four_of_two_requests_run_first_and_the_fifth_when_one_leaves(make_line):
    line = make_line(max_num_seqs=4)
    for name, num_output in [("A", 2), ("B", 3), ("C", 4), ("D", 4), ("E", 2)]:
        line.add(name, 2, num_output)
    assert line.step() == {"A": 2, "B": 2, "C": 2, "D": 2}
    assert line.step() == {"A": 1, "B": 1, "C": 1, "D": 1}
    assert line.step() == {"B": 1, "C": 1, "D": 1, "E": 2}
    assert line.step() == {"C": 1, "D": 1, "E": 1}
    assert not line.scheduler.has_work()


def test_streams_get_their_token_before_any_part_of_a_long_prompt(make_line):
    line = make_line(max_num_batched_tokens=8)
    line.add("A", 2, 9)
    line.add("B", 2, 9)
    assert line.step() == {"A": 2, "B": 2}
    line.add("long", 20, 1)
    line.add("next", 3, 1)
    assert line.step() == {"A": 1, "B": 1, "long": 6}
    assert line.step() == {"A": 1, "B": 1, "long": 6}
    assert line.step() == {"A": 1, "B": 1, "long": 6}
    assert line.step() == {"A": 1, "B": 1, "long": 2, "next": 3}
    assert line.step() == {"A": 1, "B": 1}


def test_without_chunked_prefill_a_prompt_runs_whole_and_a_longer_one_than_the_limit_is_the_only_one(make_line):
    line = make_line(max_num_batched_tokens=8, enable_chunked_prefill=False)
    line.add("long", 20, 2)
    line.add("A", 5, 3)
    line.add("B", 5, 2)
    line.add("C", 8, 1)
    assert line.step() == {"long": 20}
    assert line.step() == {"long": 1, "A": 5}  # B's 5 do not fit beside A's
    assert line.step() == {"A": 1, "B": 5}
    assert line.step() == {"A": 1, "B": 1, "C": 8}  # fits under no limit beside streams: still only one prompt
    assert not line.scheduler.has_work()


def test_the_latest_arrival_loses_its_blocks_and_comes_back_in_its_old_place(make_line):
    # 5 blocks of 4. A and B have 7 tokens each after the first step: 2 blocks each, one is free.
    line = make_line(num_blocks=5)
    a, b = line.add("A", 7, 6), line.add("B", 7, 4)
    assert line.step() == {"A": 7, "B": 7}
    line.add("C", 4, 1)
    assert line.step() == {"A": 1, "B": 1}  # 8 tokens each: full; C would need 2 blocks
    assert line.step() == {"A": 1}  # A takes the last block; B finds none and waits, with its blocks
    assert (a.num_preemptions, b.num_preemptions, b.status) == (0, 0, SequenceStatus.RUNNING)
    assert line.step() == {"A": 1}
    assert line.step() == {"A": 1}
    assert line.step() == {"A": 1}  # A ends with 13 tokens
    assert line.step() == {"B": 1, "C": 4}
    assert line.step() == {"B": 1}
    assert not line.scheduler.has_work()


def test_preemption_takes_from_the_latest_and_never_from_the_oldest(make_line):
    # 5 blocks of 4: A needs them all in the end, so B must give its own.
    line = make_line(num_blocks=5, enable_prefix_caching=False)
    a, b = line.add("A", 7, 13), line.add("B", 4, 8)
    timeline = line.run()
    assert a.num_preemptions == 0
    assert b.num_preemptions == 1
    assert line.scheduler.num_preemptions == 1
    assert [len(s.token_ids) for s in (a, b)] == [20, 12]
    assert timeline[0] == {"A": 7, "B": 4}
    assert timeline[-1].keys() == {"B"}
    recomputed = next(step["B"] for step in timeline[1:] if step.get("B", 0) > 1)
    assert recomputed > 4  # its prompt and its output until then, at once


def test_none_starts_in_the_blocks_that_a_stream_will_want_next(make_line):
    # 5 blocks of 4: A has 2 and will want a third; B needs 3, and there are 3.
    line = make_line(num_blocks=5)
    a, b = line.add("A", 7, 3), line.add("B", 9, 2)
    assert line.step() == {"A": 7}
    assert line.step() == {"A": 1}
    assert line.step() == {"A": 1}
    assert line.step() == {"B": 9}
    assert (a.num_preemptions, b.num_preemptions) == (0, 0)


def test_a_preempted_sequence_finds_its_blocks_in_the_tree_as_far_as_they_are_left(make_line):
    line = make_line(num_blocks=8, max_num_seqs=2)
    a = line.add("A", 9, 20)
    line.step()
    plan_before = a.num_computed_tokens
    line.scheduler._preempt(a, line.scheduler.schedule())
    line.scheduler.check()
    assert (plan_before, a.num_computed_tokens, a.row, a.status) == (9, 0, -1, SequenceStatus.WAITING)
    assert line.step() == {"A": 2}  # 10 tokens, 8 of them in the tree
    assert a.num_cached_tokens == 0  # its own blocks are no prefix hit


def test_a_sequence_that_is_preempted_too_often_is_handed_back(make_line):
    line = make_line(num_blocks=5, enable_prefix_caching=False, max_preemptions=0)
    line.add("A", 7, 13)
    b = line.add("B", 4, 8)
    over = []
    while line.scheduler.has_work():
        plan = line.scheduler.schedule()
        over += plan.over_limit
        line.apply(plan)
        line.scheduler.check()
    assert over == [b]
    assert b.status is SequenceStatus.FINISHED
    assert line.kv_cache.num_used_blocks == 0


def test_a_held_sequence_is_not_scheduled_and_gives_way(make_line):
    line = make_line(max_num_seqs=2)
    a, b = line.add("A", 2, 9), line.add("B", 2, 2)
    assert line.step() == {"A": 2, "B": 2}
    a.is_held = True
    assert line.step() == {"B": 1}
    assert not line.scheduler.has_work()
    line.add("C", 2, 1)
    line.add("D", 2, 1)
    assert line.step() == {"C": 2, "D": 2}  # A, held, gives its row
    assert (a.status, a.num_preemptions) == (SequenceStatus.WAITING, 0)
    assert not line.scheduler.has_work()
    a.is_held = False
    assert line.step() == {"A": 3}
    assert len(a.token_ids) == 4
    assert b.status is SequenceStatus.FINISHED


def test_a_held_oldest_does_not_block_the_pool(make_line):
    line = make_line(num_blocks=4, enable_prefix_caching=False)
    a = line.add("A", 8, 8)
    line.step()
    a.is_held = True
    b = line.add("B", 10, 6)
    line.run()
    assert b.status is SequenceStatus.FINISHED
    a.is_held = False
    line.run()
    assert a.status is SequenceStatus.FINISHED


def test_choices_of_one_prompt_wait_for_the_first_and_start_from_the_tree(make_line):
    line = make_line(max_num_batched_tokens=8)
    prompt = list(range(10))
    fork = Fork()
    for name in "XYZ":
        sequence = line.add(name, 0, 2, tokens=prompt)
        sequence.fork = fork
        fork.sequences.append(sequence)
    line.add("other", 2, 1)
    assert line.step() == {"X": 8}
    assert line.step() == {"X": 2, "other": 2}
    assert line.step() == {"X": 1, "Y": 2, "Z": 2}
    assert [line.sequences[name].num_cached_tokens for name in "XYZ"] == [0, 8, 8]


def test_if_the_first_choice_is_aborted_the_next_one_computes_the_prompt(make_line):
    line = make_line(max_num_batched_tokens=8)
    fork = Fork()
    for name in "XYZ":
        sequence = line.add(name, 0, 1, tokens=list(range(10)))
        sequence.fork = fork
        fork.sequences.append(sequence)
    assert line.step() == {"X": 8}
    line.scheduler.finish(line.sequences["X"])
    assert line.step() == {"Y": 2}  # 8 are in the tree already
    assert line.step() == {"Z": 2}


@pytest.mark.parametrize("stage", ["waiting", "running", "preempted"])
def test_a_sequence_can_be_taken_out_wherever_it_is(make_line, stage):
    line = make_line()
    sequence = line.add("A", 6, 5)
    if stage != "waiting":
        line.step()
    if stage == "preempted":
        line.scheduler._preempt(sequence, line.scheduler.schedule())
    line.scheduler.finish(sequence)
    line.scheduler.finish(sequence)
    line.scheduler.check()
    assert not line.scheduler.has_work()
    assert line.kv_cache.num_used_blocks == 0


def test_a_sequence_that_is_in_no_queue_is_an_error(make_line):
    line = make_line()
    sequence = line.add("A", 2, 2)
    line.scheduler.waiting.remove(sequence)
    with pytest.raises(InvariantBroken, match="not in its queue"):
        line.scheduler.finish(sequence)


@pytest.mark.parametrize(("max_num_seqs", "max_num_batched_tokens"), [(0, 8), (9, 8)])
def test_limits_that_can_not_work_are_refused(max_num_seqs, max_num_batched_tokens):
    with pytest.raises(InvalidConfig, match="max_num_seqs"):
        SchedulerLimits(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_nothing_is_lost_and_nobody_waits_for_ever(make_line, data):
    """Random arrivals, holds and aborts in a small pool: every step is sound, moves on, and at last all are done."""
    num_blocks, block_size = data.draw(st.integers(4, 12)), data.draw(st.integers(1, 4))
    line = make_line(
        num_blocks=num_blocks,
        block_size=block_size,
        enable_prefix_caching=data.draw(st.booleans()),
        enable_chunked_prefill=data.draw(st.booleans()),
        max_num_seqs=data.draw(st.integers(1, 4)),
        max_num_batched_tokens=data.draw(st.integers(4, 12)),
    )
    pool = num_blocks * block_size
    for number in range(data.draw(st.integers(1, 12))):
        num_prompt = data.draw(st.integers(1, pool - 1))
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=num_prompt, max_size=num_prompt))
        line.add(str(number), 0, data.draw(st.integers(1, pool - num_prompt)), tokens=tokens)
        for _ in range(data.draw(st.integers(0, 4))):
            if line.scheduler.has_work():
                running = [s for s in line.scheduler.running if not s.is_held]
                streams = {s.request_id for s in running if s.num_missing_tokens == 1}
                step = line.step()
                assert step
                first = min(running, key=lambda s: s.arrival, default=None)
                if first is not None and first.request_id in streams:
                    assert first.request_id in step  # the oldest stream never misses a step
        alive = [s for s in line.sequences.values() if s.status is not SequenceStatus.FINISHED]
        for sequence in data.draw(st.lists(st.sampled_from(alive), max_size=2, unique=True)) if alive else []:
            if data.draw(st.booleans()):
                line.scheduler.finish(sequence)
            else:
                sequence.is_held = not sequence.is_held
            line.scheduler.check()
    for sequence in line.sequences.values():
        sequence.is_held = False
    line.run()
    assert all(sequence.status is SequenceStatus.FINISHED for sequence in line.sequences.values())
    assert line.kv_cache.num_used_blocks == 0
