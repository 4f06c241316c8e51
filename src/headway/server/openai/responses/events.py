"""Generations to the events of a streamed response (server/events.Chunks).

    response.created, response.in_progress
    for each item, output_index 0, 1, ...:
        response.output_item.added
        reasoning    content_part.added, reasoning_text.delta ..., reasoning_text.done, content_part.done
        a message    content_part.added, output_text.delta ..., output_text.done, content_part.done
        a call       function_call_arguments.delta ..., function_call_arguments.done
        response.output_item.done
    response.completed, response.incomplete; or error and response.failed

Each has its name as the event's too, and a sequence_number that counts from 0. There is no [DONE].
"""

from collections.abc import Callable

from headway.core.output import TextDelta
from headway.server.errors import error_body
from headway.server.events import EventTemplate, named_event
from headway.server.generation import Generation
from headway.server.openai.responses.answers import Asked
from headway.server.openai.responses.output import Began, Change, Ended, Gained, OutputItems
from headway.server.openai.responses.schema import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseOut,
)

_GAINED = {
    "reasoning": "response.reasoning_text.delta",
    "message": "response.output_text.delta",
    "function_call": "response.function_call_arguments.delta",
}


class ResponseEvents:
    """A stream's events.

    Args:
        keep: called with the response at its end, before the client hears of it: it may go on from it at once.
    """

    __slots__ = ("_asked", "_generation", "_items", "_keep", "_number", "_text")

    def __init__(self, asked: Asked, keep: Callable[[ResponseOut], None], generation: Generation) -> None:
        self._asked = asked
        self._keep = keep
        self._generation = generation
        self._items = OutputItems(has_logprobs=asked.has_logprobs)
        self._number = 0
        self._text: EventTemplate | None = None
        """Of the open message."""

    def begin(self) -> bytes:
        """The response without anything yet."""
        response = self._asked.response(self._generation.model, "in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def chunk(self, index: int, delta: TextDelta) -> bytes:
        """What the items gained."""
        if self._text is not None and self._items.try_add(delta):
            number, self._number = self._number, self._number + 1
            return self._text.fill(delta.text)[: -len(_END % 0)] + _END % number
        output_index = self._items.index
        events = []
        for change in self._items.take(delta):
            events.append(self._change(output_index, change))
            output_index += isinstance(change, Ended)
            self._text = self._template(output_index, change)
        return b"".join(events)

    def template(self, index: int) -> None:
        """Each event has a number of its own, and the items keep the text."""

    def end(self) -> bytes:
        """The response, whole or cut."""
        response = self._asked.ended(self._generation, self._items)
        self._keep(response)
        return self._event(f"response.{response.status}", response=response)

    def fail(self, error: Exception) -> bytes:
        """The error, and the response with what it had."""
        told = error_body(error).error
        failed = self._asked.failed(self._generation, self._items, error)
        return self._event("error", code=told.code, message=told.message, param=told.param) + self._event(
            "response.failed", response=failed
        )

    def _template(self, output_index: int, change: Change) -> EventTemplate | None:
        """What a message's further texts are written with; numbered 0."""
        if not isinstance(change, Gained) or change.kind != "message":
            return None
        kind = _GAINED[change.kind]
        fields = {"item_id": change.item_id, "output_index": output_index, "content_index": 0}
        return EventTemplate(lambda text: _numbered(kind, 0, **fields, delta=text, logprobs=[]))

    def _change(self, output_index: int, change: Change) -> bytes:
        match change:
            case Gained():
                place = {"item_id": change.item_id, "output_index": output_index}
                if change.kind != "function_call":
                    place["content_index"] = 0
                own = {"logprobs": change.logprobs} if change.kind == "message" else {}
                return self._event(_GAINED[change.kind], **place, delta=change.text, **own)
            case Began(item):
                added = self._event("response.output_item.added", output_index=output_index, item=item)
                return added + self._part_added(output_index, item)
            case Ended(item):
                done = self._content_done(output_index, item)
                return done + self._event("response.output_item.done", output_index=output_index, item=item)

    def _part_added(self, output_index: int, item: Item) -> bytes:
        if isinstance(item, FunctionCallItem | FunctionCallOutputItem):
            return b""
        part = ReasoningText("") if isinstance(item, ReasoningItem) else OutputText("")
        place = {"item_id": item.id, "output_index": output_index, "content_index": 0}
        return self._event("response.content_part.added", **place, part=part)

    def _content_done(self, output_index: int, item: Item) -> bytes:
        place: dict[str, object] = {"item_id": item.id, "output_index": output_index}
        if isinstance(item, FunctionCallItem):
            name = "response.function_call_arguments.done"
            return self._event(name, **place, name=item.name, arguments=item.arguments)
        if isinstance(item, FunctionCallOutputItem):
            return b""
        place["content_index"] = 0
        part = item.content[0]
        if isinstance(part, OutputText):
            done = self._event("response.output_text.done", **place, text=part.text, logprobs=part.logprobs)
        else:
            done = self._event("response.reasoning_text.done", **place, text=part.text)
        return done + self._event("response.content_part.done", **place, part=part)

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return _numbered(kind, number, **fields)


_END = b'"sequence_number":%d}\n\n'
"""Of every event."""


def _numbered(kind: str, number: int, **fields: object) -> bytes:
    return named_event(kind, {"type": kind, **fields, "sequence_number": number})
