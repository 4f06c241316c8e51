"""A model's tokens as llguidance wants them. Made once a model, in the process that runs it."""

import llguidance

from headway.errors import InternalError, UnsupportedModel
from headway.text.tokenizer import Tokenizer

_SENTINEL = "\x02"
"""A character that merges with nothing: what stands behind it is encoded as the middle of a text."""


class _Tokens:
    """What llguidance.TokenizerWrapper reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.end_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_token_ids)

    def __call__(self, text: bytes) -> list[int]:
        """Ids of a piece of text (UTF-8), as they stand in the middle of an answer."""
        return encode_piece(self._tokenizer, text.decode())


def encode_piece(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids whose bytes are exactly the text's: no special tokens, nor the space that some vocabularies begin with."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    if _spelling(tokenizer, ids) == text.encode():
        return ids
    first = tokenizer.encode(_SENTINEL, add_special_tokens=False)
    ids = tokenizer.encode(_SENTINEL + text, add_special_tokens=False)
    if _spelling(tokenizer, ids) != _spelling(tokenizer, first) + text.encode() or ids[: len(first)] != first:
        raise InternalError(f"the tokenizer has no ids for exactly {text[:40]!r}")
    return ids[len(first) :]


def _spelling(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


def make_llguidance_tokenizer(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    """The vocabulary, as wide as the logits: ids without a text are never allowed, all end tokens end a match.

    Special tokens stand in a grammar by name (<|im_end|>) and are no text of it. About 0.3 s for 50,000 tokens.
    Raises UnsupportedModel for a model without an end token, whose constrained answers could not end.
    """
    if not tokenizer.end_token_ids:
        raise UnsupportedModel("the model names no end token: answers that match a grammar need one")
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Tokens(tokenizer)),
        n_vocab=tokenizer.vocab_size,
        eos_token=sorted(tokenizer.end_token_ids),
    )
