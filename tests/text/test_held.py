"""What of a growing text waits for the rest of a marker."""

from hypothesis import given
from hypothesis import strategies as st

from headway.text.held import num_held


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=5), st.integers(0, 12))
def test_the_longest_beginning_of_the_marker_at_the_end_waits(text: str, marker: str, start: int) -> None:
    lengths = range(1, min(len(marker), len(text) - start + 1))
    assert num_held(text, marker, start) == max((n for n in lengths if text.endswith(marker[:n])), default=0)


def test_a_whole_marker_does_not_wait() -> None:
    assert num_held("a<b>", "<b>") == 0
    assert num_held("a<b", "<b>") == 2
    assert num_held("", "<b>") == 0
