"""Chunks of servers that are careless or hostile: deltas or an UpstreamError, and nothing else."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.tools import ToolCall, add_deltas
from headway.errors import HeadwayError, UpstreamFailed
from headway.service.remote.openai_chunks import ChunkReader

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "index": st.none() | st.integers(-1, 3),
            "id": st.none() | st.sampled_from(["a", "b", ""]),
            "function": st.fixed_dictionaries(
                {}, optional={"name": st.none() | st.sampled_from(["f", "g", ""]), "arguments": st.none() | st.text()}
            ),
        },
    ),
    max_size=3,
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={"content": st.none() | st.text(), "reasoning": st.none() | st.text(), "tool_calls": st.none() | CALLS},
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(-1, 3),
        "delta": MESSAGES | JSON,
        "text": st.text() | JSON,
        "logprobs": JSON | st.fixed_dictionaries({"content": JSON}) | st.fixed_dictionaries({"tokens": JSON}),
        "finish_reason": st.none() | st.sampled_from(["stop", "tool_calls", "length", "error", "new"]) | JSON,
    },
)
CHUNKS = st.fixed_dictionaries({}, optional={"choices": st.lists(CHOICES, max_size=3), "usage": JSON, "error": JSON})


@settings(max_examples=300, deadline=None)
@given(st.lists(CHUNKS, max_size=6))
def test_whatever_comes_is_deltas_of_choices_that_were_asked_for_or_an_error(chunks: list[Any]) -> None:
    reader = ChunkReader("it", 2)
    calls: list[list[ToolCall]] = [[], []]
    ended: set[int] = set()
    for chunk in chunks:
        try:
            deltas = reader.read(json.dumps(chunk))
        except HeadwayError:
            return
        for delta in deltas:
            assert delta.choice in {0, 1} - ended
            add_deltas(calls[delta.choice], delta.tool_calls)
            assert all(call.id and call.name for call in calls[delta.choice])
            if delta.finish_reason is not None:
                ended.add(delta.choice)
    assert reader.is_ended == (ended == {0, 1})


def with_logprobs(logprobs: Any) -> str:
    return json.dumps({"choices": [{"delta": {"content": "a"}, "logprobs": logprobs}]})


def test_a_log_probability_that_is_no_number_is_none() -> None:
    (delta,) = ChunkReader("it", 1).read(with_logprobs({"content": [{"token": "a", "logprob": "much"}]}))
    assert math.isnan(delta.logprobs[0].chosen.logprob)


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [{"token": "a", "logprob": -1, "bytes": [999]}]},
        {"tokens": 3},
        {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [["b"]]},
    ],
)
def test_what_are_no_log_probabilities_is_the_servers_fault(logprobs: Any) -> None:
    with pytest.raises(UpstreamFailed, match="no chunk"):
        ChunkReader("it", 1).read(with_logprobs(logprobs))


def test_the_end_that_is_told_twice_counts_once() -> None:
    reader = ChunkReader("it", 1)
    end = json.dumps({"choices": [{"delta": {}, "finish_reason": "content_filter"}]})
    (delta,) = reader.read(end)
    assert (delta.finish_reason, delta.stop_reason) == ("stop", "content_filter")
    assert reader.read(end) == []
