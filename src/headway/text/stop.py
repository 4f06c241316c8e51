"""StopMatcher: finds the first stop string in a growing text and holds back only what can still become one.

Which is first: the one that is complete first, as a reader of the stream sees it; of those that are complete at the
same character the longest (it begins first). So the answer does not depend on how the text was cut into pieces, and no
token is computed to see whether a longer stop would follow. (vLLM ends at the same token; where two are complete within
one token it takes the one that stands first in the request.)

The search is Aho and Corasick's automaton ("Efficient string matching", 1975): one step forward a character, and a step
back is paid for by one forward, whatever the strings are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from headway.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class StopMatch:
    """What a push gave."""

    text: str
    """To be sent: it is no part of a stop string (but for one that was asked to be included)."""
    matched: str | None = None
    """The stop string that ends the text; nothing comes after it."""


class _Node:
    """A prefix of one or more stop strings."""

    __slots__ = ("depth", "fallback", "following", "found")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.following: dict[str, _Node] = {}
        self.fallback: _Node = self
        """The longest proper suffix of this prefix that is a prefix too."""
        self.found: str | None = None
        """The longest stop string that this prefix ends with."""


@lru_cache(maxsize=4)
def _make_automaton(stops: tuple[str, ...]) -> _Node:
    """Only read once it is made: the choices of a request, which are made in a row, share one."""
    root = _Node(0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.following.setdefault(character, _Node(node.depth + 1))
        node.found = stop
    level = list(root.following.values())
    for node in level:
        node.fallback = root
    while level:
        for node in level:
            for character, child in node.following.items():
                child.fallback = _step(node.fallback, character, root)
                # A node's own string is longer than any that its fallback ends with.
                child.found = child.found or child.fallback.found
        level = [child for node in level for child in node.following.values()]
    return root


def _step(node: _Node, character: str, root: _Node) -> _Node:
    while node is not root and character not in node.following:
        node = node.fallback
    return node.following.get(character, root)


class StopMatcher:
    """The search in one choice's text.

    Args:
        stops: what ends the text; none: everything passes.
        include: the stop string stays in the text.

    Raises:
        InvalidRequest: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        if not all(stops):
            raise InvalidRequest("stop has an empty string; leave it out", param="stop")
        self._root = self._node = _make_automaton(tuple(stops))
        self._include = include
        self._held = ""
        """The end of the text so far that is the beginning of a stop string: as long as the node is deep."""
        self._matched: str | None = None

    def push(self, text: str) -> StopMatch:
        """Takes the next piece of the text. After a match nothing is taken any more."""
        if self._matched is not None:
            return StopMatch("", self._matched)
        if not self._root.following:
            return StopMatch(text)
        node, root = self._node, self._root
        for place, character in enumerate(text):
            node = _step(node, character, root)
            if node.found is not None:
                return self._end(self._held + text[: place + 1], node.found)
        self._node = node
        seen = self._held + text
        cut = len(seen) - node.depth
        self._held = seen[cut:]
        return StopMatch(seen[:cut])

    def flush(self) -> str:
        """What was held back, at the end of a text without a match; a second call gives nothing."""
        held, self._held = self._held, ""
        self._node = self._root
        return held

    def _end(self, seen: str, found: str) -> StopMatch:
        self._matched = found
        self._held = ""
        return StopMatch(seen if self._include else seen[: -len(found)], found)
