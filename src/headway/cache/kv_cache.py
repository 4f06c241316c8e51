"""KVCache: which blocks each running sequence has. Integers only; the scheduler is its caller, the arrays are
kv_store's.

A running sequence's blocks, and who owns each:

    token_ids        |<----------- num_computed_tokens ----------->|<- this step ->|   not yet
    blocks           [ tree ][ tree ][ tree ] [ own ]   [ own, partly filled ]
                     |<--- num_tree_blocks --->|<----------- own -------------->|
                     |<------------------ num_slots = blocks * block_size ------------->|

- tree: whole computed blocks, owned by the prefix tree and locked by this sequence; never written again.
- own: owned by this sequence alone. Once whole and computed, insert() hands it to the tree; if another sequence
  computed the same tokens meanwhile, the tree's copy takes its place in the table and the own one is freed.
- A block is in exactly one place: free, own, or in the tree. Those in the tree that nobody locks are the cache: they
  are evicted when the free ones do not suffice. What is pinned is locked for good.
"""

from dataclasses import dataclass

from headway.cache.block_pool import BlockPool
from headway.cache.radix_tree import Node, RadixTree, num_blocks_above
from headway.core.sequence import Sequence
from headway.core.step import TableChange
from headway.errors import InvariantBroken


@dataclass(slots=True)
class _Blocks:
    """One running sequence's blocks."""

    block_ids: list[int]
    node: Node
    """Where its part of the tree ends; locked."""
    num_tree_blocks: int = 0
    """How many of block_ids, from the start, the tree owns."""


class KVCache:
    """Blocks for sequences. Not thread-safe; the engine's loop owns it."""

    def __init__(self, *, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_prefix_queries = 0
        """Prompt tokens that were looked up, once a sequence."""
        self.num_prefix_hits = 0
        """Of these, tokens that were found."""
        self._pool = BlockPool(num_blocks)
        self._tree = RadixTree(block_size)
        self._blocks: dict[Sequence, _Blocks] = {}
        self._pins: list[Node] = []
        # Running sequence -> index of the first block of its table that take_table_changes() has not told yet.
        self._changed: dict[Sequence, int] = {}

    @property
    def num_blocks(self) -> int:
        """All there are: free + cached + used."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks with nothing in them."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that only the prefix tree holds."""
        return self._tree.num_evictable_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that sequences use, or that are pinned."""
        return self._pool.num_blocks - self._pool.num_free - self._tree.num_evictable_blocks

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks that are never evicted."""
        return num_blocks_above(self._pins)

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be had without taking them from a sequence."""
        return self._pool.num_free + self._tree.num_evictable_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def num_missing_blocks(self, sequence: Sequence) -> int:
        """Blocks that a running sequence needs beyond its own to sample its next token and store it."""
        return self._num_wanted_blocks(sequence) - sequence.num_slots // self.block_size

    def block_ids(self, sequence: Sequence) -> list[int]:
        """A copy of a running sequence's table."""
        return list(self._blocks[sequence].block_ids)

    def try_admit(self, sequence: Sequence, num_reserved: int = 0) -> bool:
        """Starts a sequence from what the tree has of its tokens; sets num_computed_tokens (and num_cached_tokens).

        The last token is never taken from the tree: its logits are wanted, so it is always computed. So is a prompt
        whose log-probabilities are to be told.

        Args:
            num_reserved: blocks that are available but promised to others.

        Returns:
            False, and nothing changed, if the rest of its tokens would not find blocks.
        """
        if sequence in self._blocks:
            raise InvariantBroken(f"request {sequence.request_id} choice {sequence.choice} is admitted twice")
        max_blocks = sequence.num_prefix_tokens // self.block_size if self.enable_prefix_caching else 0
        match = self._tree.match(sequence.token_ids, max_blocks, sequence.cache_salt)
        num_available = self.num_available_blocks - self._tree.num_evictable_of(match) - num_reserved
        if self._num_wanted_blocks(sequence) - match.num_blocks > num_available:
            return False
        node, block_ids = self._tree.lock(match)
        self._blocks[sequence] = _Blocks(block_ids, node, len(block_ids))
        self._changed[sequence] = 0
        num_tokens = len(block_ids) * self.block_size
        sequence.num_slots = sequence.num_computed_tokens = num_tokens
        return True

    def pin(self, token_ids: list[int]) -> int:
        """Keeps the whole blocks of a prefix without a salt for good, as far as they are in the tree; how many."""
        match = self._tree.match(token_ids, len(token_ids) // self.block_size)
        if match.num_blocks:
            node, _ = self._tree.lock(match)
            self._pins.append(node)
        return match.num_blocks

    def count_hit(self, sequence: Sequence) -> None:
        """Counts an admitted sequence's prefix hit, as it starts for the first time: of its prompt, and not of what its
        output begins with without a choice."""
        if self.enable_prefix_caching:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
            self.num_prefix_queries += sequence.num_prompt_tokens
            self.num_prefix_hits += sequence.num_cached_tokens

    def try_extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Makes a running sequence's blocks hold `num_tokens` tokens, evicting unused ones.

        Returns False, and changes nothing, if there are too few.
        """
        blocks = self._blocks[sequence]
        num_new = self.num_blocks_for(num_tokens) - len(blocks.block_ids)
        if num_new <= 0:
            return True
        num_short = num_new - self._pool.num_free
        if num_short > 0:
            if num_short > self._tree.num_evictable_blocks:
                return False
            self._pool.free(self._tree.evict(num_short))
        self._mark_changed(sequence, len(blocks.block_ids))
        blocks.block_ids += self._pool.allocate(num_new)
        sequence.num_slots = len(blocks.block_ids) * self.block_size
        return True

    def insert(self, sequence: Sequence) -> None:
        """Hands a running sequence's whole computed blocks to the tree, merging what the tree has already."""
        if not self.enable_prefix_caching:
            return
        blocks = self._blocks[sequence]
        start, end = blocks.num_tree_blocks, sequence.num_computed_tokens // self.block_size
        if end <= start:
            return
        own = blocks.block_ids[start:end]
        run = sequence.token_ids[start * self.block_size : end * self.block_size]
        blocks.node, merged = self._tree.insert(blocks.node, run, own, sequence.cache_salt)
        blocks.num_tree_blocks = end
        if merged != own:
            differing = [index for index in range(end - start) if merged[index] != own[index]]
            self._pool.free(own[index] for index in reversed(differing))
            blocks.block_ids[start:end] = merged
            self._mark_changed(sequence, start + differing[0])

    def free(self, sequence: Sequence) -> None:
        """Takes all blocks from a sequence; those in the tree stay cached. Unknown sequences are ignored."""
        blocks = self._blocks.pop(sequence, None)
        if blocks is None:
            return
        self._changed.pop(sequence, None)
        sequence.num_slots = sequence.num_computed_tokens = 0
        self._tree.unlock(blocks.node)
        self._pool.free(reversed(blocks.block_ids[blocks.num_tree_blocks :]))

    def forget(self, sequence: Sequence) -> None:
        """free(), and what no other sequence uses of its blocks leaves the tree: they hold bad numbers."""
        blocks = self._blocks.get(sequence)
        self.free(sequence)
        if blocks is not None:
            self._pool.free(self._tree.drop(blocks.node))

    def take_table_changes(self) -> list[TableChange]:
        """The parts of running sequences' tables that changed since the last call."""
        changed, self._changed = self._changed, {}
        return [
            TableChange(sequence, start, block_ids[start:])
            for sequence, start in changed.items()
            if len(block_ids := self._blocks[sequence].block_ids) > start
        ]

    def check(self) -> None:
        """Raises InvariantBroken unless each block is in one place and each lock has its user. Linear in all blocks."""
        self._tree.check([*self._pins, *(blocks.node for blocks in self._blocks.values())])
        used = [block for node in self._tree.nodes() for block in node.block_ids]
        for sequence, blocks in self._blocks.items():
            self._check_sequence(sequence, blocks)
            used += blocks.block_ids[blocks.num_tree_blocks :]
        self._pool.check(used)

    def _check_sequence(self, sequence: Sequence, blocks: _Blocks) -> None:
        name = f"request {sequence.request_id} choice {sequence.choice}"
        path: list[Node] = []
        node: Node | None = blocks.node
        while node is not None:
            path.append(node)
            node = node.parent
        tree_ids = [block for node in reversed(path) for block in node.block_ids]
        tokens = [token for node in reversed(path) for token in node.token_ids]
        if tree_ids != blocks.block_ids[: blocks.num_tree_blocks]:
            raise InvariantBroken(f"{name}: its table and its path in the prefix tree differ")
        if tokens != sequence.token_ids[: len(tokens)]:
            raise InvariantBroken(f"{name}: its tokens and its path in the prefix tree differ")
        if sequence.num_slots != len(blocks.block_ids) * self.block_size:
            raise InvariantBroken(f"{name}: {sequence.num_slots} slots in {len(blocks.block_ids)} blocks")
        if sequence.num_computed_tokens > sequence.num_slots:
            raise InvariantBroken(f"{name}: {sequence.num_computed_tokens} computed in {sequence.num_slots} slots")

    def _num_wanted_blocks(self, sequence: Sequence) -> int:
        """For all its tokens and the one that is sampled next (which is only stored if another follows it)."""
        return self.num_blocks_for(min(len(sequence.token_ids) + 1, sequence.max_total_tokens))

    def _mark_changed(self, sequence: Sequence, start: int) -> None:
        self._changed[sequence] = min(start, self._changed.get(sequence, start))
