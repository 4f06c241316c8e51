"""Where values lie: places worked out by hand, and random lifetimes that never meet in one byte."""

from hypothesis import given
from hypothesis import strategies as st

from headway.executor.native_layout import Layout, View
from headway.planner.native_arena import place_buffers


def test_buffers_share_memory_once_the_first_is_not_used_any_more():
    # 0 lives in stages 0-1, 1 in 1-2, 2 in 2-3: the third takes the first one's place, the second cannot.
    assert place_buffers([64, 128, 64], [(0, 1), (1, 2), (2, 3)]) == ([0, 64, 0], 192)


def test_a_gap_that_is_too_small_is_passed_over():
    assert place_buffers([64, 64, 128], [(0, 0), (0, 5), (1, 2)]) == ([0, 64, 128], 256)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(0, 5)), max_size=40),
)
def test_no_two_buffers_that_live_at_once_share_a_byte(drawn):
    sizes = [64 * size for size, _, _ in drawn]
    lifetimes = [(first, first + length) for _, first, length in drawn]
    offsets, total = place_buffers(sizes, lifetimes)
    for left in range(len(drawn)):
        assert 0 <= offsets[left] <= total - sizes[left]
        for right in range(left):
            live_at_once = lifetimes[left][0] <= lifetimes[right][1] and lifetimes[right][0] <= lifetimes[left][1]
            apart = offsets[left] + sizes[left] <= offsets[right] or offsets[right] + sizes[right] <= offsets[left]
            assert apart or not live_at_once


def test_places_are_in_floats_and_rows_begin_at_whole_lanes():
    layout = Layout(max_tokens=3, max_selected=2, wide_bytes=4)
    first, second = layout.new(20, is_selected=False), layout.new(5, is_selected=True, is_dense=True)
    layout.use(0, first, second)
    # 3 rows of 32 floats are 384 bytes; 2 dense rows of 5 floats are 40, of which 64 are taken.
    assert layout.place_all() == 448
    assert layout.place(View(first.buffer, 16, 4, False)) == (16, 32, 4)
    assert layout.place(second) == (96, 5, 5)
    assert layout.place(None) == (0, 0, 0)


def test_prepared_rows_have_only_the_parts_that_are_asked_for():
    layout = Layout(max_tokens=2, max_selected=2, wide_bytes=4)
    both = layout.new_prepared(40, is_selected=False, has_q=True, has_wide=True)
    wide = layout.new_prepared(40, is_selected=False, has_q=False, has_wide=True)
    layout.use(0, both, wide)
    # 40 columns are 2 groups: q 2 x 64, scales 2 x 2 floats, sums 2 x 4 integers, wide 2 x 64 floats.
    assert layout.place_all() == (128 + 64 + 64 + 512) + 512
    assert layout.place_prepared(both) == (0, 128, 192, 256, 40)
    assert layout.place_prepared(wide) == (-1, -1, -1, 768, 40)
