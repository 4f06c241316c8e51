"""ConstraintTokens: a model's tokens for what constrains its answers, made once in the process that runs the model."""

from headway.engine.trial_messages import TrialVocabulary
from headway.errors import InternalError
from headway.text.constrained_vocabulary import encode_piece, make_llguidance_tokenizer
from headway.text.tokenizer import Tokenizer


class ConstraintTokens:
    """A model's tokens, for texts that are not sampled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.llguidance = make_llguidance_tokenizer(tokenizer)
        self._tokenizer = tokenizer

    def for_trial(self) -> TrialVocabulary:
        """What a process that tries grammars has to know of them."""
        tokenizer = self._tokenizer
        return TrialVocabulary(
            tokens=[tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)],
            end_token_ids=sorted(tokenizer.end_token_ids),
            special_token_ids=sorted(tokenizer.special_token_ids),
        )

    def can_spell(self, text: str) -> bool:
        """Whether the model has tokens for exactly this text."""
        try:
            encode_piece(self._tokenizer, text)
        except InternalError:
            return False
        return True

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to the text, control tokens too."""
        return self._tokenizer.token_bytes(token_id)

    def encode(self, text: str) -> list[int]:
        """Ids of a text in the middle of an answer; control tokens by their names."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, parse_special=True)
        if b"".join(map(self.bytes_of, ids)) == text.encode():
            return ids
        return encode_piece(self._tokenizer, text)

    def encode_bytes(self, data: bytes) -> list[int]:
        """Ids of bytes that may be no whole characters."""
        return list(self.llguidance.tokenize_bytes(data))
