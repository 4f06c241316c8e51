"""What a door asks a service for where no text is wanted: vectors of texts, and scores of pairs of texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headway.core.request import TextPrompt, TokensPrompt
from headway.errors import ContextLengthExceeded

Purpose = Literal["text", "query", "document"]
FIT = -1
"""truncate_to: as many tokens as the model takes."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts that a cross-encoder reads as one."""

    first: str
    second: str


EmbedInput = TextPrompt | TokensPrompt | TextPair


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """A vector of each input."""

    request_id: str
    model: str
    inputs: Sequence[TextPrompt | TokensPrompt]
    """At least one, none of them empty."""
    dimensions: int | None = None
    """Of a vector; None: the model's own."""
    truncate_to: int | None = None
    """Tokens that a longer text is cut to, special ones included; None: what is too long is refused."""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """A score of each pair (firsts[i], seconds[i]): a cross-encoder's, or the cosine of two vectors."""

    request_id: str
    model: str
    firsts: Sequence[str]
    """As many as seconds, or one for all of them."""
    seconds: Sequence[str]
    param: tuple[str, str] = ("text_1", "text_2")
    """Names of the two in the caller's request."""
    truncate_to: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector of each input, little-endian float32, in the order of the inputs."""

    vectors: Sequence[bytes]
    token_counts: Sequence[int]
    """Of each input."""

    @property
    def num_tokens(self) -> int:
        """Of all inputs."""
        return sum(self.token_counts)


@dataclass(frozen=True, slots=True)
class Scored:
    """A score of each pair, in the order of the pairs."""

    scores: Sequence[float]
    num_tokens: int
    """That were computed: a text that is in several pairs of a bi-encoder counts once."""


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """LLM.embed's answer for one text."""

    embedding: list[float] = field(repr=False)
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    """LLM.score's answer for one pair."""

    score: float


def check_length(num_tokens: int, max_model_len: int, *, param: str = "input", what: str = "the text") -> None:
    """Raises ContextLengthExceeded with both numbers."""
    if num_tokens > max_model_len:
        raise ContextLengthExceeded(
            f"{what} has {num_tokens} tokens, special ones included, and this model takes {max_model_len}: shorten it, "
            "or send truncate_prompt_tokens",
            param=param,
        )
