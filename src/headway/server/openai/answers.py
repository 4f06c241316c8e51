"""Generations to OpenAI's answers, whole and as chunks, for chat and for completions.

A stream of one choice: a chunk with the role, chunks with content (finish_reason null), one chunk with an empty
delta and the finish_reason; then, if asked for, one with choices [] and the usage. id, created and model are the same
in all chunks.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, UnsetType

from headway.core.output import TextDelta, Usage
from headway.server.events import event
from headway.server.generation import Choice, Generation
from headway.server.openai.logprobs import chat_logprobs, completion_logprobs
from headway.server.openai.schema import (
    Answer,
    CachedTokens,
    ChatChoice,
    ChatChunkChoice,
    CompletionChoice,
    Delta,
    MessageOut,
    UsageOut,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What of an answer the request decides."""

    id: str
    has_logprobs: bool
    has_top_logprobs: bool = True
    include_usage: bool = False
    """Of a stream; a whole answer always has it."""
    return_token_ids: bool = False
    created: int = field(default_factory=lambda: int(time.time()))


def usage_out(usage: Usage) -> UsageOut:
    """OpenAI's usage."""
    prompt, output = usage.num_prompt_tokens, usage.num_output_tokens
    return UsageOut(prompt, output, prompt + output, CachedTokens(usage.num_cached_tokens))


class ChatAnswers:
    """chat.completion and chat.completion.chunk."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> Answer:
        """The answer of a request that is not streamed."""
        return _answer(
            self._options,
            "chat.completion",
            generation,
            [self._choice(index, choice) for index, choice in enumerate(choices)],
            usage=usage_out(generation.usage),
            has_prompt=True,
        )

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed answer."""
        started: set[int] = set()
        async for index, delta in generation:
            parts = [] if index in started else [ChatChunkChoice(index, Delta("assistant", ""))]
            is_first = not started
            started.add(index)
            parts += self._parts(index, delta)
            yield b"".join(
                self._chunk(generation, [part], has_prompt=is_first and place == 0) for place, part in enumerate(parts)
            )
        if self._options.include_usage:
            yield self._chunk(generation, [], usage=usage_out(generation.usage))

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        return ChatChoice(
            index,
            MessageOut(choice.text),
            chat_logprobs(choice.logprobs) if self._options.has_logprobs else None,
            choice.finish_reason,
            choice.stop_reason,
            _token_ids(self._options, choice.token_ids),
        )

    def _parts(self, index: int, delta: TextDelta) -> list[ChatChunkChoice]:
        """The content, if there is any or tokens to tell of, and the end."""
        parts = []
        options = self._options
        if delta.text or (delta.logprobs and options.has_logprobs) or (delta.token_ids and options.return_token_ids):
            logprobs = chat_logprobs(delta.logprobs) if options.has_logprobs and delta.logprobs else None
            ids = _token_ids(options, delta.token_ids)
            parts.append(ChatChunkChoice(index, Delta(content=delta.text), logprobs, token_ids=ids))
        if delta.finish_reason is not None:
            parts.append(
                ChatChunkChoice(index, Delta(), finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)
            )
        return parts

    def _chunk(
        self,
        generation: Generation,
        choices: list[ChatChunkChoice],
        *,
        usage: UsageOut | None = None,
        has_prompt: bool = False,
    ) -> bytes:
        usage_field = usage if self._options.include_usage else UNSET
        return event(
            _answer(
                self._options,
                "chat.completion.chunk",
                generation,
                choices,
                usage=usage_field,
                has_prompt=has_prompt,
            )
        )


class CompletionAnswers:
    """text_completion, whole and as chunks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._num_characters: dict[int, int] = {}

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> Answer:
        """The answer of a request that is not streamed; choices are sorted by index."""
        parts = [
            self._part(index, TextDelta(index, c.text, tuple(c.token_ids), tuple(c.logprobs)), c)
            for index, c in enumerate(choices)
        ]
        return _answer(
            self._options, "text_completion", generation, parts, usage=usage_out(generation.usage), has_prompt=True
        )

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed answer: text chunks, then an empty one with the finish_reason, for each choice."""
        is_first = True
        options = self._options
        async for index, delta in generation:
            parts = []
            if (
                delta.text
                or (delta.logprobs and options.has_logprobs)
                or (delta.token_ids and options.return_token_ids)
            ):
                parts.append(self._part(index, delta, None))
            if delta.finish_reason is not None:
                end = CompletionChoice(index, "", finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)
                parts.append(end)
            if parts:
                yield b"".join(
                    self._chunk(generation, [part], has_prompt=is_first and place == 0)
                    for place, part in enumerate(parts)
                )
                is_first = False
        if options.include_usage:
            yield self._chunk(generation, [], usage=usage_out(generation.usage))

    def _part(self, index: int, delta: TextDelta, end: Choice | None) -> CompletionChoice:
        logprobs = None
        if self._options.has_logprobs:
            logprobs, self._num_characters[index] = completion_logprobs(
                delta.logprobs, self._num_characters.get(index, 0), with_top=self._options.has_top_logprobs
            )
        return CompletionChoice(
            index,
            delta.text,
            logprobs,
            None if end is None else end.finish_reason,
            UNSET if end is None else end.stop_reason,
            _token_ids(self._options, delta.token_ids),
        )

    def _chunk(
        self,
        generation: Generation,
        choices: list[CompletionChoice],
        *,
        usage: UsageOut | None = None,
        has_prompt: bool = False,
    ) -> bytes:
        usage_field = usage if self._options.include_usage else UNSET
        return event(
            _answer(self._options, "text_completion", generation, choices, usage=usage_field, has_prompt=has_prompt)
        )


ObjectName = Literal["chat.completion", "chat.completion.chunk", "text_completion"]


def _answer(
    options: Options,
    object_name: ObjectName,
    generation: Generation,
    choices: list[ChatChoice] | list[ChatChunkChoice] | list[CompletionChoice],
    *,
    usage: UsageOut | UnsetType | None,
    has_prompt: bool,
) -> Answer:
    """One answer or chunk. The prompt's ids are told once, of a request with one prompt that asked for ids."""
    prompt_ids: list[int] | UnsetType = UNSET
    if has_prompt and options.return_token_ids:
        all_prompts = generation.prompt_token_ids
        prompt_ids = all_prompts[0] if len(all_prompts) == 1 else UNSET
    return Answer(options.id, object_name, options.created, generation.model, choices, usage, prompt_ids)


def _token_ids(options: Options, token_ids: Sequence[int]) -> list[int] | UnsetType:
    return list(token_ids) if options.return_token_ids else UNSET
