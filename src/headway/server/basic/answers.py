"""Generations to the plain routes' answers."""

from collections.abc import AsyncGenerator, Sequence

from headway.server.basic.schema import GeneratedText, GeneratedTexts, TokenEventOut
from headway.server.events import event
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

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """/generate_stream: what each choice's text gains; its prompt first, if it was asked for."""
        if self._return_full_text:
            yield b"".join(event(TokenEventOut(self._prompts[0], i)) for i in range(generation.num_choices))
        async for index, delta in generation:
            if delta.text:
                yield event(TokenEventOut(delta.text, index))

    def _prefix(self, prompt: int) -> str:
        return self._prompts[prompt] if self._return_full_text else ""
