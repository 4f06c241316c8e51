"""What an OpenAI-compatible server streams, as TextDeltas: chat's and completions' chunks, and whole answers too.

Servers differ in what they leave out; what they must not get wrong (a choice that was not asked for, a call's piece
before its name) is an UpstreamFailed.
"""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import msgspec

from headway.core.output import FinishReason, Logprob, TextDelta, TokenLogprob, Usage
from headway.core.tools import ToolCallDelta
from headway.errors import UpstreamFailed
from headway.service.remote.refusal import stream_error

UNKNOWN_TOKEN = -1
"""The id of a token whose text alone is told."""
_REASONS: Mapping[str, FinishReason] = {"length": "length", "abort": "abort"}
"""Everything else is a stop: tool_calls, function_call, and content_filter with its name as the stop_reason."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class ChunkReader:
    """One request's chunks, in order.

    Args:
        server: its name in errors.
        joins_reasoning: reasoning is text.
    """

    def __init__(self, server: str, num_choices: int, *, joins_reasoning: bool = False) -> None:
        self.usage = Usage(0, 0)
        """As told; zeros where the server tells none."""
        self._server = server
        self._joins_reasoning = joins_reasoning
        self._calls: list[list[tuple[int | None, str | None]]] = [[] for _ in range(num_choices)]
        """Of each choice the index and the id that each call has at the server."""
        self._open = set(range(num_choices))

    @property
    def is_ended(self) -> bool:
        """Whether every choice has its finish_reason."""
        return not self._open

    def read(self, data: str | bytes) -> list[TextDelta]:
        """The deltas of one event. Raises UpstreamFailed, or what an error event tells."""
        try:
            chunk = _decoder.decode(data)
            if chunk.error:
                raise stream_error(self._server, chunk.error)
            if chunk.usage is not None:
                self.usage = _usage(chunk.usage)
            deltas = [self._read_choice(choice) for choice in chunk.choices or ()]
        except (ValueError, TypeError, AttributeError, OverflowError) as error:  # msgspec's are ValueErrors
            raise UpstreamFailed(f"{self._server} sent what is no chunk of an answer: {error}") from error
        return [delta for delta in deltas if delta is not None]

    def _read_choice(self, choice: _Choice) -> TextDelta | None:
        if not 0 <= choice.index < len(self._calls):
            raise UpstreamFailed(
                f"{self._server} answered choice {choice.index}, and {len(self._calls)} were asked for"
            )
        if choice.index not in self._open:
            return None  # some repeat the end
        message = choice.delta or choice.message or _Message(content=choice.text)
        reasoning = message.reasoning_content or message.reasoning or ""
        text = message.content or message.refusal or ""
        if self._joins_reasoning:
            text, reasoning = reasoning + text, ""
        calls = self._read_calls(choice.index, message.tool_calls or ())
        reason = self._finish(choice)
        if not (text or reasoning or calls or reason or choice.logprobs):
            return None  # the role alone
        return TextDelta(
            choice.index,
            text,
            logprobs=_logprobs(choice.logprobs),
            finish_reason=reason,
            stop_reason=_stop_reason(choice),
            reasoning=reasoning,
            tool_calls=calls,
        )

    def _finish(self, choice: _Choice) -> FinishReason | None:
        if choice.finish_reason is None:
            return None
        if choice.finish_reason == "error":
            raise UpstreamFailed(f"{self._server} ended choice {choice.index} with an error and no words")
        self._open.discard(choice.index)
        return _REASONS.get(choice.finish_reason, "stop")

    def _read_calls(self, choice: int, calls: Sequence[_Call]) -> tuple[ToolCallDelta, ...]:
        return tuple(self._read_call(self._calls[choice], call) for call in calls)

    def _read_call(self, known: list[tuple[int | None, str | None]], call: _Call) -> ToolCallDelta:
        """1. A known index, and no other id than it had: a piece of that call. 2. No index and no new id: of the last
        one. 3. A name: a new call."""
        function = call.function or _Function()
        place = _place(known, call)
        if place is not None:
            return ToolCallDelta(place, arguments=function.arguments or "")
        if not function.name:
            raise UpstreamFailed(f"{self._server} sent a piece of a tool call before the call's name")
        known.append((call.index, call.id))
        place = len(known) - 1
        return ToolCallDelta(place, call.id or f"call_{place}", function.name, function.arguments or "")


def _place(known: Sequence[tuple[int | None, str | None]], call: _Call) -> int | None:
    for place, (index, call_id) in reversed(list(enumerate(known))):
        if index == call.index:
            return place if not call.id or call.id == call_id else None
    return None


def _stop_reason(choice: _Choice) -> int | str | None:
    return "content_filter" if choice.finish_reason == "content_filter" else choice.stop_reason


def _usage(told: _Usage) -> Usage:
    cached = told.prompt_tokens_details.cached_tokens if told.prompt_tokens_details else None
    reasoning = told.completion_tokens_details.reasoning_tokens if told.completion_tokens_details else None
    return Usage(told.prompt_tokens, told.completion_tokens, cached or 0, reasoning or 0)


def _logprobs(told: Mapping[str, Any] | None) -> tuple[TokenLogprob, ...]:
    """Chat's {"content": [...]} or completions' parallel lists; what is neither is left out."""
    if not told:
        return ()
    if isinstance(told.get("content"), list):
        return tuple(_entry(entry) for entry in told["content"] if isinstance(entry, dict))
    tokens, values, tops = (told.get(name) or [] for name in ("tokens", "token_logprobs", "top_logprobs"))
    entries = []
    for place, (token, value) in enumerate(zip(tokens, values, strict=False)):
        top = tops[place] if place < len(tops) and tops[place] else {}
        entries.append(TokenLogprob(_one(token, value), tuple(_one(name, number) for name, number in top.items())))
    return tuple(entries)


def _entry(entry: Mapping[str, Any]) -> TokenLogprob:
    top = tuple(_candidate(other) for other in entry.get("top_logprobs") or () if isinstance(other, dict))
    return TokenLogprob(_candidate(entry), top)


def _candidate(entry: Mapping[str, Any]) -> Logprob:
    raw = entry.get("bytes")
    return _one(str(entry.get("token", "")), entry.get("logprob"), bytes(raw) if isinstance(raw, list) else None)


def _one(token: str, value: object, raw: bytes | None = None) -> Logprob:
    logprob = float(value) if isinstance(value, int | float) else nan
    return Logprob(UNKNOWN_TOKEN, token, token.encode() if raw is None else raw, logprob)
