from headway.core.sequence import Fork, Sequence, SequenceStatus
from headway.core.step import ScheduledSequence, StepPlan, TableChange


def make_sequence(arrival: int, fork: Fork | None = None) -> Sequence:
    sequence = Sequence(
        request_id="A",
        choice=arrival,
        arrival=arrival,
        token_ids=[1, 2, 3],
        num_prompt_tokens=2,
        max_total_tokens=9,
        num_computed_tokens=1,
        fork=fork,
    )
    if fork is not None:
        fork.sequences.append(sequence)
    return sequence


def test_a_sequence_counts_what_it_made_and_what_it_misses():
    sequence = make_sequence(0)
    assert (sequence.num_output_tokens, sequence.num_missing_tokens) == (1, 2)
    assert sequence != make_sequence(0)  # each is itself, whatever its numbers


def test_of_a_fork_the_first_that_is_left_may_start_and_all_once_the_prompt_is_computed():
    fork = Fork()
    sequences = [make_sequence(index, fork) for index in range(3)]
    assert [sequence.can_start() for sequence in sequences] == [True, False, False]
    sequences[0].status = SequenceStatus.FINISHED
    assert [sequence.can_start() for sequence in sequences[1:]] == [True, False]
    fork.is_prompt_computed = True
    sequences[2].is_held = True
    assert [sequence.can_start() for sequence in sequences[1:]] == [True, False]


def test_a_plan_without_some_sequences_keeps_the_rest_in_order():
    first, second, third = (make_sequence(index) for index in range(3))
    plan = StepPlan(started=[first, second], table_changes=[TableChange(s, 0, [1]) for s in (first, second)])
    for sequence, num_tokens in ((first, 2), (second, 3), (third, 1)):
        plan.add(sequence, num_tokens)
    rest = plan.without({second})
    assert rest.scheduled == [ScheduledSequence(first, 2), ScheduledSequence(third, 1)]
    assert (rest.started, [change.sequence for change in rest.table_changes]) == ([first], [first])
    assert (plan.total_tokens, rest.total_tokens) == (6, 3)
