"""Generations to OpenAI's streamed answers, for chat and for completions (server/events.Chunks).

A stream of one choice: a chunk with the role (chat only), one with what it goes on from if that was asked for, chunks
with reasoning_content, content or a part of one tool call (finish_reason null; never two of these in one, since clients
look for one), one chunk with an empty delta and the finish_reason; then, if asked for, one with choices [] and the
usage. A call's first part has its index, id, type and name, and the arguments "". id, created and model are the same in
all chunks, so most are written by putting a string into a template.
"""

from functools import partial

from msgspec import UNSET

from headway.core.output import TextDelta
from headway.core.tools import ToolCallDelta
from headway.server.events import DONE, EventTemplate, event, failed
from headway.server.generation import Generation
from headway.server.openai.answers import (
    ObjectName,
    Options,
    completion_part,
    finish_reason,
    make_answer,
    told_token_ids,
    usage_out,
)
from headway.server.openai.logprobs import chat_logprobs
from headway.server.openai.schema import (
    ChatChunkChoice,
    CompletionChoice,
    Delta,
    FunctionOut,
    ToolCallOut,
    UsageOut,
)


class ChatChunks:
    """chat.completion.chunk (server/events.Chunks)."""

    __slots__ = (
        "_callers",
        "_generation",
        "_options",
        "_started",
        "_templates",
    )

    def __init__(self, options: Options, generation: Generation) -> None:
        self._options = options
        self._generation = generation
        self._started: set[int] = set()
        self._callers: set[int] = set()
        """Choices with tool calls."""
        self._templates: dict[int, EventTemplate] = {}

    def begin(self) -> bytes:
        """Nothing: the first chunk comes with the first delta."""
        return b""

    def chunk(self, index: int, delta: TextDelta) -> bytes:
        """The role, if it is the choice's first; what it gained, if there is any or tokens to tell of; the end."""
        template = self._templates.get(index)
        if template is not None and delta.finish_reason is None and not (delta.reasoning or delta.tool_calls):
            return template.fill(delta.text) if delta.text else b""
        parts = [] if index in self._started else self._begin(index)
        is_first = not self._started
        self._started.add(index)
        if not (self._options.has_logprobs or self._options.return_token_ids):
            self._templates[index] = EventTemplate(partial(self._content, index))
        parts += self._parts(index, delta)
        return b"".join([self._encode([part], has_prompt=is_first and not place) for place, part in enumerate(parts)])

    def template(self, index: int) -> EventTemplate | None:
        """From its first chunk on, unless more is told of each token than its text."""
        return self._templates.get(index)

    def end(self) -> bytes:
        """The usage, if it was asked for, and [DONE]."""
        has_usage = self._options.include_usage
        return (self._encode([], usage=usage_out(self._generation.usage)) if has_usage else b"") + DONE

    def fail(self, error: Exception) -> bytes:
        """The error, and [DONE]."""
        return failed(error)

    def _begin(self, index: int) -> list[ChatChunkChoice]:
        continued = self._options.continued
        first = ChatChunkChoice(index, Delta("assistant", ""))
        return [first, ChatChunkChoice(index, Delta(content=continued))] if continued else [first]

    def _content(self, index: int, text: str) -> bytes:
        return self._encode([ChatChunkChoice(index, Delta(content=text))])

    def _parts(self, index: int, delta: TextDelta) -> list[ChatChunkChoice]:
        options = self._options
        gained = self._gained(delta)
        if not gained and _has_content(options, delta):
            gained = [Delta(content="")]
        parts = [ChatChunkChoice(index, part) for part in gained]
        if parts:
            logprobs = chat_logprobs(delta.logprobs) if options.has_logprobs and delta.logprobs else None
            ids = told_token_ids(options, delta.token_ids)
            parts[0] = ChatChunkChoice(index, gained[0], logprobs, token_ids=ids)
        if delta.tool_calls:
            self._callers.add(index)
        if delta.finish_reason is not None:
            has_calls = index in self._callers
            reason = finish_reason(options, delta.finish_reason, delta.stop_reason, has_calls=has_calls)
            parts.append(ChatChunkChoice(index, Delta(), finish_reason=reason, stop_reason=delta.stop_reason))
        return parts

    def _gained(self, delta: TextDelta) -> list[Delta]:
        """In the order that a reader expects: reasoning, text, calls."""
        gained = []
        if delta.reasoning and self._options.has_reasoning:
            gained.append(Delta(reasoning_content=delta.reasoning))
        if delta.text:
            gained.append(Delta(content=delta.text))
        return [*gained, *(Delta(tool_calls=[part]) for call in delta.tool_calls for part in _call_parts(call))]

    def _encode(
        self, choices: list[ChatChunkChoice], *, usage: UsageOut | None = None, has_prompt: bool = False
    ) -> bytes:
        name: ObjectName = "chat.completion.chunk"
        return _chunk(self._options, name, self._generation, choices, usage=usage, has_prompt=has_prompt)


class CompletionChunks:
    """text_completion in pieces (server/events.Chunks): text, then an empty one with the finish_reason, a choice."""

    __slots__ = (
        "_generation",
        "_is_first",
        "_num_characters",
        "_options",
        "_templates",
    )

    def __init__(self, options: Options, generation: Generation) -> None:
        self._options = options
        self._generation = generation
        self._num_characters: dict[int, int] = {}
        self._is_first = True
        self._templates: dict[int, EventTemplate] = {}

    def begin(self) -> bytes:
        """Nothing: completions have no role to tell."""
        return b""

    def chunk(self, index: int, delta: TextDelta) -> bytes:
        """The text, if there is any or tokens to tell of, and the end."""
        template = self._templates.get(index)
        if template is not None and delta.finish_reason is None:
            return template.fill(delta.text) if delta.text else b""
        options = self._options
        if not (options.has_logprobs or options.return_token_ids):
            self._templates[index] = EventTemplate(partial(self._text, index))
        parts = []
        if options.has_echo and index not in self._num_characters:
            parts.append(self._echo(index))
        if _has_content(options, delta):
            part, num_characters = completion_part(options, index, delta, None, self._num_characters.get(index, 0))
            self._num_characters[index] = num_characters
            parts.append(part)
        if delta.finish_reason is not None:
            end = CompletionChoice(index, "", finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)
            parts.append(end)
        is_first, self._is_first = self._is_first, self._is_first and not parts
        return b"".join([self._encode([part], has_prompt=is_first and not place) for place, part in enumerate(parts)])

    def template(self, index: int) -> EventTemplate | None:
        """From its first chunk on, unless more is told of each token than its text."""
        return self._templates.get(index)

    def end(self) -> bytes:
        """The usage, if it was asked for, and [DONE]."""
        has_usage = self._options.include_usage
        return (self._encode([], usage=usage_out(self._generation.usage)) if has_usage else b"") + DONE

    def fail(self, error: Exception) -> bytes:
        """The error, and [DONE]."""
        return failed(error)

    def _echo(self, index: int) -> CompletionChoice:
        prompt = self._generation.prompt(index)
        delta = TextDelta(index, prompt.text, (), prompt.logprobs or ())
        part, self._num_characters[index] = completion_part(self._options, index, delta, None)
        return part

    def _text(self, index: int, text: str) -> bytes:
        return self._encode([CompletionChoice(index, text)])

    def _encode(
        self, choices: list[CompletionChoice], *, usage: UsageOut | None = None, has_prompt: bool = False
    ) -> bytes:
        name: ObjectName = "text_completion"
        return _chunk(self._options, name, self._generation, choices, usage=usage, has_prompt=has_prompt)


def _call_parts(call: ToolCallDelta) -> list[ToolCallOut]:
    """Its beginning and its arguments apart."""
    parts = []
    if call.name is not None:
        function = FunctionOut("", call.name)
        parts.append(ToolCallOut(function, call.index, UNSET if call.id is None else call.id, "function"))
    if call.arguments:
        parts.append(ToolCallOut(FunctionOut(call.arguments), call.index))
    return parts


def _has_content(options: Options, delta: TextDelta) -> bool:
    """Whether a chunk tells more than the end."""
    return bool(
        delta.text or (delta.logprobs and options.has_logprobs) or (delta.token_ids and options.return_token_ids)
    )


def _chunk(
    options: Options,
    object_name: ObjectName,
    generation: Generation,
    choices: list[ChatChunkChoice] | list[CompletionChoice],
    *,
    usage: UsageOut | None,
    has_prompt: bool,
) -> bytes:
    """One event. Where usage was asked for, all chunks but the last have it as null."""
    usage_field = usage if options.include_usage else UNSET
    return event(make_answer(options, object_name, generation, choices, usage=usage_field, has_prompt=has_prompt))
