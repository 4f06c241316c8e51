import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cache.radix_tree import Node, RadixTree
from headway.errors import InvariantBroken


def insert(tree: RadixTree, tokens: str, block_ids: list[int]) -> tuple[Node, list[int]]:
    """Inserts from the root, as a sequence does that found nothing; the lock is still held."""
    return tree.insert(tree.root, [ord(token) for token in tokens], block_ids)


def match(tree: RadixTree, tokens: str) -> int:
    ids = [ord(token) for token in tokens]
    return tree.match(ids, len(ids) // tree.block_size).num_blocks


def test_a_prompt_matches_whole_blocks_only():
    tree = RadixTree(2)
    node, _ = insert(tree, "aabbcc", [4, 5, 6])
    tree.unlock(node)
    rows = [("aabbcc", 3), ("aabbccdd", 3), ("aabbc", 2), ("aabxcc", 1), ("abbbcc", 0), ("a", 0), ("", 0)]
    assert [match(tree, tokens) for tokens, _ in rows] == [num for _, num in rows]
    assert tree.match([ord(token) for token in "aabbcc"], 2).num_blocks == 2


def test_an_edge_is_split_where_prompts_part_and_both_tails_stay():
    tree = RadixTree(1)
    first, _ = insert(tree, "abcd", [0, 1, 2, 3])
    second, blocks = insert(tree, "abxy", [4, 5, 6, 7])
    assert blocks == [0, 1, 6, 7]
    assert [(node.block_ids, node.num_locks) for node in tree.nodes()] == [([0, 1], 2), ([2, 3], 1), ([6, 7], 1)]
    tree.check([first, second])
    assert tree.lock(tree.match([ord(token) for token in "abc"], 3))[1] == [0, 1, 2]


def test_the_only_user_of_a_leaf_makes_it_longer_but_not_one_that_others_use():
    tree = RadixTree(1)
    node, _ = insert(tree, "ab", [0, 1])
    assert tree.insert(node, [99], [2])[0] is node
    assert node.block_ids == [0, 1, 2]
    other, _ = tree.lock(tree.match([97, 98, 99], 3))
    assert other is node
    child, _ = tree.insert(node, [100], [3])
    assert child is not node
    assert child.block_ids == [3]
    tree.check([child, other])


def test_the_leaf_that_was_left_longest_ago_goes_first_from_its_tail_and_no_more_than_needed():
    tree = RadixTree(1)
    for tokens, blocks in [("abcd", [0, 1, 2, 3]), ("abx", [8, 9, 4]), ("efg", [5, 6, 7])]:
        node, _ = insert(tree, tokens, blocks)
        tree.unlock(node)
    # In the tree: ab [0, 1] over cd [2, 3] (left first) and x [4] (left second); efg [5, 6, 7] (left last).
    assert tree.num_evictable_blocks == tree.num_blocks == 8
    assert tree.evict(1) == [3]
    assert match(tree, "abcd") == 3
    assert tree.evict(2) == [2, 4]
    tree.unlock(tree.lock(tree.match([ord(token) for token in "ab"], 2))[0])  # ab is used again: efg is older now
    assert tree.evict(4) == [7, 6, 5, 1]
    assert tree.evict(9) == [0]
    assert tree.evict(1) == []
    assert (tree.num_blocks, tree.num_evictable_blocks) == (0, 0)


def test_a_locked_path_is_not_evicted_and_its_parents_neither():
    tree = RadixTree(1)
    held, _ = insert(tree, "abcd", [0, 1, 2, 3])
    loose, _ = insert(tree, "abx", [8, 9, 4])
    tree.unlock(loose)
    assert tree.evict(10) == [4]
    assert tree.num_evictable_blocks == 0
    tree.unlock(held)
    with pytest.raises(InvariantBroken, match="once too often"):
        tree.unlock(held)


def test_dropping_a_node_takes_what_only_led_to_it():
    tree = RadixTree(1)
    for tokens, blocks in [("abcd", [0, 1, 2, 3]), ("abx", [8, 9, 4])]:
        node, _ = insert(tree, tokens, blocks)
        tree.unlock(node)
    assert tree.drop(node) == [4]  # x alone: ab leads to cd too
    assert sorted(tree.drop(next(node for node in tree.nodes() if not node.children))) == [0, 1, 2, 3]
    tree.check([])


class CountedToken(int):
    """A token id that counts how often it is compared."""

    num_comparisons = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        CountedToken.num_comparisons += 1
        return int(self) == other


@pytest.mark.parametrize("num_cached", [1, 100, 2000])
def test_a_match_costs_the_prompt_whatever_is_cached(num_cached):
    tree = RadixTree(4)
    shared = [1] * 400
    for number in range(num_cached):  # all begin alike and part at another place
        at = 4 * (number % 100)
        prompt = [*shared[:at], 2 + number % 7, number, 3, 3, *shared[at:]]
        node, _ = tree.insert(tree.root, prompt, list(range(10**4 * number, 10**4 * number + 101)))
        tree.unlock(node)
    CountedToken.num_comparisons = 0
    found = tree.match([CountedToken(1) for _ in range(400)], 100)
    assert found.num_blocks >= 99 or num_cached == 1
    assert CountedToken.num_comparisons <= 2 * 400


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_tree_agrees_with_a_dictionary_over_two_tokens_and_two_salts(data):
    """Prompts of two tokens collide all the time. The dictionary: salt and whole-block prefix -> block, and who holds
    what."""
    tree = RadixTree(2)
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    held: list[tuple[Node, str, list[int]]] = []
    num_blocks = 0

    def prefixes_of(salt: str, tokens: list[int]) -> list[tuple[str, tuple[int, ...]]]:
        return [(salt, tuple(tokens[:end])) for end in range(2, len(tokens) + 1, 2)]

    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["use", "use", "use", "unlock", "evict", "drop"]))
        if action == "use":
            tokens = data.draw(st.lists(st.integers(0, 1), max_size=12).map(lambda ids: ids[: len(ids) // 2 * 2]))
            salt = data.draw(st.sampled_from(["", "", "salt"]))
            prefixes = prefixes_of(salt, tokens)
            found = tree.match(tokens, len(prefixes), salt)
            assert found.num_blocks == sum(prefix in known for prefix in prefixes)
            node, blocks = tree.lock(found)
            assert blocks == [known[prefix] for prefix in prefixes[: len(blocks)]]
            own = list(range(num_blocks, num_blocks + len(prefixes) - len(blocks)))
            num_blocks += len(own)
            node, rest = tree.insert(node, tokens[2 * len(blocks) :], own, salt)
            assert rest == own
            known |= dict(zip(prefixes[len(blocks) :], own, strict=True))
            held.append((node, salt, tokens))
        elif action == "unlock" and held:
            node, _, _ = held.pop(data.draw(st.integers(0, len(held) - 1)))
            tree.unlock(node)
        elif action in ("evict", "drop"):
            if action == "evict":
                num = data.draw(st.integers(1, 4))
                gone = tree.evict(num)
                in_use = {prefix for _, salt, tokens in held for prefix in prefixes_of(salt, tokens)}
                assert len(gone) == min(num, len(known.keys() - in_use))
            else:
                loose = [node for node in tree.nodes() if node.is_evictable]
                gone = tree.drop(data.draw(st.sampled_from(loose))) if loose else []
            known = {prefix: block for prefix, block in known.items() if block not in gone}
        tree.check([node for node, _, _ in held])
        assert sorted(block for node in tree.nodes() for block in node.block_ids) == sorted(known.values())
        # What is known stays reachable: each known prefix has its shorter ones.
        assert all((salt, prefix[:-2]) in known or len(prefix) == 2 for salt, prefix in known)
        for node, salt, tokens in held:
            assert tree.match(tokens, len(tokens) // 2, salt).node is node


def test_the_line_of_leaves_does_not_grow_with_use():
    tree = RadixTree(1)
    node, _ = insert(tree, "ab", [0, 1])
    tree.unlock(node)
    for _ in range(1000):
        tree.unlock(tree.lock(tree.match([97, 98], 2))[0])
    assert len(tree._leaves) <= 65
    assert tree.evict(2) == [1, 0]
