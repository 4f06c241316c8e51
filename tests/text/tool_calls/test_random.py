"""Random answers made of pieces of markers: nothing raises, nothing is lost, and cuts change nothing."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.text.tool_calls import DIALECT_NAMES, Dialect
from tool_answers import parse

MARKERS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool_", "call>", "\n"],
    "llama3_json": ["<|python_tag|>", ";", "<|python_"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "abcdefghi", "now", "["],
    "qwen3_coder": [
        "<tool_call>",
        "<function=now>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
        "\n",
        "</tool_call>",
    ],
    "pythonic": ["[", "]", "now(", ")", "a=", "b=", "'x'", ",", "<|tool_call_start|>", "<|tool_call_end|>", "True"],
    "plain_json": ["```json", "```", "\n"],
}
JSON = [
    "{",
    "}",
    '"name"',
    ": ",
    '"now"',
    ", ",
    '"arguments"',
    "{}",
    '{"a": 1}',
    '"',
    "null",
    '"parameters"',
    '"other"',
]
CALLS = ['{"name": "now", "arguments": {}}', '{"name": "now", "parameters": {"b": "}"}}']
TEXT = [" ", "é", "😀", "text", "<", "\\"]


@pytest.mark.parametrize("name", DIALECT_NAMES)
@pytest.mark.parametrize("is_enforced", [False, True])
def test_any_answer_is_read_without_a_loss(make_dialect: Callable[..., Dialect], name: str, is_enforced: bool) -> None:
    dialect = make_dialect(name)
    pieces = st.lists(st.sampled_from(MARKERS[name] * 2 + JSON + CALLS * 2 + TEXT), max_size=14)

    @settings(max_examples=150, deadline=None)
    @given(pieces, st.booleans())
    def check(answer: list[str], is_cut: bool) -> None:
        text = "".join(answer)
        whole = parse(dialect, [text], is_enforced=is_enforced, is_cut=is_cut)
        for cut in (list(text), answer):
            assert parse(dialect, cut, is_enforced=is_enforced, is_cut=is_cut)[:3] == whole[:3]
        _check_text(whole.text, text, has_calls=bool(whole.calls))
        if not is_enforced:
            for _, arguments in whole.calls:
                assert isinstance(json.loads(arguments), dict)

    check()


def _check_text(found: str, answer: str, *, has_calls: bool) -> None:
    """The text is the answer without its calls: all of it where there is none, else in order."""
    if not has_calls:
        assert found == answer
        return
    places = iter(re.sub(r"\s", "", answer))
    assert all(character in places for character in re.sub(r"\s", "", found))
