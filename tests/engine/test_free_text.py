"""Free text is watched to the byte, however its tokens are cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.free_text import MAX_MATCH, FreeText


def watched(pieces: list[bytes]) -> FreeText:
    return FreeText(lambda token_id: pieces[token_id])


TEXT = "naïve — <tool_call>\n{🚢"


@pytest.mark.parametrize("first", range(len(TEXT.encode()) + 1))
@pytest.mark.parametrize("second", [1, 2, 3, 5, 40])
def test_a_literal_is_found_with_the_bytes_behind_it(first: int, second: int) -> None:
    """Cut into three tokens anywhere, also inside characters."""
    data = TEXT.encode()
    pieces = [data[:first], data[first : first + second], data[first + second :]]
    text = watched(pieces)
    seen = b""
    for token_id, piece in enumerate(pieces):
        text.push(token_id)
        seen += piece
        found = text.find("<tool_call>")
        assert (found is not None) == (b"<tool_call>" in seen)
        if found is not None:
            assert found.rest == seen[seen.index(b"<tool_call>") + len("<tool_call>") :]
            tail = found.head + b"".join(pieces[each] for each in found.token_ids)
            assert tail == seen[seen.index(b"<tool_call>") :]
            assert found.token_ids == list(range(token_id + 1))[len(range(token_id + 1)) - len(found.token_ids) :]


@given(st.lists(st.text("ab<>", max_size=90).map(str.encode), max_size=60))
def test_matches_are_those_of_the_whole_text(pieces: list[bytes]) -> None:
    """A trigger that a match cannot grow in: found in pieces as in the whole, and none twice."""
    pattern = re.compile("<a>|b<b")
    text = watched(pieces)
    found = []
    for token_id in range(len(pieces)):
        text.push(token_id)
        found += [match.head + b"".join(pieces[each] for each in match.token_ids) for match in text.search(pattern)]
    whole = b"".join(pieces).decode()
    assert len(found) == len(list(pattern.finditer(whole)))


def test_what_stands_at_the_beginning_matches_there_alone() -> None:
    pieces = [b"x" * 50] * 40 + [b'{"name"']
    text = watched(pieces)
    for token_id in range(len(pieces)):
        text.push(token_id)
        assert not list(text.search(re.compile(r"\A\{")))
        assert not list(text.search(re.compile(r"^\{")))
    assert list(text.search(re.compile(r"x\{")))


def test_a_match_of_the_greatest_length_is_found_behind_a_long_text() -> None:
    wanted = "<" + "y" * (MAX_MATCH - 2) + ">"
    pieces = [bytes([byte]) for byte in (b"z" * 1000 + wanted.encode())]
    text = watched(pieces)
    matches = []
    for token_id in range(len(pieces)):
        text.push(token_id)
        matches += text.search(re.compile("<y+>"))
    assert len(matches) == 1
    assert len(matches[0].token_ids) == MAX_MATCH
    assert len(text._text) < 4 * MAX_MATCH
    assert len(text._tokens) < 4 * MAX_MATCH
