"""Generations to the plain routes' answers."""

from collections.abc import Sequence

from headway.core.output import TextDelta
from headway.server.basic.schema import GeneratedText, GeneratedTexts, TokenEventOut
from headway.server.events import DONE, EventTemplate, event, failed
from headway.server.generation import Choice, Generation


class PlainAnswers:
    """Texts, whole or as they come."""

    def __init__(self, prompts: Sequence[str], *, return_full_text: bool) -> None:
        self._prompts = prompts
        self._return_full_text = return_full_text

    def one(self, generation: Generation, choices: Sequence[Choice]) -> GeneratedText | GeneratedTexts:
        """/basic_generate: the text; with n over 1, the texts."""
        whole = self.many(generation, choices)
        return GeneratedText(whole.generated_texts[0]) if len(choices) == 1 else whole

    def many(self, generation: Generation, choices: Sequence[Choice]) -> GeneratedTexts:
        """/generate: the texts in the order of the prompts."""
        n = generation.num_choices // len(self._prompts)
        return GeneratedTexts([self._prefix(i // n) + choice.text for i, choice in enumerate(choices)])

    def events(self, generation: Generation) -> "PlainChunks":
        """/generate_stream: what each choice's text gains; its prompt first, if it was asked for."""
        indexes = range(generation.num_choices if self._return_full_text else 0)
        return PlainChunks(b"".join(event(TokenEventOut(self._prompts[0], i)) for i in indexes))

    def _prefix(self, prompt: int) -> str:
        return self._prompts[prompt] if self._return_full_text else ""


class PlainChunks:
    """The events of /generate_stream (server/events.Chunks)."""

    def __init__(self, first: bytes) -> None:
        self._first = first
        self._templates: dict[int, EventTemplate] = {}

    def begin(self) -> bytes:
        """The prompts, where they were asked for."""
        return self._first

    def chunk(self, index: int, delta: TextDelta) -> bytes:
        """What the text gained."""
        template = self._templates.get(index)
        if template is None:
            template = self._templates[index] = EventTemplate(lambda text: event(TokenEventOut(text, index)))
        return template.fill(delta.text) if delta.text else b""

    def template(self, index: int) -> EventTemplate | None:
        """From its first chunk on."""
        return self._templates.get(index)

    def end(self) -> bytes:
        """[DONE]."""
        return DONE

    def fail(self, error: Exception) -> bytes:
        """The error, and [DONE]."""
        return failed(error)
