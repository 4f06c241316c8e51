import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.text.detokenizer import Detokenizer
from headway.text.tokenizer import Tokenizer

MakeSmall = Callable[..., Tokenizer]
SPECIAL = 1000


class Spelled:
    """A vocabulary whose token n is the n-th of these bytes; 1000 is special."""

    special_token_ids = frozenset({SPECIAL})

    def __init__(self, *tokens: bytes, strips_leading_space: bool = False) -> None:
        self.tokens = tokens
        self.strips_leading_space = strips_leading_space

    def token_bytes(self, token_id: int) -> bytes:
        return b"<S>" if token_id == SPECIAL else self.tokens[token_id]


@pytest.mark.parametrize(
    ("tokens", "pieces", "tail"),
    [
        ([b"\xf0\x9f", b"\x91\x8b"], ["", "👋"], ""),
        ([b"\xf0", b"\x9f", b"\x91", b"\x8b!"], ["", "", "", "👋!"], ""),
        ([b"a\xe2", b"\x80\x9cb"], ["a", "“b"], ""),
        ([b"a\xf0\x9f\x91"], ["a"], "\ufffd"),  # an incomplete end is one U+FFFD
        ([b"\xe2\x80", b"a"], ["", "\ufffda"], ""),
        ([b"\xff", b"a"], ["\ufffd", "a"], ""),  # no beginning of anything: not held back
        ([b""], [""], ""),
        ([b"\xef\xbb\xbfa"], ["\ufeffa"], ""),  # a byte order mark is a character like others
    ],
)
def test_a_character_is_given_when_it_is_whole(tokens: list[bytes], pieces: list[str], tail: str) -> None:
    detokenizer = Detokenizer(Spelled(*tokens))
    assert [detokenizer.push([number]) for number in range(len(tokens))] == pieces
    assert (detokenizer.flush(), detokenizer.flush()) == (tail, "")


@given(st.lists(st.binary(max_size=5)), st.data())
def test_the_pieces_join_to_the_decoded_whole_however_they_are_cut(tokens: list[bytes], data: st.DataObject) -> None:
    detokenizer = Detokenizer(Spelled(*tokens))
    ids = list(range(len(tokens)))
    text, num_bytes = "", 0
    while ids:
        count = data.draw(st.integers(1, len(ids)))
        text += detokenizer.push(ids[:count])
        num_bytes += sum(len(tokens[number]) for number in ids[:count])
        del ids[:count]
        # The rest is at most an unfinished character.
        held = b"".join(tokens)[:num_bytes].decode(errors="replace").removeprefix(text)
        assert held in ("", "\ufffd")
    assert text + detokenizer.flush() == b"".join(tokens).decode(errors="replace")


def test_special_tokens_are_left_out_or_shown(make_small: MakeSmall) -> None:
    tokenizer = make_small()
    ids = [2, *tokenizer.encode("hé", add_special_tokens=False), 1]
    for skip in (True, False):
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
        text = "".join(detokenizer.push([one]) for one in ids) + detokenizer.flush()
        assert text == tokenizer.decode(ids, skip_special_tokens=skip) == ("hé" if skip else "<|turn|>hé</s>")


@pytest.mark.parametrize(
    ("ids", "continues", "text"),
    [
        ([0, 0], False, "a a"),  # one space at the very beginning is the tokenizer's own
        ([0, 0], True, " a a"),  # behind a prompt it is the text's
        ([SPECIAL, 0], False, "a"),
        ([1, 0], False, "b a"),
        ([2, 0], False, " a"),
    ],
)
def test_a_leading_space_is_taken_away_once(ids: list[int], continues: bool, text: str) -> None:
    spelled = Spelled(b" a", b"b", b" ", strips_leading_space=True)
    detokenizer = Detokenizer(spelled, continues=continues)
    assert "".join(detokenizer.push([one]) for one in ids) + detokenizer.flush() == text


def _num_steps(act: Callable[[], Any]) -> int:
    """Lines and calls that Python runs, and calls into C; not those of other objects that are just collected."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return trace

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    was_trace, was_profile = sys.gettrace(), sys.getprofile()
    gc.disable()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(was_profile)
        sys.settrace(was_trace)
        gc.enable()
    return count


def test_token_8000_is_as_much_work_as_token_8() -> None:
    fed = []

    class Counting(Spelled):
        def token_bytes(self, token_id: int) -> bytes:
            fed.append(token_id)
            return super().token_bytes(token_id)

    detokenizer = Detokenizer(Counting(b" wo", b"\xc3", b"\xa9rd"))
    steps = {}
    for number in range(1, 8001):
        fed.clear()
        steps[number] = _num_steps(lambda: detokenizer.push([0])) if number in (8, 8000) else None
        detokenizer.push([1])
        detokenizer.push([2])
        assert len(fed) == (3 if steps[number] else 2)  # no token is looked at again
    assert steps[8] == steps[8000]
