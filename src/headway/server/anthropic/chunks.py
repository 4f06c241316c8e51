"""Generations to Anthropic's streamed answers (server/events.Chunks).

message_start with the first delta, when it is known what the cache had; ping; of each block content_block_start, deltas
of its kind, content_block_stop, one block after the other: thinking (its signature last), text, one a call; then
message_delta with the stop_reason and the usage, and message_stop. A stream that fails ends with one event error.
"""

from typing import Any

import msgspec

from headway.core.output import TextDelta
from headway.core.tools import ToolCallDelta
from headway.server.anthropic.answers import Options, Signature, stop_of, usage_out
from headway.server.anthropic.errors import told_body
from headway.server.anthropic.schema import Block, MessageOut, TextBlock, ThinkingBlock, ToolUseBlock
from headway.server.errors import problem_of
from headway.server.events import EventTemplate, named_event
from headway.server.generation import Generation

PING = named_event("ping", {"type": "ping"})


class MessageChunks:
    """One message's events."""

    __slots__ = (
        "_block",
        "_end",
        "_generation",
        "_has_calls",
        "_is_begun",
        "_num_blocks",
        "_options",
        "_signature",
        "_text",
    )

    def __init__(self, options: Options, generation: Generation) -> None:
        self._options = options
        self._generation = generation
        self._is_begun = False
        self._num_blocks = 0
        self._block: type[Block] | None = None
        """Of what kind the open block is."""
        self._signature = Signature()
        self._text: EventTemplate | None = None
        """Of deltas of the open block of text."""
        self._has_calls = False
        self._end: TextDelta | None = None

    def begin(self) -> bytes:
        """Nothing: the first event comes with the first delta."""
        return b""

    def chunk(self, index: int, delta: TextDelta) -> bytes:
        """Its reasoning, text and calls, in this order."""
        if self._text is not None and not (delta.reasoning or delta.tool_calls or delta.finish_reason):
            return self._text.fill(delta.text) if delta.text else b""
        events = [] if self._is_begun else self._begin()
        if delta.reasoning:
            events += self._think(delta.reasoning)
        if delta.text:
            events += self._say(delta.text)
        for call in delta.tool_calls:
            events += self._call(call)
        if delta.finish_reason is not None:
            events += self._close()
            self._end = delta
        return b"".join(events)

    def template(self, index: int) -> EventTemplate | None:
        """Of the open block of text."""
        return self._text

    def end(self) -> bytes:
        """Why it ended, and what it took."""
        events = [] if self._is_begun else self._begin()
        usage = self._generation.usage
        if self._end is not None:
            stop = stop_of(self._options, self._end, usage, has_calls=self._has_calls)
            told = {"stop_reason": stop.reason, "stop_sequence": stop.sequence}
            events.append(_event("message_delta", delta=told, usage=usage_out(usage)))
        return b"".join([*events, _event("message_stop")])

    def fail(self, error: Exception) -> bytes:
        """The error."""
        return named_event("error", told_body(problem_of(error), self._options.request_id))

    def _begin(self) -> list[bytes]:
        self._is_begun = True
        usage = msgspec.structs.replace(usage_out(self._generation.usage), output_tokens=0)
        message = MessageOut(self._options.id, self._generation.model, [], None, None, usage)
        return [_event("message_start", message=message), PING]

    def _think(self, text: str) -> list[bytes]:
        events = []
        if self._block is not ThinkingBlock:
            events = self._open(ThinkingBlock("", ""))
            self._signature = Signature()
        self._signature.add(text)
        if self._options.shows_thinking:
            events.append(self._delta("thinking_delta", thinking=text))
        return events

    def _say(self, text: str) -> list[bytes]:
        events = []
        if self._block is not TextBlock:
            events = self._open(TextBlock(""))
            self._text = EventTemplate(lambda text: self._delta("text_delta", text=text))
        return [*events, self._delta("text_delta", text=text)]

    def _call(self, call: ToolCallDelta) -> list[bytes]:
        events = []
        if call.name is not None:
            self._has_calls = True
            events = self._open(ToolUseBlock(call.id or "", call.name, {}))
        if call.arguments:
            events.append(self._delta("input_json_delta", partial_json=call.arguments))
        return events

    def _open(self, block: Block) -> list[bytes]:
        """Begins a block, which ends the one before."""
        events = self._close()
        self._block = type(block)
        return [*events, _event("content_block_start", index=self._num_blocks, content_block=block)]

    def _close(self) -> list[bytes]:
        if self._block is None:
            return []
        is_thinking = self._block is ThinkingBlock
        signed = [self._delta("signature_delta", signature=self._signature.text())] if is_thinking else []
        stop = _event("content_block_stop", index=self._num_blocks)
        self._block = self._text = None
        self._num_blocks += 1
        return [*signed, stop]

    def _delta(self, kind: str, **told: str) -> bytes:
        return _event("content_block_delta", index=self._num_blocks, delta={"type": kind, **told})


def _event(kind: str, **told: Any) -> bytes:
    return named_event(kind, {"type": kind, **told})
