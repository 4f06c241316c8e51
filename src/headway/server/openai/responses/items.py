"""A caller's items: read and checked, and told as messages that templates know.

Consecutive items of the assistant (reasoning, a message, calls) are one message of a chat; another one begins where a
message or reasoning follows a message without calls.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from uuid import uuid4

from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.body import MAX_NAME_LENGTH, describe, without_nulls
from headway.server.openai.messages import chat_messages, read_text
from headway.server.openai.responses.schema import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from headway.server.openai.schema import ChatMessage
from headway.text.history import Message

_ROLES = ("user", "assistant", "system", "developer")
_FIELDS: Mapping[str, frozenset[str]] = {
    "message": frozenset(("role", "content", "phase")),
    "function_call": frozenset(("call_id", "name", "arguments")),
    "function_call_output": frozenset(("call_id", "output", "name")),
    "reasoning": frozenset(("summary", "content", "encrypted_content")),
}
"""Beside type, id and status."""


def new_id(prefix: str) -> str:
    """An id as OpenAI's: msg_, rs_, fc_, call_."""
    return f"{prefix}_{uuid4().hex}"


def read_items(value: object) -> list[Item]:
    """The body's input; a text is a user's message. Raises InvalidRequest that names the item's place and type."""
    if isinstance(value, str):
        return [MessageItem(new_id("msg"), "user", [InputText(value)])]
    if not isinstance(value, list):
        raise InvalidRequest(f"input is {describe(value)}; it must be text or a list of items", param="input")
    if not value:
        raise InvalidRequest("input is an empty list; at least one item is needed", param="input")
    return [_read_item(item, f"input[{i}]") for i, item in enumerate(value)]


def _read_item(item: object, path: str) -> Item:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{path} is {describe(item)}; it must be an object with a type", param=path)
    given = without_nulls(item)
    kind = given.get("type", "message" if "role" in given else None)
    if not isinstance(kind, str):
        raise InvalidRequest(f"{path}.type is {describe(kind)}; it must name the item's type", param=f"{path}.type")
    read = _READERS.get(kind)
    if read is None:
        raise _unknown_type(kind, path)
    for name in given:
        if name not in _FIELDS[kind] and name not in ("type", "id", "status"):
            cut = name[:MAX_NAME_LENGTH]
            raise InvalidRequest(f"{path}.{cut} is no field of a {kind}: leave it out", param=f"{path}.{cut}")
    return read(given, path)


def _unknown_type(kind: str, path: str) -> InvalidRequest:
    if kind == "item_reference":
        return UnsupportedFeature(
            f"{path}.type is item_reference, which is not supported: send the item itself, or previous_response_id",
            param=f"{path}.type",
        )
    return UnsupportedFeature(
        f"{path}.type is {kind[:MAX_NAME_LENGTH]!r}; items have one of the types {', '.join(_FIELDS)}",
        param=f"{path}.type",
    )


def _read_message(item: Mapping[str, Any], path: str) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(_ROLES)}", param=f"{path}.role")
    kinds = ("output_text", "input_text", "text") if role == "assistant" else ("input_text", "text", "output_text")
    text = read_text(item.get("content"), f"{path}.content", kinds=kinds)
    part = OutputText(text) if role == "assistant" else InputText(text)
    return MessageItem(_id(item, path, "msg"), role, [part])


def _read_call(item: Mapping[str, Any], path: str) -> Item:
    call_id, name, arguments = (_string(item, each, path) for each in ("call_id", "name", "arguments"))
    return FunctionCallItem(_id(item, path, "fc"), call_id, name, arguments)


def _read_result(item: Mapping[str, Any], path: str) -> Item:
    if item.get("output") == []:
        text = ""  # a tool that returned nothing
    else:
        text = read_text(item.get("output"), f"{path}.output", kinds=("input_text", "text", "output_text"))
    return FunctionCallOutputItem(_id(item, path, "fco"), _string(item, "call_id", path), text)


def _read_reasoning(item: Mapping[str, Any], path: str) -> Item:
    """Its content; a summary is not what the model thought, and is left out."""
    if not isinstance(item.get("summary", []), list):
        raise InvalidRequest(
            f"{path}.summary is {describe(item['summary'])}; it must be a list", param=f"{path}.summary"
        )
    content = item.get("content") or []
    text = read_text(content, f"{path}.content", kinds=("reasoning_text",)) if content else ""
    return ReasoningItem(_id(item, path, "rs"), [ReasoningText(text)] if text else [])


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Item]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_result,
    "reasoning": _read_reasoning,
}


def _string(item: Mapping[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (not value and name != "arguments"):
        what = "is missing" if value is None else "is empty" if value == "" else f"is {describe(value)}"
        raise InvalidRequest(f"{path}.{name} {what}; it must be a text", param=f"{path}.{name}")
    return value


def _id(item: Mapping[str, Any], path: str, prefix: str) -> str:
    return _string(item, "id", path) if item.get("id") else new_id(prefix)


# Items as messages


@dataclass(slots=True)
class _Turn:
    """What becomes one message, and the items that it is made of."""

    path: str
    role: str
    content: str | None = None
    reasoning: str = ""
    calls: list[FunctionCallItem] = field(default_factory=list)
    call_paths: list[str] = field(default_factory=list)
    call_id: str | None = None
    """Of a result."""

    def message(self) -> ChatMessage:
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.calls
        ]
        return ChatMessage(
            role=self.role,
            content=self.content or "",
            tool_calls=calls or None,
            tool_call_id=self.call_id,
            reasoning_content=self.reasoning or None,
            reasoning=None,
        )


def to_messages(history: Sequence[Item], items: Sequence[Item], instructions: str | None) -> list[Message]:
    """The messages of a conversation so far, each call's result behind it.

    Args:
        history: items of the turns before, told as previous_response_id.
        items: the request's own.

    Raises InvalidRequest: calls and results that do not pair.
    """
    turns = [_Turn("instructions", "system", instructions)] if instructions else []
    for item in history:
        _add(turns, item, "previous_response_id")
    for i, item in enumerate(items):
        _add(turns, item, f"input[{i}]")
    if not turns:
        raise InvalidRequest("input has nothing but reasoning: at least one message is needed", param="input")
    try:
        return chat_messages([turn.message() for turn in turns])
    except InvalidRequest as error:
        raise _by_item(error, turns) from None


def _add(turns: list[_Turn], item: Item, path: str) -> None:
    match item:
        case FunctionCallOutputItem():
            turns.append(_Turn(path, "tool", item.output, call_id=item.call_id))
        case MessageItem() if item.role != "assistant":
            turns.append(_Turn(path, item.role, "\n".join(part.text for part in item.content)))
        case MessageItem():
            turn = _assistant(turns, path, begins=lambda turn: turn.content is not None)
            turn.content = (turn.content or "") + "".join(part.text for part in item.content)
        case ReasoningItem():
            if item.content:
                turn = _assistant(turns, path, begins=lambda turn: turn.content is not None)
                turn.reasoning += "".join(part.text for part in item.content)
        case FunctionCallItem():
            turn = _assistant(turns, path, begins=lambda _: False)
            turn.calls.append(item)
            turn.call_paths.append(path)


def _assistant(turns: list[_Turn], path: str, *, begins: Callable[[_Turn], bool]) -> _Turn:
    """The assistant's turn that an item belongs to: the last one, unless `begins` says that a new one begins."""
    if not turns or turns[-1].role != "assistant" or (begins(turns[-1]) and not turns[-1].calls):
        turns.append(_Turn(path, "assistant"))
    return turns[-1]


_PLACE = re.compile(r"messages\[(\d+)\](?:\.tool_calls\[(\d+)\])?(?:\.(\w+))?")


def _by_item(error: InvalidRequest, turns: Sequence[_Turn]) -> InvalidRequest:
    """What is wrong with a message, told of the item that it was made of."""
    place = _PLACE.fullmatch(error.param or "")
    if place is None:
        return error
    number, call, name = int(place[1]), place[2], place[3]
    turn = turns[number]
    if name == "tool_calls":
        results = takewhile(lambda each: each.role == "tool", turns[number + 1 :])
        return _unanswered(turn, {each.call_id for each in results})
    path = turn.path if call is None else turn.call_paths[int(call)]
    if path.startswith("input") and name in ("id", "tool_call_id"):
        path += ".call_id"
    return type(error)(error.message.replace(str(error.param), path, 1), param=path)


def _unanswered(turn: _Turn, answered: set[str | None]) -> InvalidRequest:
    calls = zip(turn.calls, turn.call_paths, strict=True)
    call, path = next(each for each in calls if each[0].call_id not in answered)
    return InvalidRequest(
        f"{path} has the call {call.call_id[:64]!r}, and no function_call_output right behind the calls has its result:"
        " send one for each call, an error's text if there is nothing else",
        param=path,
    )
