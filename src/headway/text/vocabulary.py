"""Vocabulary: what a tokenizer's file was read into, one form for all. Made by gguf_vocabulary and json_vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Spelling = Literal["bytes", "spaces"]


class _Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class Merger(Protocol):
    """tokenizers.Tokenizer, as far as it is used: plain text to ids, control tokens taken as text."""

    def encode(self, sequence: str, *, add_special_tokens: bool = ...) -> _Encoding: ...


def is_library_failure(problem: BaseException) -> bool:
    """Whether the tokenizers library raised it: Exception, or a Rust panic, which is a BaseException of no module."""
    return isinstance(problem, Exception) or type(problem).__name__ == "PanicException"


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that only a template or an explicit wish puts into a prompt."""

    token_id: int
    takes_space_before: bool = False
    """White space before it in a text belongs to it."""
    takes_space_after: bool = False


@dataclass(frozen=True, slots=True)
class PairFrame:
    """Ids around and between two texts that are read as one, and of which type the second is (BERT: 1)."""

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    second_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokens, how they are spelt, and what stands around a text."""

    merger: Merger
    later_merger: Merger
    """For plain text behind a control token; differs from `merger` where only a prompt's first word gets a space."""
    can_cut: bool
    """A long text may be encoded in parts that begin at a space behind a word."""
    texts: Sequence[str | None]
    """By id, as the vocabulary spells them; None where an id has no token."""
    spelling: Spelling
    """bytes: in GPT-2's byte alphabet; spaces: ▁ is a space, and <0x0A> a byte."""
    literal_ids: frozenset[int]
    """Tokens whose text stands for itself whatever the spelling."""
    control: Mapping[str, ControlToken]
    """By text."""
    special_ids: frozenset[int]
    """Tokens that a text for a reader leaves out: those that their file calls special."""
    bos_token_id: int | None
    prefix: tuple[int, ...] = ()
    """Ids before a text that wants special tokens."""
    suffix: tuple[int, ...] = ()
    pair: PairFrame | None = None
    """None: the tokenizer does not say how two texts are read as one."""
    strips_leading_space: bool = False
    """One space at the very beginning of a decoded text is the tokenizer's own."""
    byte_ids: Mapping[int, int] = field(default_factory=dict)
    """The byte of each token that is spelt <0x..>; only where the spelling is spaces."""
