"""A chat as one text, with the places where what looks like a control token is a caller's text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What a chat template made; Tokenizer.encode_rendered turns it into ids."""

    text: str
    protected: tuple[tuple[int, int], ...] = ()
    """Spans (start, end) of `text`, in order and apart: no control token is read from, or across the edge of, any."""
