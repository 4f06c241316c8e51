"""What callers of the offline door give as prompts: texts, ids, mappings and conversations, one object each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokensPrompt
from headway.core.sampling import SamplingParams
from headway.core.tools import ToolUse
from headway.errors import InvalidRequest

Message = Mapping[str, Any]
PromptLike = str | Mapping[str, Any] | Sequence[int]
"""Text, {"prompt": text}, {"prompt_token_ids": [...]}, or token ids. The mappings may have a cache_salt: prefixes are
shared only with prompts of the same."""


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How conversations become prompts."""

    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs: Mapping[str, Any]
    tool_use: ToolUse = field(default_factory=ToolUse)

    def make_asked(self, messages: Sequence[Message], priority: int = 0) -> "Asked":
        """Raises InvalidRequest."""
        return Asked(self.make_prompt(messages), priority=priority, tool_use=self.tool_use)

    def make_prompt(self, messages: Sequence[Message]) -> ChatPrompt:
        """Raises InvalidRequest."""
        if self.add_generation_prompt and self.continue_final_message:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other: set one of them",
                param="continue_final_message",
            )
        return ChatPrompt(
            messages, self.tools, self.add_generation_prompt, self.template_kwargs, self.continue_final_message
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt and what belongs to it alone."""

    prompt: Prompt
    cache_salt: str = ""
    priority: int = 0
    tool_use: ToolUse = field(default_factory=ToolUse)

    def make_request(self, request_id: str, model: str, sampling: SamplingParams) -> GenerateRequest:
        """The request of it."""
        return GenerateRequest(
            request_id,
            model,
            self.prompt,
            sampling,
            priority=self.priority,
            cache_salt=self.cache_salt,
            tool_use=self.tool_use,
        )


def as_prompts(prompts: PromptLike | Sequence[PromptLike]) -> Sequence[PromptLike]:
    """One prompt as a list of one; a list of ids is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise _no_prompt(prompts)
    if prompts and all(isinstance(item, int) for item in prompts):
        return [cast(PromptLike, prompts)]
    return cast(Sequence[PromptLike], prompts)


def as_asked(prompts: Sequence[PromptLike], priorities: Sequence[int] | None) -> list[Asked]:
    """With what belongs to each prompt alone. Raises InvalidRequest."""
    if priorities is not None and len(priorities) != len(prompts):
        raise InvalidRequest(
            f"there are {len(prompts)} prompts and {len(priorities)} priorities: give one each", param="priority"
        )
    return [
        Asked(as_prompt(prompt), _cache_salt(prompt), 0 if priorities is None else priorities[place])
        for place, prompt in enumerate(prompts)
    ]


def _cache_salt(prompt: PromptLike) -> str:
    salt = prompt.get("cache_salt", "") if isinstance(prompt, Mapping) else ""
    if not isinstance(salt, str):
        raise InvalidRequest(f"cache_salt is {str(salt)[:100]}; it must be a text", param="cache_salt")
    return salt


def as_prompt(prompt: PromptLike) -> TextPrompt | TokensPrompt:
    """Raises InvalidRequest."""
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if isinstance(prompt, Mapping) and isinstance(prompt.get("prompt"), str):
        return TextPrompt(prompt["prompt"])
    token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else prompt
    if not isinstance(token_ids, Sequence) or not all(isinstance(each, int) for each in token_ids):
        raise _no_prompt(prompt)
    return TokensPrompt(list(token_ids))


def _no_prompt(prompt: object) -> InvalidRequest:
    found = f"has {sorted(map(str, prompt))}" if isinstance(prompt, Mapping) else f"is {str(prompt)[:100]}"
    return InvalidRequest(
        f'a prompt is text, token ids, {{"prompt": text}} or {{"prompt_token_ids": [...]}}; this {found}',
        param="prompts",
    )


def as_texts(texts: str | Sequence[str]) -> list[str]:
    """One text as a list of one."""
    return [texts] if isinstance(texts, str) else list(texts)


def as_chats(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation as a list of one."""
    if messages and isinstance(messages[0], Mapping):
        return [cast(Sequence[Message], messages)]
    return list(cast(Sequence[Sequence[Message]], messages))


def one_each(
    given: SamplingParams | Sequence[SamplingParams] | None, default: SamplingParams, num: int
) -> Sequence[SamplingParams]:
    """Sampling for each of `num` prompts: what is given once counts for all. Raises InvalidRequest."""
    if given is None:
        return [default] * num
    if isinstance(given, SamplingParams):
        return [given] * num
    if len(given) != num:
        raise InvalidRequest(
            f"there are {num} prompts and {len(given)} sampling_params: give one for all, or one each",
            param="sampling_params",
        )
    return given
