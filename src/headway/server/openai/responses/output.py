"""OutputItems: what a model says, as items. Deltas come in, changes go out, which a stream tells.

Items follow each other and one is open at a time, in the order in which the model began them: reasoning, a message,
calls, and, where it goes on in text behind a call, another message. White space alone behind a call is no message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from headway.core.output import FinishReason, TextDelta, TokenLogprob
from headway.core.tools import ToolCallDelta
from headway.server.openai.logprobs import chat_logprobs
from headway.server.openai.responses.items import new_id
from headway.server.openai.responses.schema import (
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from headway.server.openai.schema import ContentLogprobOut

Kind = Literal["reasoning", "message", "function_call"]


@dataclass(slots=True)
class _Open:
    """The item that still gains."""

    kind: Kind
    id: str
    texts: list[str] = field(default_factory=list)
    logprobs: list[ContentLogprobOut] = field(default_factory=list)
    call_id: str = ""
    name: str = ""

    def item(self, status: ItemStatus) -> OutputItem:
        """As far as it is; what has just begun has no content yet."""
        text = "".join(self.texts)
        is_new = status == "in_progress"
        match self.kind:
            case "reasoning":
                return ReasoningItem(self.id, [] if is_new else [ReasoningText(text)], status=status)
            case "message":
                content = [] if is_new else [OutputText(text, logprobs=self.logprobs)]
                return MessageItem(self.id, "assistant", list(content), status)
            case "function_call":
                return FunctionCallItem(self.id, self.call_id, self.name, text, status)


class Began(msgspec.Struct, frozen=True, gc=False):
    """An item is new."""

    item: OutputItem


class Gained(msgspec.Struct, frozen=True, gc=False):
    """The open item has more: text, or a piece of a call's arguments."""

    kind: Kind
    item_id: str
    text: str
    logprobs: Sequence[ContentLogprobOut]


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The open item is whole, or cut."""

    item: OutputItem


Change = Began | Gained | Ended


class OutputItems:
    """The items of one response, as they grow.

    Args:
        has_logprobs: texts have those of their tokens; reasoning and calls never do.
    """

    def __init__(self, *, has_logprobs: bool) -> None:
        self._has_logprobs = has_logprobs
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._ended: list[OutputItem] = []
        self._open: _Open | None = None
        self._spaces = ""
        """White space behind a call, until it is known whether text follows."""
        self._logprobs: list[TokenLogprob] = []
        """Of tokens that made no text yet."""

    @property
    def index(self) -> int:
        """Of the open item."""
        return len(self._ended)

    def items(self) -> list[OutputItem]:
        """All of them; one that is open is incomplete."""
        return [*self._ended, *([] if self._open is None else [self._open.item("incomplete")])]

    def try_add(self, delta: TextDelta) -> bool:
        """take(), where all that it changes is that the open message gains the delta's text: whether that is so."""
        one = self._open
        is_more = delta.finish_reason is not None or delta.reasoning or delta.tool_calls or not delta.text
        if is_more or self._has_logprobs or one is None or one.kind != "message":
            return False
        one.texts.append(delta.text)
        return True

    def take(self, delta: TextDelta) -> list[Change]:
        """What the delta changes. The last one ends what is open, and a response without an item gets an empty
        message."""
        changes: list[Change] = []
        if delta.reasoning:
            self._gain(changes, "reasoning", delta.reasoning)
        self._take_text(changes, delta)
        for call in delta.tool_calls:
            self._take_call(changes, call)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
            if self._open is None and not self._ended:
                self._begin(changes, _Open("message", new_id("msg")))
            self._end(changes, "completed" if delta.finish_reason == "stop" else "incomplete")
        return changes

    def _take_text(self, changes: list[Change], delta: TextDelta) -> None:
        is_other = bool(delta.reasoning or delta.tool_calls)
        if is_other:
            self._logprobs.clear()
        if self._has_logprobs and (delta.text or not is_other):
            self._logprobs += delta.logprobs
        kind = None if self._open is None else self._open.kind
        text = delta.text if kind != "function_call" else self._behind_call(delta.text)
        is_rest = kind == "message" and delta.finish_reason is not None and bool(self._logprobs)
        if text or is_rest:
            logprobs, self._logprobs = self._logprobs, []
            self._gain(changes, "message", text, chat_logprobs(logprobs).content if logprobs else ())

    def _behind_call(self, text: str) -> str:
        """What there is to tell of it: nothing as long as it is white space."""
        text = self._spaces + text
        self._spaces = "" if text.strip() else text
        return "" if self._spaces else text

    def _take_call(self, changes: list[Change], call: ToolCallDelta) -> None:
        if call.name is not None:
            self._spaces = ""
            self._end(changes, "completed")
            began = _Open("function_call", new_id("fc"), call_id=call.id or new_id("call"), name=call.name)
            self._begin(changes, began)
        if call.arguments:
            self._gain(changes, "function_call", call.arguments)

    def _gain(self, changes: list[Change], kind: Kind, text: str, logprobs: Sequence[ContentLogprobOut] = ()) -> None:
        one = self._open
        if one is None or one.kind != kind:
            self._end(changes, "completed")
            one = self._begin(changes, _Open(kind, new_id("rs" if kind == "reasoning" else "msg")))
        one.texts.append(text)
        one.logprobs += logprobs
        changes.append(Gained(kind, one.id, text, logprobs))

    def _begin(self, changes: list[Change], one: _Open) -> _Open:
        self._open = one
        changes.append(Began(one.item("in_progress")))
        return one

    def _end(self, changes: list[Change], status: ItemStatus) -> None:
        if self._open is None:
            return
        item = self._open.item(status)
        changes.append(Ended(item))
        self._ended.append(item)
        self._open = None
