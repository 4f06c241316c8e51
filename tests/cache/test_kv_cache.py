import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cache.kv_cache import KVCache
from headway.core.sequence import Sequence
from headway.errors import InvariantBroken


def run(cache: KVCache, sequence: Sequence, *, num_new: int | None = None) -> None:
    """What the scheduler does with an admitted sequence: blocks, computing, sharing."""
    end = len(sequence.token_ids) if num_new is None else sequence.num_computed_tokens + num_new
    assert cache.try_extend(sequence, end)
    sequence.num_computed_tokens = end
    cache.insert(sequence)
    cache.check()


def counts(cache: KVCache) -> tuple[int, int, int]:
    return cache.num_free_blocks, cache.num_cached_blocks, cache.num_used_blocks


def test_the_second_prompt_starts_from_the_first_ones_blocks(make_sequence):
    cache = KVCache(num_blocks=8, block_size=2)
    first, second = make_sequence("aabbc"), make_sequence("aabbdd")
    assert cache.try_admit(first)
    run(cache, first)
    assert cache.block_ids(first) == [0, 1, 2]
    assert counts(cache) == (5, 0, 3)
    assert cache.try_admit(second)
    assert (second.num_computed_tokens, second.num_slots) == (4, 4)
    run(cache, second)
    assert cache.block_ids(second) == [0, 1, 3]
    cache.free(first)
    assert counts(cache) == (5, 0, 3)
    cache.free(second)
    assert counts(cache) == (5, 3, 0)
    cache.check()


@pytest.mark.parametrize(("num_tokens", "num_cached"), [(1, 0), (2, 0), (3, 2), (4, 2), (5, 4)])
def test_a_wholly_cached_prompt_still_computes_its_last_token(make_sequence, num_tokens, num_cached):
    cache = KVCache(num_blocks=8, block_size=2)
    first = make_sequence("aabbccdd")
    assert cache.try_admit(first)
    run(cache, first)
    again = make_sequence("aabbccdd"[:num_tokens])
    assert cache.try_admit(again)
    assert again.num_computed_tokens == num_cached
    run(cache, again)


def test_a_block_that_two_computed_at_once_is_merged_onto_the_trees_copy(make_sequence):
    cache = KVCache(num_blocks=8, block_size=2)
    first, second = make_sequence("aabbc"), make_sequence("aabbd")
    for sequence in (first, second):
        assert cache.try_admit(sequence)
        assert cache.try_extend(sequence, 5)
    assert [(c.start, c.block_ids) for c in cache.take_table_changes()] == [(0, [0, 1, 2]), (0, [3, 4, 5])]
    for sequence in (first, second):
        sequence.num_computed_tokens = 5
        cache.insert(sequence)
    assert cache.block_ids(first) == [0, 1, 2]
    assert cache.block_ids(second) == [0, 1, 5]
    assert [(c.sequence, c.start, c.block_ids) for c in cache.take_table_changes()] == [(second, 0, [0, 1, 5])]
    assert cache.take_table_changes() == []
    assert counts(cache) == (4, 0, 4)
    cache.check()
    assert cache.try_extend(second, 7)
    assert [(c.start, c.block_ids) for c in cache.take_table_changes()] == [(3, [3])]


def test_unused_blocks_are_evicted_oldest_first_and_a_sequences_own_never(make_sequence):
    cache = KVCache(num_blocks=6, block_size=1)
    for tokens in ("ab", "cd"):
        sequence = make_sequence(tokens)
        assert cache.try_admit(sequence)
        run(cache, sequence)
        cache.free(sequence)
    assert counts(cache) == (2, 4, 0)
    user = make_sequence("cdefgh", max_total_tokens=6)
    assert cache.try_admit(user)
    assert user.num_computed_tokens == 2
    run(cache, user)
    # c and d are in use; a and b were evicted (b, then a: a was freed last and is reused first), 4 and 5 were free.
    assert cache.block_ids(user) == [2, 3, 0, 1, 4, 5]
    assert counts(cache) == (0, 0, 6)
    assert not cache.try_extend(user, 7)
    other = make_sequence("z", max_total_tokens=2)
    assert not cache.try_admit(other)
    assert other.num_slots == 0
    cache.check()


def test_admission_counts_what_the_sequence_will_need_and_what_others_were_promised(make_sequence):
    cache = KVCache(num_blocks=4, block_size=2)
    fits = make_sequence("aabbcc")  # 6 tokens and the one that is sampled: 4 blocks
    assert not cache.try_admit(fits, num_reserved=1)
    assert cache.try_admit(fits)
    assert cache.num_missing_blocks(fits) == 4
    too_long = make_sequence("aabbccdd")
    assert not KVCache(num_blocks=4, block_size=2).try_admit(too_long)
    ends_there = make_sequence("aabbccdd", max_total_tokens=8)
    assert KVCache(num_blocks=4, block_size=2).try_admit(ends_there)


def test_a_match_that_would_be_locked_does_not_count_as_room(make_sequence):
    cache = KVCache(num_blocks=4, block_size=1)
    sequence = make_sequence("abc", max_total_tokens=3)
    assert cache.try_admit(sequence)
    run(cache, sequence)
    cache.free(sequence)
    assert counts(cache) == (1, 3, 0)
    assert not cache.try_admit(make_sequence("abcde", max_total_tokens=5))
    assert cache.try_admit(make_sequence("abcd", max_total_tokens=4))


def test_what_a_poisoned_sequence_computed_leaves_the_tree_but_for_what_others_use(make_sequence):
    cache = KVCache(num_blocks=8, block_size=1)
    good, bad = make_sequence("abx"), make_sequence("abcde")
    for sequence in (good, bad):
        assert cache.try_admit(sequence)
        run(cache, sequence)
    cache.forget(bad)
    assert counts(cache) == (5, 0, 3)
    again = make_sequence("abcde")
    assert cache.try_admit(again)
    assert again.num_computed_tokens == 2
    cache.check()


def test_a_hit_counts_the_prompt_alone_and_not_the_output_that_begins_without_a_choice(make_sequence):
    cache = KVCache(num_blocks=12, block_size=1)
    first, again = make_sequence("abcxyz"), make_sequence("abcxyz")
    for sequence in (first, again):
        sequence.num_prompt_tokens = 3
        assert cache.try_admit(sequence)
        cache.count_hit(sequence)
        run(cache, sequence)
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 3)
    assert (cache.num_prefix_queries, cache.num_prefix_hits) == (6, 3)


def test_without_prefix_caching_nothing_is_kept(make_sequence):
    cache = KVCache(num_blocks=4, block_size=1, enable_prefix_caching=False)
    for _ in range(2):
        sequence = make_sequence("abc", max_total_tokens=4)
        assert cache.try_admit(sequence)
        cache.count_hit(sequence)
        assert sequence.num_computed_tokens == 0
        run(cache, sequence)
        assert cache.block_ids(sequence) == [0, 1, 2]
        cache.free(sequence)
        assert counts(cache) == (4, 0, 0)
    assert (cache.num_prefix_queries, cache.num_prefix_hits) == (0, 0)


def test_freeing_twice_is_harmless_and_admitting_twice_is_not(make_sequence):
    cache = KVCache(num_blocks=4, block_size=1)
    sequence = make_sequence("ab")
    assert cache.try_admit(sequence)
    with pytest.raises(InvariantBroken, match="admitted twice"):
        cache.try_admit(sequence)
    cache.free(sequence)
    cache.free(sequence)
    cache.forget(sequence)
    cache.check()


def test_check_sees_a_table_that_is_not_the_trees(make_sequence):
    cache = KVCache(num_blocks=4, block_size=1)
    sequence = make_sequence("ab")
    assert cache.try_admit(sequence)
    run(cache, sequence)
    cache._blocks[sequence].block_ids[0] = 3
    with pytest.raises(InvariantBroken, match="its table and its path"):
        cache.check()


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_blocks_are_conserved_whatever_happens(make_sequence_once, data):
    cache = KVCache(
        num_blocks=data.draw(st.integers(4, 12)),
        block_size=data.draw(st.integers(1, 3)),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    running: list[Sequence] = []
    for _ in range(data.draw(st.integers(1, 30))):
        act = data.draw(st.sampled_from(["admit", "extend", "extend", "free", "forget", "changes"]))
        if act == "admit":
            sequence = make_sequence_once(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=8)), 40)
            before = counts(cache)
            if cache.try_admit(sequence, data.draw(st.integers(0, 2))):
                running.append(sequence)
            else:
                assert counts(cache) == before
        elif act == "changes":
            for sequence, start, block_ids in cache.take_table_changes():
                assert cache.block_ids(sequence)[start:] == block_ids
        elif running:
            sequence = data.draw(st.sampled_from(running))
            if act == "extend":
                missing = sequence.num_missing_tokens
                num_new = data.draw(st.integers(1, missing))
                if cache.try_extend(sequence, sequence.num_computed_tokens + num_new):
                    sequence.num_computed_tokens += num_new
                    cache.insert(sequence)
                    if sequence.num_missing_tokens == 0:
                        sequence.token_ids.append(data.draw(st.integers(0, 1)))
            else:
                running.remove(sequence)
                (cache.free if act == "free" else cache.forget)(sequence)
        cache.check()
        assert sum(counts(cache)) == cache.num_blocks
    for sequence in running:
        cache.free(sequence)
    assert cache.num_used_blocks == 0


def test_another_salt_shares_no_block_not_even_the_first(make_sequence):
    cache = KVCache(num_blocks=16, block_size=2)
    tables = []
    for salt in ("", "A", "B", "A"):
        sequence = make_sequence("aabbc")
        sequence.cache_salt = salt
        assert cache.try_admit(sequence)
        run(cache, sequence)
        tables.append(cache.block_ids(sequence)[:2])
        cache.free(sequence)
        cache.check()
    assert tables == [[0, 1], [2, 3], [4, 5], [2, 3]]


def test_pinned_blocks_are_never_evicted_and_are_no_room_for_others(make_sequence):
    cache = KVCache(num_blocks=6, block_size=2)
    first = make_sequence("aabbcc")
    assert cache.try_admit(first)
    run(cache, first)
    cache.free(first)
    assert cache.pin([ord(token) for token in "aabbx"]) == 2
    assert cache.pin([ord(token) for token in "aab"]) == 1  # inside the first one
    assert cache.pin([ord(token) for token in "zz"]) == 0
    assert (cache.num_pinned_blocks, cache.num_available_blocks) == (2, 4)
    assert counts(cache) == (3, 1, 2)
    big = make_sequence("xxyyzzvv", max_total_tokens=8)
    assert not cache.try_admit(make_sequence("xxyyzzvvww"))
    assert cache.try_admit(big)
    run(cache, big)  # takes the last of the cached ones
    assert counts(cache) == (0, 0, 6)
    cache.free(big)
    again = make_sequence("aabbdd")
    assert cache.try_admit(again)
    assert again.num_computed_tokens == 4
    cache.forget(again)
    cache.check()
    assert cache.num_pinned_blocks == 2
