"""Where chat and generate get their text: an engine of their own, or a running server. Both stream pieces of text."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: messages for the chat template, or a prompt to be continued as it is."""

    messages: Sequence[Message] = ()
    prompt: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """What was said about sampling: max_tokens, temperature, top_p, top_k, min_p, stop, seed. Names as OpenAI's."""


class Piece(NamedTuple):
    """Text, as it is made."""

    text: str
    is_reasoning: bool = False
    """It comes before the answer, and is no part of it."""


class Answerer(Protocol):
    """Gives answers, one after the other."""

    @property
    def title(self) -> str:
        """The model's name, and where it runs, for the greeting."""
        ...

    def answer(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """The text as it is made, in pieces that are not empty. Closing it (aclose) ends the answer at once. Raises
        HeadwayError."""
        ...

    async def aclose(self) -> None:
        """Frees what it holds."""
        ...
