"""Generations to OpenAI's whole answers, for chat and for completions; chunks.py streams them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headway.core.output import TextDelta, Usage
from headway.server.generation import Choice, Generation
from headway.server.openai.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from headway.server.openai.schema import (
    Answer,
    CachedTokens,
    ChatChoice,
    ChatChunkChoice,
    CompletionChoice,
    FunctionOut,
    MessageOut,
    OutputTokens,
    PromptLogprobsOut,
    ToolCallOut,
    UsageOut,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What of an answer the request decides."""

    id: str
    has_logprobs: bool
    num_top_logprobs: int = 0
    """Of completions: alternatives a token."""
    num_prompt_logprobs: int | None = None
    """None: the prompt's are not told."""
    has_echo: bool = False
    """Of completions: the text begins with the prompt."""
    continued: str = ""
    """Of chat: what the message begins with."""
    has_reasoning: bool = True
    """Of chat: reasoning is told."""
    is_named: bool = False
    """Of chat: tool_choice names a function, so that its call is no reason to finish (answers.finish_reason)."""
    include_usage: bool = False
    """Of a stream; a whole answer always has it."""
    return_token_ids: bool = False
    created: int = field(default_factory=lambda: int(time.time()))


def usage_out(usage: Usage) -> UsageOut:
    """OpenAI's usage."""
    prompt, output = usage.num_prompt_tokens, usage.num_output_tokens
    details = OutputTokens(usage.num_reasoning_tokens, usage.num_forced_tokens)
    return UsageOut(prompt, output, prompt + output, CachedTokens(usage.num_cached_tokens), details)


def finish_reason(
    options: Options, reason: str | None, stop_reason: int | str | None, *, has_calls: bool
) -> str | None:
    """OpenAI's: tool_calls where the model chose to call and came to its end, stop where it had to call a function by
    name (as OpenAI and vLLM answer, whole and streamed), and where a stop string ended it."""
    is_call = has_calls and not options.is_named and not isinstance(stop_reason, str)
    return "tool_calls" if reason == "stop" and is_call else reason


class ChatAnswers:
    """chat.completion."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> Answer:
        """The answer of a request that is not streamed."""
        return make_answer(
            self._options,
            "chat.completion",
            generation,
            [self._choice(index, choice) for index, choice in enumerate(choices)],
            usage=usage_out(generation.usage),
            has_prompt=True,
            prompt_logprobs=told_prompt_logprobs(self._options, generation, 0),
        )

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        options = self._options
        return ChatChoice(
            index,
            self._message(choice),
            chat_logprobs(choice.logprobs) if options.has_logprobs else None,
            finish_reason(options, choice.finish_reason, choice.stop_reason, has_calls=bool(choice.tool_calls)),
            choice.stop_reason,
            told_token_ids(options, choice.token_ids),
        )

    def _message(self, choice: Choice) -> MessageOut:
        text = self._options.continued + choice.text
        calls = [ToolCallOut(FunctionOut(c.arguments, c.name), id=c.id, type="function") for c in choice.tool_calls]
        return MessageOut(
            None if not text and (calls or choice.reasoning) else text,
            reasoning_content=choice.reasoning if choice.reasoning and self._options.has_reasoning else UNSET,
            tool_calls=calls or UNSET,
        )


class CompletionAnswers:
    """text_completion, whole."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> Answer:
        """The answer of a request that is not streamed; choices are sorted by index."""
        parts = [self._choice(generation, index, choice) for index, choice in enumerate(choices)]
        return make_answer(
            self._options, "text_completion", generation, parts, usage=usage_out(generation.usage), has_prompt=True
        )

    def _choice(self, generation: Generation, index: int, choice: Choice) -> CompletionChoice:
        text, logprobs = choice.text, tuple(choice.logprobs)
        if self._options.has_echo:
            prompt = generation.prompt(index)
            text, logprobs = prompt.text + text, (*(prompt.logprobs or ()), *logprobs)
        delta = TextDelta(index, text, tuple(choice.token_ids), logprobs)
        part, _ = completion_part(self._options, index, delta, choice)
        return msgspec.structs.replace(part, prompt_logprobs=told_prompt_logprobs(self._options, generation, index))


def completion_part(
    options: Options, index: int, delta: TextDelta, end: Choice | None, num_characters: int = 0
) -> tuple[CompletionChoice, int]:
    """One choice, and the characters of its text up to the end of this part."""
    logprobs = None
    if options.has_logprobs:
        logprobs, num_characters = completion_logprobs(delta.logprobs, num_characters, num_top=options.num_top_logprobs)
    part = CompletionChoice(
        index,
        delta.text,
        logprobs,
        None if end is None else end.finish_reason,
        UNSET if end is None else end.stop_reason,
        told_token_ids(options, delta.token_ids),
    )
    return part, num_characters


ObjectName = Literal["chat.completion", "chat.completion.chunk", "text_completion"]


def make_answer(
    options: Options,
    object_name: ObjectName,
    generation: Generation,
    choices: list[ChatChoice] | list[ChatChunkChoice] | list[CompletionChoice],
    *,
    usage: UsageOut | UnsetType | None,
    has_prompt: bool,
    prompt_logprobs: PromptLogprobsOut | UnsetType = UNSET,
) -> Answer:
    """One answer or chunk. The prompt's ids are told once, of a request with one prompt that asked for ids."""
    prompt_ids: list[int] | UnsetType = UNSET
    if has_prompt and options.return_token_ids:
        all_prompts = generation.prompt_token_ids
        prompt_ids = all_prompts[0] if len(all_prompts) == 1 else UNSET
    return Answer(
        options.id, object_name, options.created, generation.model, choices, usage, prompt_ids, prompt_logprobs
    )


def told_prompt_logprobs(options: Options, generation: Generation, index: int) -> PromptLogprobsOut | UnsetType:
    """Of the prompt of one choice, where they were asked for."""
    logprobs = generation.prompt(index).logprobs if options.num_prompt_logprobs is not None else None
    if logprobs is None or options.num_prompt_logprobs is None:
        return UNSET
    return prompt_logprobs(logprobs, options.num_prompt_logprobs)


def told_token_ids(options: Options, token_ids: Sequence[int]) -> list[int] | UnsetType:
    return list(token_ids) if options.return_token_ids else UNSET
