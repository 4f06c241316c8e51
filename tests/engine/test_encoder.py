"""EncoderEngine: whole texts packed into steps in their order, refusals with both numbers, ends without a vector."""

from collections.abc import Sequence

import numpy as np
import pytest

import headway_wire as wire
from headway.engine.encoder import EncoderEngine, EncoderLimits
from headway.executor.base import EncoderStep, Float32

LIMITS = EncoderLimits(max_model_len=8, max_tokens=10, max_seqs=3, vocab_size=100, num_token_types=2)


class SumExecutor:
    """The vector of a text is the sum of its ids and of its token types; a text with id 99 is not finite."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []

    def encode(self, step: EncoderStep) -> Float32:
        pairs = list(zip(step.query_starts[:-1], step.query_starts[1:], strict=True))
        self.steps.append([int(end - start) for start, end in pairs])
        rows = [[step.token_ids[a:b].sum(), step.token_types[a:b].sum()] for a, b in pairs]
        rows = [[np.nan, 0] if 99 in step.token_ids[a:b] else row for row, (a, b) in zip(rows, pairs, strict=True)]
        return np.array(rows, np.float32)


@pytest.fixture
def executor() -> SumExecutor:
    return SumExecutor()


@pytest.fixture
def engine(executor: SumExecutor) -> EncoderEngine:
    return EncoderEngine(executor, LIMITS)


def submit(engine: EncoderEngine, name: str, ids: Sequence[int], **fields: object) -> wire.Accepted | wire.Refused:
    return engine.submit(wire.Submit(request_id=name, prompt_token_ids=list(ids), **fields))  # type: ignore[arg-type]


def run(engine: EncoderEngine) -> tuple[dict[str, list[float]], list[wire.TokenEvent]]:
    vectors, events = {}, []
    while engine.has_work():
        for message in engine.step():
            if isinstance(message, wire.Embedding):
                vectors[message.request_id] = np.frombuffer(message.data, "<f4").tolist()
            elif isinstance(message, wire.Step):
                events += message.events
    return vectors, events


def test_texts_go_in_their_order_as_many_as_fit(engine: EncoderEngine, executor: SumExecutor) -> None:
    sizes = {"a": 4, "b": 6, "c": 1, "d": 8, "e": 1, "f": 1, "g": 1}
    for name, size in sizes.items():
        assert submit(engine, name, [1] * size) == wire.Accepted(request_id=name)
    vectors, events = run(engine)
    assert executor.steps == [[4, 6], [1, 8, 1], [1, 1]]
    assert {name: vector[0] for name, vector in vectors.items()} == sizes
    assert events == []
    counts = engine.stats().values
    assert (counts["accepted_total"], counts["prompt_tokens_total"], counts["computed_tokens_total"]) == (7, 22, 22)


def test_a_lower_priority_number_goes_first(engine: EncoderEngine, executor: SumExecutor) -> None:
    for name, size, priority in (("a", 5, 1), ("b", 8, 0), ("c", 3, 1)):
        submit(engine, name, [1] * size, priority=priority)
    run(engine)
    assert executor.steps == [[8], [5, 3]]


def test_the_second_of_a_pair_has_another_type(engine: EncoderEngine) -> None:
    submit(engine, "a", [1, 2, 3, 4], second_start=2)
    submit(engine, "b", [1, 2, 3])
    vectors, _ = run(engine)
    assert vectors == {"a": [10, 2], "b": [6, 0]}


@pytest.mark.parametrize(
    ("ids", "fields", "words"),
    [
        ([], {}, "empty"),
        ([1] * 9, {}, "has 9 tokens, special ones included, and this model takes 8"),
        ([1, 100], {}, "100 is not below 100"),
        ([-1], {}, "-1 is not below 100"),
    ],
)
def test_what_cannot_be_a_text_is_refused(
    engine: EncoderEngine, ids: list[int], fields: dict[str, object], words: str
) -> None:
    refused = submit(engine, "a", ids, **fields)
    assert isinstance(refused, wire.Refused)
    assert words in refused.error.message
    assert not engine.has_work()
    assert engine.stats().values["refused_total"] == 1


def test_a_pair_is_refused_where_there_is_one_token_type(executor: SumExecutor) -> None:
    limits = EncoderLimits(max_model_len=8, max_tokens=8, max_seqs=1, vocab_size=9, num_token_types=1)
    refused = submit(EncoderEngine(executor, limits), "a", [1, 2], second_start=1)
    assert isinstance(refused, wire.Refused)


def test_an_aborted_text_ends_with_one_event_and_is_not_computed(engine: EncoderEngine, executor: SumExecutor) -> None:
    submit(engine, "a", [1])
    submit(engine, "b", [2])
    engine.abort(wire.Abort(request_id="a", reason="disconnect"))
    engine.abort(wire.Abort(request_id="nobody"))
    vectors, events = run(engine)
    assert vectors == {"b": [2, 0]}
    assert [(event.request_id, event.finish_reason, event.stop_reason) for event in events] == [
        ("a", "abort", "disconnect")
    ]
    assert executor.steps == [[1]]


def test_the_abort_of_the_only_text_is_told_without_a_step_of_the_model(
    engine: EncoderEngine, executor: SumExecutor
) -> None:
    submit(engine, "a", [1])
    engine.abort(wire.Abort(request_id="a"))
    assert [event.request_id for event in run(engine)[1]] == ["a"]
    assert executor.steps == []


def test_a_vector_that_is_not_finite_fails_its_text_alone(engine: EncoderEngine) -> None:
    submit(engine, "a", [99])
    submit(engine, "b", [3])
    vectors, events = run(engine)
    assert vectors == {"b": [3, 0]}
    assert [(event.request_id, event.finish_reason) for event in events] == [("a", "error")]
    assert events[0].error is not None
    assert events[0].error.kind == "NonFiniteLogits"
