"""The tokens of a GGUF file, checked: what its kinds of tokenizers (gguf_vocabulary.py) are built from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from headway.errors import CorruptCheckpoint
from headway.text.source import GgufVocabulary
from headway.text.vocabulary import ControlToken, Merger, PairFrame, Vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class GgufTokens:
    """A file's tokens by what may be done with them."""

    found: GgufVocabulary
    types: Sequence[int]
    """By id; an end token that the file calls user defined is a control token."""
    control: Mapping[str, ControlToken]
    """By text."""

    @property
    def plain(self) -> dict[str, int]:
        """Id by text, of all but control tokens. Raises CorruptCheckpoint where two tokens have one text."""
        texts = self.found.tokens
        ids = {text: token_id for token_id, text in enumerate(texts) if text and text not in self.control}
        if len(ids) + len(self.control) != len(texts) - texts.count(""):
            raise CorruptCheckpoint(f"tokenizer.ggml.tokens has the same token twice: {_first_double(texts)!r}")
        return ids

    @property
    def user_defined(self) -> dict[str, int]:
        """Id by text, of the tokens that are read from any text before all others."""
        return self._of(USER_DEFINED)

    @property
    def byte_ids(self) -> dict[int, int]:
        """Byte by id, of the tokens that are spelt <0x..>. Raises CorruptCheckpoint for another spelling of one."""
        found = {}
        for text, token_id in self._of(BYTE).items():
            if len(text) != 6 or not text.startswith("<0x") or text[5] != ">" or not _is_hexadecimal(text[3:5]):
                raise CorruptCheckpoint(f"tokenizer.ggml.tokens[{token_id}] is {text[:50]!r}, which is no byte")
            found[token_id] = int(text[3:5], 16)
        return found

    @property
    def special_ids(self) -> frozenset[int]:
        """What a text for a reader leaves out."""
        return frozenset(token.token_id for token in self.control.values())

    def ids_of(self, *kinds: int) -> frozenset[int]:
        """The tokens of these types."""
        return frozenset(token_id for token_id, kind in enumerate(self.types) if kind in kinds)

    def prefix(self, *, adds_bos: bool) -> tuple[int, ...]:
        """Ids before a text; `adds_bos` where the file does not say."""
        bos_token_id = self.found.bos_token_id
        is_wanted = adds_bos if self.found.add_bos_token is None else self.found.add_bos_token
        return (bos_token_id,) if is_wanted and bos_token_id is not None else ()

    def suffix(self, *, adds_eos: bool = False) -> tuple[int, ...]:
        """Ids behind a text; `adds_eos` where the file does not say."""
        eos_token_id = self.found.eos_token_id
        is_wanted = adds_eos if self.found.add_eos_token is None else self.found.add_eos_token
        return (eos_token_id,) if is_wanted and eos_token_id is not None else ()

    def pair(self, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> PairFrame | None:
        """RoBERTa's: `<s> first </s></s> second </s>`; None where the file has no separator or nothing around texts.

        add_sep_token says whether there is a second token between them. Older files do not have the key, and these are
        RoBERTa's too: llama.cpp then takes one, against what the models were trained with.
        """
        separator = self.found.separator_token_id
        if separator is None or not prefix or not suffix:
            return None
        middle = suffix if self.found.add_separator_token is False else (*suffix, separator)
        return PairFrame(prefix, middle, suffix, second_type=0)

    def vocabulary(
        self,
        merger: Merger,
        *,
        can_cut: bool,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        pair: PairFrame | None = None,
        control: Mapping[str, ControlToken] | None = None,
        strips_leading_space: bool = False,
        byte_ids: Mapping[int, int] | None = None,
    ) -> Vocabulary:
        """The vocabulary of a kind that spells a space as ▁. `control`: where it is more than the file's own."""
        return Vocabulary(
            merger=merger,
            later_merger=merger,
            can_cut=can_cut,
            texts=self.found.tokens,
            spelling="spaces",
            literal_ids=self.ids_of(CONTROL, UNKNOWN, USER_DEFINED),
            control=self.control if control is None else control,
            special_ids=self.special_ids,
            bos_token_id=self.found.bos_token_id,
            prefix=prefix,
            suffix=suffix,
            pair=pair,
            strips_leading_space=strips_leading_space,
            byte_ids=byte_ids or {},
        )

    def _of(self, wanted: int) -> dict[str, int]:
        return {
            text: token_id
            for token_id, (text, kind) in enumerate(zip(self.found.tokens, self.types, strict=True))
            if kind == wanted and text
        }


def check_tokens(found: GgufVocabulary, end_token_ids: frozenset[int]) -> GgufTokens:
    """`end_token_ids` are control tokens even where the file calls them user defined.

    Raises CorruptCheckpoint where the file contradicts itself.
    """
    types = _checked_types(found, end_token_ids)
    control = {
        text: ControlToken(token_id)
        for token_id, (text, kind) in enumerate(zip(found.tokens, types, strict=True))
        if kind in (CONTROL, UNKNOWN) and text
    }
    return GgufTokens(found, types, control)


def _checked_types(found: GgufVocabulary, end_token_ids: frozenset[int]) -> Sequence[int]:
    num_tokens, num_types = len(found.tokens), len(found.token_types)
    if num_types not in (0, num_tokens):
        raise CorruptCheckpoint(f"tokenizer.ggml.token_type has {num_types} entries for {num_tokens} tokens")
    for name, token_id in (
        ("bos_token_id", found.bos_token_id),
        ("eos_token_id", found.eos_token_id),
        ("unknown_token_id", found.unknown_token_id),
        ("seperator_token_id", found.separator_token_id),
    ):
        if token_id is not None and not 0 <= token_id < num_tokens:
            raise CorruptCheckpoint(f"tokenizer.ggml.{name} is {token_id}, outside the {num_tokens} tokens")
    types = list(found.token_types) or [NORMAL] * num_tokens
    for token_id in end_token_ids:
        # An end token that the file calls user defined would be read from any text.
        if 0 <= token_id < num_tokens and types[token_id] == USER_DEFINED:
            types[token_id] = CONTROL
    return types


def _is_hexadecimal(text: str) -> bool:
    return all(character in "0123456789abcdefABCDEF" for character in text)


def _first_double(tokens: Sequence[str]) -> str | None:
    ordered = sorted(token for token in tokens if token)
    return next((one for one, other in zip_longest(ordered, ordered[1:]) if one == other), None)
