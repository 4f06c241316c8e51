"""FreeText: the text of tokens that nothing constrains, watched for what ends it: an end of reasoning, or a trigger.

Where something is found in the middle of a token, what stands behind it in that token is known to the byte.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from typing import NamedTuple

MAX_MATCH = 256
"""Characters of a trigger's match."""

_Utf8Decoder = getincrementaldecoder("utf-8")


class Found(NamedTuple):
    """A place in the text."""

    token_ids: list[int]
    """The last tokens, that from its beginning on are whole."""
    head: bytes
    """What comes before them and is a part of the token before: from its beginning on."""
    rest: bytes
    """What stands behind its end."""


class FreeText:
    """Of one sequence, from the beginning of a stretch of free text.

    Args:
        bytes_of: what a token adds to the text.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = _Utf8Decoder(errors="replace")
        self._text = ""
        """The end of it."""
        self._is_cut = False
        """It has a character more in front than it needs, so that what stands at a text's beginning does not match."""
        self._tokens: list[int] = []
        """Those that `_text` is made of, the first perhaps in part."""
        self._searched = 0
        """No match begins before."""

    def push(self, token_id: int) -> None:
        """The next token."""
        self.push_bytes(self._bytes_of(token_id))
        self._tokens.append(token_id)

    def push_bytes(self, data: bytes) -> None:
        """The rest of a token that began in what was before."""
        self._cut()
        self._text += self._decoder.decode(data)

    def find(self, literal: str) -> Found | None:
        """The first place of a text."""
        place = self._text.find(literal)
        return None if place < 0 else self._found(place, place + len(literal))

    def search(self, pattern: re.Pattern[str]) -> Iterator[Found]:
        """The next matches; one that was taken from here does not come again."""
        while True:
            match = pattern.search(self._text, max(self._searched, int(self._is_cut)))
            if match is None:
                return
            self._searched = max(match.end(), match.start() + 1)
            yield self._found(match.start(), match.end())

    def _cut(self) -> None:
        """Keeps what a match of the greatest length may need."""
        surplus = len(self._text) - MAX_MATCH - 1
        if surplus < MAX_MATCH:
            return
        self._text = self._text[surplus:]
        self._is_cut = True
        self._searched = max(0, self._searched - surplus)
        num_bytes, first = 0, len(self._tokens)
        wanted = len(self._text.encode()) + len(self._held)
        while first > 0 and num_bytes < wanted:
            first -= 1
            num_bytes += len(self._bytes_of(self._tokens[first]))
        del self._tokens[:first]

    @property
    def _held(self) -> bytes:
        """The beginning of a character that is not whole yet."""
        return self._decoder.getstate()[0]

    def _found(self, start: int, end: int) -> Found:
        tail = self._text[start:].encode() + self._held
        num_left, first = len(tail), len(self._tokens)
        while first > 0 and len(self._bytes_of(self._tokens[first - 1])) <= num_left:
            first -= 1
            num_left -= len(self._bytes_of(self._tokens[first]))
        return Found(self._tokens[first:], tail[:num_left], self._text[end:].encode() + self._held)
