from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InvalidRequest
from headway.text.stop import StopMatch, StopMatcher


def run(stops: Sequence[str], pieces: Sequence[str], include: bool = False) -> tuple[str, str | None, int]:
    """The text that was let through, the match, and how many pieces it took."""
    matcher = StopMatcher(stops, include)
    text, used = "", 0
    for piece in pieces:
        match = matcher.push(piece)
        text += match.text
        used += 1
        if match.matched is not None:
            return text, match.matched, used
    return text + matcher.flush(), None, used


def search(stops: Sequence[str], text: str, include: bool) -> tuple[str, str | None]:
    """The same by looking at every beginning of the whole text."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["b,c"], ["a", ",b", ",cd"], ("a,", "b,c", 3)),
        (["abcd", "bc"], ["abcd"], ("a", "bc", 1)),  # complete first, though the other begins first
        (["bc", "abc"], ["abc"], ("", "abc", 1)),  # complete together: the longest
        (["abd"], ["ab", "abd"], ("ab", "abd", 2)),
        (["aab"], ["a", "a", "a", "b", "x"], ("a", "aab", 4)),
        (["é😀"], ["é", "😀"], ("", "é😀", 2)),
        (["x"], ["abc", "de"], ("abcde", None, 2)),
        (["abc"], ["ab"], ("ab", None, 1)),  # what was held back comes at the end
        ([], ["ab", "c"], ("abc", None, 2)),
        (["a", "a"], ["ba"], ("b", "a", 1)),
    ],
)
def test_the_text_ends_before_the_first_match(
    stops: list[str], pieces: list[str], expected: tuple[str, str | None, int]
) -> None:
    assert run(stops, pieces) == expected


def test_a_stop_string_stays_in_the_text_if_asked() -> None:
    assert run(["b,c"], ["a", ",b", ",cd"], include=True) == ("a,b,c", "b,c", 3)


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == StopMatch("a", "x")
    assert matcher.push("more") == StopMatch("", "x")
    assert matcher.flush() == ""


@pytest.mark.parametrize("stops", [[""], ["a", ""]])
def test_an_empty_stop_string_is_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopMatcher(stops)
    assert caught.value.param == "stop"


STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


@given(STOPS, st.text("abc", max_size=12), st.booleans())
def test_every_cut_gives_what_a_search_of_the_whole_gives(stops: list[str], text: str, include: bool) -> None:
    expected = search(stops, text, include)
    assert run(stops, list(text), include)[:2] == expected
    for at in range(len(text) + 1):
        assert run(stops, [text[:at], text[at:]], include)[:2] == expected


@given(STOPS, st.text("abc", max_size=12))
def test_only_the_beginning_of_a_stop_string_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    given_text = ""
    for place, character in enumerate(text):
        match = matcher.push(character)
        given_text += match.text
        if match.matched is not None:
            return
        seen = text[: place + 1]
        longest = max((size for stop in stops for size in range(1, len(stop)) if seen.endswith(stop[:size])), default=0)
        assert seen.removeprefix(given_text) == (seen[-longest:] if longest else "")


def test_the_choices_of_a_request_share_what_their_stop_strings_are_made_into() -> None:
    stops = ["ab" * 500, "b" * 1000]
    first, second = StopMatcher(stops), StopMatcher(tuple(stops))
    assert first._root is second._root
    assert first.push("ab" * 499 + "a").text == ""
    assert second.push("b" * 999 + "c").text == "b" * 999 + "c"
    assert first.push("b").matched == "ab" * 500


@pytest.mark.parametrize("stops", [["a" * 1000 + "b"], ["a" * size + "b" for size in range(1000, 1016)]])
def test_the_work_is_linear_in_the_text_whatever_the_stops_are(
    stops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    class Counting(dict[str, object]):
        def __contains__(self, key: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(key)

    matcher = StopMatcher(stops)
    nodes = [matcher._root]
    for node in nodes:
        nodes.extend(node.following.values())
        node.following = Counting(node.following)  # type: ignore[assignment]
    text = ("a" * 999 + "c") * 20
    assert "".join(matcher.push(character).text for character in text) + matcher.flush() == text
    assert looks <= 2 * len(text)
