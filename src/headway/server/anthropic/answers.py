"""Generations to Anthropic's whole answers; chunks.py streams them, with the same blocks."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headway.core.output import TextDelta, Usage
from headway.core.tools import ToolCall
from headway.server.anthropic.schema import (
    Block,
    MessageOut,
    OutputTokens,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    UsageOut,
)
from headway.server.generation import Choice, Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What of an answer the request decides."""

    id: str
    max_tokens: int
    shows_thinking: bool = True
    """False: blocks of thinking have a signature and no text."""
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Why an answer ended."""

    reason: str
    sequence: str | None = None
    """The stop string that was met."""


def stop_of(options: Options, end: Choice | TextDelta, usage: Usage, *, has_calls: bool) -> Stop:
    """Anthropic's stop_reason.

    1. A stop string ended it, whatever came before.
    2. It came to its end, with calls or without.
    3. The context was full before max_tokens; or max_tokens, or the server's own limits, ended it.
    """
    if end.finish_reason == "stop":
        if isinstance(end.stop_reason, str):
            return Stop("stop_sequence", end.stop_reason)  # 1.
        return Stop("tool_use" if has_calls else "end_turn")  # 2.
    is_full = end.finish_reason == "length" and usage.num_output_tokens < options.max_tokens
    return Stop("model_context_window_exceeded" if is_full else "max_tokens")  # 3.


def usage_out(usage: Usage) -> UsageOut:
    """Anthropic's usage: what was taken from the cache is no part of input_tokens."""
    return UsageOut(
        usage.num_prompt_tokens - usage.num_cached_tokens,
        usage.num_cached_tokens,
        usage.num_output_tokens,
        OutputTokens(usage.num_reasoning_tokens),
    )


class Signature:
    """Of a block of thinking: clients send no block back without one. A digest, which nobody checks."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, text: str) -> None:
        """A piece of the thinking."""
        self._digest.update(text.encode("utf-8", "surrogatepass"))

    def text(self) -> str:
        """Of all pieces."""
        return b64encode(self._digest.digest()).decode()


class MessageAnswers:
    """message, whole."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> MessageOut:
        """The answer of a request that is not streamed."""
        (choice,) = choices
        usage = generation.usage
        content = [*self._thinking(choice.reasoning), *_text_and_calls(choice)]
        stop = stop_of(
            self._options, choice, usage, has_calls=any(isinstance(block, ToolUseBlock) for block in content)
        )
        return MessageOut(self._options.id, generation.model, content, stop.reason, stop.sequence, usage_out(usage))

    def _thinking(self, text: str) -> list[Block]:
        if not text:
            return []
        signature = Signature()
        signature.add(text)
        return [ThinkingBlock(text if self._options.shows_thinking else "", signature.text())]


def _text_and_calls(choice: Choice) -> list[Block]:
    """In the order in which they came. A call that was cut short is left out: half of an object is none."""
    blocks: list[Block] = []
    start = 0
    for call, place in zip(choice.tool_calls, choice.call_places, strict=True):
        if place > start:
            blocks.append(TextBlock(choice.text[start:place]))
            start = place
        if _is_whole(call):
            blocks.append(ToolUseBlock(call.id, call.name, msgspec.Raw(call.arguments.encode())))
    if len(choice.text) > start:
        blocks.append(TextBlock(choice.text[start:]))
    return blocks


def _is_whole(call: ToolCall) -> bool:
    try:
        return isinstance(json.loads(call.arguments, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    """Python reads NaN and Infinity; JSON has none."""
    raise ValueError(constant)
