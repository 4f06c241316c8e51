"""RadixTree: which runs of tokens have their K and V in which blocks, for prompts that begin alike.

Each edge is a run of whole blocks, kept in the node that it leads to, and each child of a node begins with another
block of tokens. A sequence locks the path to the node where its cached tokens end; what is unlocked may be evicted,
leaves first, the one whose last user left longest ago first, from its tail, and no more than is needed.

    root ──[ A B ]── node ──[ C ]──────── leaf     a sequence with the blocks A B C holds one lock on both nodes
                       └────[ D E F ]──── leaf     unlocked: F, then E, then D can be evicted

A salt is a tree of its own in here: it is part of the key of the edges at the root, so that what has another salt is
never found, not even by its first block.

The structure is SGLang's RadixAttention (arXiv 2312.07104), with edges of whole blocks.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headway.errors import InvariantBroken

_Key = tuple[int, ...] | tuple[str, tuple[int, ...]]
"""The first block of an edge; at the root with its salt, if it has one."""


class Node:
    """An edge and where it ends. Compared by identity; only the tree writes to it."""

    __slots__ = ("block_ids", "children", "last_used", "num_locks", "number", "parent", "salt", "token_ids")

    def __init__(
        self, number: int, parent: "Node | None", token_ids: list[int], block_ids: list[int], salt: str = ""
    ) -> None:
        self.number = number
        self.parent = parent
        self.salt = salt
        self.token_ids = token_ids
        self.block_ids = block_ids
        self.children: dict[_Key, Node] = {}
        self.num_locks = 0
        self.last_used = 0

    @property
    def is_evictable(self) -> bool:
        """A leaf that nobody uses and that is still in the tree."""
        return not self.num_locks and not self.children and self.parent is not None


@dataclass(frozen=True, slots=True)
class Match:
    """How far a prompt is in the tree: up to `num_edge_blocks` blocks into the edge of `node`."""

    node: Node
    num_edge_blocks: int
    num_blocks: int
    """Blocks from the root on."""


class RadixTree:
    """Owns the blocks that are inserted until they are evicted or dropped. Not thread-safe."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.root = Node(0, None, [], [])
        self.num_blocks = 0
        """Blocks that the tree owns."""
        self.num_evictable_blocks = 0
        """Of these, blocks that no sequence uses."""
        self._num_nodes_made = 1
        self._clock = 0
        # (last_used, number, node) of every evictable leaf, and entries that are out of date.
        self._leaves: list[tuple[int, int, Node]] = []
        self._max_leaves = 64

    def match(self, token_ids: list[int], max_blocks: int, salt: str = "") -> Match:
        """The longest cached run of whole blocks of this salt at the start of `token_ids`.

        Changes nothing; linear in the prompt.
        """
        size, node, num = self.block_size, self.root, 0
        while num < max_blocks:
            child = node.children.get(self._key(node, token_ids[num * size : (num + 1) * size], salt))
            if child is None:
                break
            num_equal = self._num_equal_blocks(child, token_ids, num, max_blocks)
            num += num_equal
            node = child
            if num_equal < len(child.block_ids):
                return Match(child, num_equal, num)
        return Match(node, len(node.block_ids), num)

    def num_evictable_of(self, match: Match) -> int:
        """Blocks of a match that locking it would keep from being evicted."""
        num = 0 if match.node.num_locks else match.num_edge_blocks
        for node in _path(match.node.parent):
            num += 0 if node.num_locks else len(node.block_ids)
        return num

    def lock(self, match: Match) -> tuple[Node, list[int]]:
        """Keeps a match's blocks. Returns the node where it ends, to be unlocked once, and its blocks from the root."""
        node = match.node
        if match.num_edge_blocks < len(node.block_ids):
            node = self._split(node, match.num_edge_blocks)
        runs = []
        for step in _path(node):
            self._lock_node(step)
            runs.append(step.block_ids)
        return node, [block for run in reversed(runs) for block in run]

    def unlock(self, node: Node) -> None:
        """Gives a lock back; the path counts as used now."""
        self._clock += 1
        for step in _path(node):
            step.num_locks -= 1
            step.last_used = self._clock
            if step.num_locks == 0:
                self.num_evictable_blocks += len(step.block_ids)
            elif step.num_locks < 0:
                raise InvariantBroken("a node of the prefix tree is unlocked once too often")
        self._push(node)

    def insert(self, node: Node, token_ids: list[int], block_ids: list[int], salt: str = "") -> tuple[Node, list[int]]:
        """Adds a run below `node`, on which the caller holds a lock that moves to the end of the run.

        `salt` must be that of `node`; what is below the root has any.

        Where the tree has the same tokens already, its blocks stay and the caller's are not taken.

        Returns:
            The node that is locked now, and the run's blocks as the tree has them: where they differ from
            `block_ids`, the caller's own block is still the caller's, to be freed.
        """
        size, done = self.block_size, 0
        merged: list[int] = []
        while done < len(block_ids):
            child = node.children.get(self._key(node, token_ids[done * size : (done + 1) * size], salt))
            if child is None:
                node = self._append(node, token_ids[done * size :], block_ids[done:], salt)
                return node, merged + block_ids[done:]
            num_equal = self._num_equal_blocks(child, token_ids, done, len(block_ids))
            node = child if num_equal == len(child.block_ids) else self._split(child, num_equal)
            self._lock_node(node)
            merged += node.block_ids
            done += num_equal
        return node, merged

    def evict(self, num: int) -> list[int]:
        """Up to `num` blocks that no sequence uses, least recently used leaf first, each leaf from its tail."""
        evicted: list[int] = []
        while len(evicted) < num and self._leaves:
            last_used, _, node = heapq.heappop(self._leaves)
            if not node.is_evictable or node.last_used != last_used:
                continue
            num_kept = max(0, len(node.block_ids) - (num - len(evicted)))
            evicted += self._trim(node, num_kept)
        return evicted

    def drop(self, node: Node) -> list[int]:
        """Takes an unlocked node out, and what above it only led there; returns their blocks."""
        dropped: list[int] = []
        while node.is_evictable and node.parent is not None:
            parent = node.parent
            dropped += self._trim(node, 0)
            node = parent
        return dropped

    def nodes(self) -> Iterator[Node]:
        """Every node but the root."""
        stack = [self.root]
        while stack:
            children = stack.pop().children.values()
            yield from children
            stack.extend(children)

    def check(self, users: Iterable[Node]) -> None:
        """Raises InvariantBroken unless the tree is well formed and its locks are those of `users`, their end nodes."""
        locks: dict[Node, int] = {}
        for user in users:
            for step in _path(user):
                locks[step] = locks.get(step, 0) + 1
        queued = {(last_used, node) for last_used, _, node in self._leaves}
        num = num_evictable = 0
        for node in self.nodes():
            num += len(node.block_ids)
            num_evictable += 0 if node.num_locks else len(node.block_ids)
            parent = node.parent
            if parent is None or parent.children.get(self._key(parent, node.token_ids, node.salt)) is not node:
                raise InvariantBroken("a node of the prefix tree is not its parent's child")
            if parent is not self.root and parent.salt != node.salt:
                raise InvariantBroken("an edge of the prefix tree is below one of another salt")
            if not node.block_ids or len(node.token_ids) != len(node.block_ids) * self.block_size:
                raise InvariantBroken("an edge of the prefix tree is not a run of whole blocks")
            if node.num_locks != locks.pop(node, 0):
                raise InvariantBroken("the locks of the prefix tree are not those of its users")
            if node.is_evictable and (node.last_used, node) not in queued:
                raise InvariantBroken("an unlocked leaf of the prefix tree is not in line to be evicted")
        if locks or (num, num_evictable) != (self.num_blocks, self.num_evictable_blocks):
            raise InvariantBroken("the prefix tree's counts are wrong, or a user holds a node that is not in it")

    def _key(self, parent: Node, token_ids: list[int], salt: str) -> _Key:
        """Of the child of `parent` whose edge begins with `token_ids`."""
        block = tuple(token_ids[: self.block_size])
        return (salt, block) if salt and parent is self.root else block

    def _num_equal_blocks(self, child: Node, token_ids: list[int], start: int, limit: int) -> int:
        """Blocks of the edge of `child` equal to `token_ids` from block `start` on; the first is known to be."""
        size, edge = self.block_size, child.token_ids
        most = min(len(child.block_ids), limit - start)
        for num in range(1, most):
            at = (start + num) * size
            if edge[num * size : (num + 1) * size] != token_ids[at : at + size]:
                return num
        return most

    def _append(self, node: Node, token_ids: list[int], block_ids: list[int], salt: str) -> Node:
        """A locked run that the tree has not: on the end of `node` if its one user brings it, else as a child."""
        self.num_blocks += len(block_ids)
        if node.parent is not None and node.num_locks == 1 and not node.children:
            node.token_ids += token_ids
            node.block_ids += block_ids
            return node
        child = self._make_node(node, token_ids, block_ids, salt)
        child.num_locks = 1
        return child

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Cuts an edge; returns the new upper node. `node` keeps the tail, and with it everyone who holds it."""
        at = num_blocks * self.block_size
        parent = node.parent
        if parent is None:
            raise InvariantBroken("the root of the prefix tree has no edge to split")
        upper = self._make_node(parent, node.token_ids[:at], node.block_ids[:num_blocks], node.salt)
        upper.num_locks, upper.last_used = node.num_locks, node.last_used
        node.token_ids, node.block_ids = node.token_ids[at:], node.block_ids[num_blocks:]
        node.parent = upper
        upper.children[self._key(upper, node.token_ids, node.salt)] = node
        return upper

    def _make_node(self, parent: Node, token_ids: list[int], block_ids: list[int], salt: str) -> Node:
        node = Node(self._num_nodes_made, parent, token_ids, block_ids, salt)
        self._num_nodes_made += 1
        parent.children[self._key(parent, token_ids, salt)] = node
        return node

    def _lock_node(self, node: Node) -> None:
        if node.num_locks == 0:
            self.num_evictable_blocks -= len(node.block_ids)
        node.num_locks += 1

    def _trim(self, node: Node, num_kept: int) -> list[int]:
        """Cuts an evictable leaf down, or out; returns its blocks, the last first."""
        trimmed = node.block_ids[: num_kept - len(node.block_ids) - 1 : -1]
        self.num_blocks -= len(trimmed)
        self.num_evictable_blocks -= len(trimmed)
        if num_kept:
            del node.block_ids[num_kept:]
            del node.token_ids[num_kept * self.block_size :]
            self._push(node)
        elif node.parent is not None:
            del node.parent.children[self._key(node.parent, node.token_ids, node.salt)]
            parent, node.parent = node.parent, None
            self._push(parent)
        return trimmed

    def _push(self, node: Node) -> None:
        """Puts a node in line if it can be evicted; sweeps the line when it is mostly out of date."""
        if not node.is_evictable:
            return
        heapq.heappush(self._leaves, (node.last_used, node.number, node))
        if len(self._leaves) > self._max_leaves:
            live = {
                node: entry for entry in self._leaves if (node := entry[2]).is_evictable and entry[0] == node.last_used
            }
            self._leaves = list(live.values())
            heapq.heapify(self._leaves)
            self._max_leaves = max(64, 2 * len(self._leaves))


def num_blocks_above(nodes: Iterable[Node]) -> int:
    """Blocks on the ways from the root to `nodes`, each counted once."""
    return sum(len(node.block_ids) for node in {step for node in nodes for step in _path(node)})


def _path(node: Node | None) -> Iterator[Node]:
    """`node` and what is above it, without the root."""
    while node is not None and node.parent is not None:
        yield node
        node = node.parent
