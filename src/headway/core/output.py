"""What comes back: pieces of text as they are made, and the whole at the end. Names are vLLM's where it has one.

What is made for each token is a msgspec Struct: frozen as a dataclass is, and a fifth of its cost.
"""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from headway.core.tools import ToolCall, ToolCallDelta

FinishReason = Literal["stop", "length", "abort", "error"]


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """One candidate token at one position."""

    token_id: int
    token: str
    """The token decoded on its own: U+FFFD stands for what is no whole character."""
    bytes: bytes
    """Its raw bytes; empty for a special token that the text leaves out, so that the bytes of all join to the text."""
    logprob: float
    """NaN for a prompt's first token: nothing is before it."""


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """The token that was chosen at one position, and the likeliest ones there."""

    chosen: Logprob
    top: tuple[Logprob, ...] = ()


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """What one choice gained: text and the tokens behind it, and its end in the last one."""

    choice: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token's id, the stop string, or why it was aborted."""
    reasoning: str = ""
    """Text of its reasoning, which is before all of `text`."""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptOutput:
    """What can be told of a prompt."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One a token, where they were asked for; complete once the first choice has its first token."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request: the prompt once, the outputs of all choices up to the token that completed their end."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0
    """Of the outputs: up to the end of their reasoning."""
    num_forced_tokens: int = 0
    """Of the outputs: those that a constraint left no choice about."""


@dataclass(slots=True)
class CompletionOutput:
    """One choice, as far as it is."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(slots=True)
class RequestOutput:
    """A request's answer, as far as it is; vLLM's RequestOutput by name and field."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """One a token, where they were asked for; None for the first."""
    finished: bool = False
    num_cached_tokens: int = 0
