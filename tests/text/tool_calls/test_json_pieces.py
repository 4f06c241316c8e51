"""JsonScanner beside Python's json: the same texts are JSON, however they are cut."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.text.tool_calls.json_pieces import JsonScanner, is_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
PIECES = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    "\\",
    "\\u00e9",
    "\\n",
    " ",
    "\n",
    "0",
    "-1",
    "1.5",
    "e3",
    "01",
    "true",
    "nul",
]


def reference(text: str) -> bool:
    """json.loads without the words that are not JSON."""

    def refuse(word: str) -> Any:
        raise ValueError(word)

    # Python strips other white space than JSON has from the ends of numbers and not from texts.
    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@settings(max_examples=200, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_what_json_writes_is_json(value: Any, is_ascii: bool, indent: int | None) -> None:
    assert is_json(json.dumps(value, ensure_ascii=is_ascii, indent=indent))


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_exactly_what_python_reads_is_json(text: str) -> None:
    assert is_json(text) == reference(text)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.data())
def test_one_changed_character_is_judged_as_python_judges_it(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.sampled_from('{}[]:,"\\ 0-a')) + text[place + 1 :]
    assert is_json(changed) == reference(changed)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_the_end_or_the_wrong_character_is_found_wherever_the_text_is_cut(text: str) -> None:
    def scan(pieces: list[str]) -> tuple[int, bool]:
        scanner, total = JsonScanner(), 0
        for piece in pieces:
            end = scanner.push(piece, 0)
            total += end
            if end < len(piece) or scanner.is_done:
                break
        return total, scanner.is_done

    assert scan([text]) == scan(list(text))


@pytest.mark.parametrize(
    ("text", "place"),
    [('{"a": 1} x', 8), ("[1, 2]]", 6), ('"a" ', 3), ("12 ", 2), ("true,", 4), (' {"a": {}}{', 10)],
)
def test_what_is_behind_the_value_is_not_taken(text: str, place: int) -> None:
    scanner = JsonScanner()
    assert (scanner.push(text, 0), scanner.is_done) == (place, True)


@pytest.mark.parametrize(
    ("text", "place"), [('{"a" 1}', 5), ("[1,]", 3), ('"\n"', 1), ("{'a'", 1), ("[01]", 3), ('"\\x', 2)]
)
def test_the_place_of_a_wrong_character_is_told(text: str, place: int) -> None:
    scanner = JsonScanner()
    assert (scanner.push(text, 0), scanner.is_done) == (place, False)


def test_depth_has_no_limit() -> None:
    assert is_json("[" * 100_000 + "]" * 100_000)
