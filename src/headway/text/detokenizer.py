"""Detokenizer: a stream of token ids -> a stream of text, at the same cost for each token whatever came before.

A character whose bytes are spread over tokens is held back until it is whole: at most three bytes.
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence, Set
from typing import Protocol

_Utf8Decoder = getincrementaldecoder("utf-8")


class SpelledTokens(Protocol):
    """What it needs of a Tokenizer."""

    strips_leading_space: bool
    special_token_ids: frozenset[int]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token."""
        ...


class Detokenizer:
    """One choice's text. All that push() and flush() gave, joined, is tokenizer.decode() of all ids.

    Args:
        tokenizer: whose ids they are.
        skip_special_tokens: leaves special tokens out of the text.
        continues: the ids go on behind a prompt, so that a leading space is the text's own; False: they are a whole
            text, whose first space a tokenizer of Llama 2's kind takes away.
        shown: special tokens that are not left out.
    """

    __slots__ = (
        "_decoder",
        "_drops_space",
        "_is_whole",
        "_left_out",
        "_tokenizer",
    )

    def __init__(
        self,
        tokenizer: SpelledTokens,
        *,
        skip_special_tokens: bool = True,
        continues: bool = False,
        shown: Set[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        left_out: Set[int] = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._left_out = left_out - shown if shown else left_out
        self._decoder = _Utf8Decoder(errors="replace")
        self._drops_space = tokenizer.strips_leading_space and not continues
        self._is_whole = True
        """Nothing is held back."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The whole characters that these tokens complete; may be empty."""
        left_out = self._left_out
        if len(token_ids) == 1:
            new = b"" if token_ids[0] in left_out else self._tokenizer.token_bytes(token_ids[0])
        else:
            new = b"".join(
                [self._tokenizer.token_bytes(token_id) for token_id in token_ids if token_id not in left_out]
            )
        if self._is_whole and new.isascii():
            text = new.decode("ascii")
        else:
            text = self._decoder.decode(new)
            self._is_whole = not self._decoder.getstate()[0]
        return self._without_first_space(text) if self._drops_space else text

    @property
    def held(self) -> bytes:
        """What is held back, for who goes on in this one's place; and from there, to be gone on with."""
        return self._decoder.getstate()[0]

    @held.setter
    def held(self, held: bytes) -> None:
        self._decoder.setstate((held, 0))
        self._is_whole = not held

    def flush(self) -> str:
        """What is held back, as U+FFFD, once. Call it at the end of the stream; a second call gives nothing."""
        self._is_whole = True
        return self._without_first_space(self._decoder.decode(b"", final=True))

    def _without_first_space(self, text: str) -> str:
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        return text
