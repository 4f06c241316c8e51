"""Literals of Python as JSON, beside ast.literal_eval."""

import ast
import json
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.text.tool_calls.python_literal import literal_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(TEXTS, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_what_python_writes_is_the_same_value_in_json(value: Any) -> None:
    found = literal_json(repr(value))
    assert found is not None
    assert json.loads(found) == json.loads(json.dumps(value))


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.sampled_from(["\\", "n", "x41", "u00e9", "U0001f600", "'", '"', "d", "/", "0", "7", "8", " "]), max_size=8
    )
)
def test_escapes_are_pythons(pieces: list[str]) -> None:
    text = f"'{''.join(pieces)}'"
    found = literal_json(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return
    # An escape of JSON's that Python has not.
    if "\\/" not in text and found is not None:
        assert json.loads(found) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("True", "true"),
        ("null", "null"),
        (" -1.5e3 ", "-1.5e3"),
        ("'a\"b'", '"a\\"b"'),
        (r"'\ud83d\ude00'", r'"\ud83d\ude00"'),
        (r"'\d'", r'"\\d"'),
        ("(1, 'a',)", '[1, "a"]'),
        ("{'a': [True, None]}", '{"a": [true, null]}'),
        ("()", "[]"),
        ("{}", "{}"),
        ("[[], {}]", "[[], {}]"),
        ("'é\n'", '"é\\n"'),
    ],
)
def test_values_are_written_as_json(text: str, expected: str) -> None:
    assert literal_json(text) == expected
    json.loads(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "f()",
        "1 2",
        "'a",
        "[1",
        "[1 2]",
        "{1: 2}",
        "{'a'}",
        "01",
        "1_0",
        "nan",
        "[,]",
        "'\\x4'",
        "'a' 'b'",
        "1+1",
    ],
)
def test_what_is_no_literal_here_is_none(text: str) -> None:
    assert literal_json(text) is None


def test_depth_is_bounded() -> None:
    assert literal_json("[" * 64 + "]" * 64) is not None
    assert literal_json("[" * 66 + "]" * 66) is None
