"""Plain text to ids where the tokenizers library has no model for it: SentencePiece's byte-pair merges, by score.

Of two neighbours that make a token together the pair with the highest score is joined first, of equal ones the leftmost
(sentencepiece, bpe_model.cc; llama.cpp, llm_tokenizer_spm). The library's merges have ranks, of which no two are equal,
and to list them takes every split of every token.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush

SPACE = "▁"
_WORD = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_SPACE_INSIDE = re.compile(f"[^{SPACE}]{SPACE}")
_MAX_CACHED = 32
"""Characters of a word whose ids are kept."""
_NUM_CACHED = 1 << 15


@dataclass(frozen=True, slots=True)
class Ids:
    """What an encoding is: the same form as the library's."""

    ids: list[int]


class PieceMerger:
    """A Merger that reads user-defined tokens first and gives what is between them to `merge`, piece by piece.

    Args:
        user_defined: ids by text; the longest counts.
        merge: ids of a text without such tokens.
    """

    def __init__(self, user_defined: Mapping[str, int], merge: Callable[[str], list[int]]) -> None:
        self._user_defined = dict(user_defined)
        self._merge = merge
        longest_first = sorted(user_defined, key=len, reverse=True)
        self._token = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def encode(self, sequence: str, *, add_special_tokens: bool = False) -> Ids:
        """Ids of plain text; special tokens are not added here."""
        ids: list[int] = []
        start = 0
        for match in self._token.finditer(sequence):
            if match.start() > start:
                ids += self._merge(sequence[start : match.start()])
            ids.append(self._user_defined[match[0]])
            start = match.end()
        if start < len(sequence):
            ids += self._merge(sequence[start:])
        return Ids(ids)


def _can_cut_words(pieces: Iterable[str]) -> bool:
    """Whether no token has ▁ behind another character, so that no merge reaches from one word into the next."""
    return not any(SPACE in piece[1:] and _SPACE_INSIDE.search(piece) for piece in pieces)


class ScoreMerger:
    """Ids of a text in which a space is ▁.

    Args:
        pieces: score and id of each token that merges may make.
        byte_ids: id by byte, for characters that are no token.
        unknown_id: for those where there are no such ids.
    """

    def __init__(
        self, pieces: Mapping[str, tuple[float, int]], byte_ids: Mapping[int, int], unknown_id: int | None
    ) -> None:
        self._pieces = dict(pieces)
        self._byte_ids = dict(byte_ids)
        self._unknown_ids = () if unknown_id is None else (unknown_id,)
        self._cuts_words = _can_cut_words(self._pieces)
        self._short_word = lru_cache(maxsize=_NUM_CACHED)(self._word)

    def merge(self, text: str) -> list[int]:
        """Its ids."""
        ids: list[int] = []
        for word in _WORD.findall(text) if self._cuts_words else (text,):
            ids += self._short_word(word) if len(word) <= _MAX_CACHED else self._word(word)
        return ids

    def _word(self, word: str) -> tuple[int, ...]:
        return tuple(token_id for symbol in self._join(word) for token_id in self._ids_of(symbol))

    def _join(self, word: str) -> list[str]:
        """The word's characters, joined as far as they make tokens. A symbol that has been joined is empty."""
        pieces = self._pieces
        symbols = list(word)
        count = len(symbols)
        before, behind = list(range(-1, count - 1)), [*range(1, count), -1]
        queue = []
        for left in range(count - 1):
            found = pieces.get(word[left : left + 2])
            if found:
                queue.append((-found[0], left, left + 1, 2))
        heapify(queue)
        while queue:
            _, left, right, length = heappop(queue)
            # Outdated where either has been joined with another one meanwhile.
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != length:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            after = behind[left] = behind[right]
            if after >= 0:
                before[after] = left
            for one, other in ((before[left], left), (left, after)):
                if one >= 0 and other >= 0:
                    text = symbols[one] + symbols[other]
                    found = pieces.get(text)
                    if found:
                        heappush(queue, (-found[0], one, other, len(text)))
        return [symbol for symbol in symbols if symbol]

    def _ids_of(self, symbol: str) -> tuple[int, ...]:
        found = self._pieces.get(symbol)
        if found:
            return (found[1],)
        try:
            return tuple(self._byte_ids[byte] for byte in symbol.encode())
        except KeyError:
            return self._unknown_ids
