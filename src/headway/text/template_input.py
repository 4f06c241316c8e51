"""What callers sent, as plain data that a template may see: copied, checked, parts and tool calls put in order."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headway.errors import InvalidRequest, UnsupportedFeature
from headway.text.template_forms import TemplateForms
from headway.text.tokenizer import check_encodable

MAX_DEPTH = 64
"""Lists and dicts inside each other."""

Plain = Any
"""None, bool, int, float, str, and lists and dicts (str keys) of these."""


class Arguments(dict[str, Plain]):
    """A tool call's arguments that were given as JSON text: an object for templates that look into it, and the text,
    so that a prompt has the numbers and escapes that the model wrote, and its prefix is found again."""

    __slots__ = ("text",)

    def __init__(self, value: Mapping[str, Plain], text: str) -> None:
        super().__init__(value)
        self.text = text


def plain_copy(value: object, where: str, depth: int = 0) -> Plain:
    """A copy that shares nothing mutable with the caller's value.

    Raises:
        InvalidRequest: a lone surrogate, a value that is not JSON's, or more than MAX_DEPTH levels; `where` names it.
    """
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{where} is nested over {MAX_DEPTH} levels deep", param=where)
    if isinstance(value, str):
        check_encodable(value, where)
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_key(key, where): plain_copy(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain_copy(item, where, depth + 1) for item in value]
    raise InvalidRequest(f"{where} holds a {type(value).__name__}, which is no JSON value", param=where)


def strings_of(value: Plain) -> Iterator[str]:
    """Every string in it, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        if isinstance(value, Arguments):
            yield value.text
        for key, item in value.items():
            yield key
            yield from strings_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_of(item)


def with_strings(value: Plain, change: Callable[[str], str]) -> Plain:
    """A copy in which every string, keys too, is change(string)."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        changed = {change(key): with_strings(item, change) for key, item in value.items()}
        return Arguments(changed, change(value.text)) if isinstance(value, Arguments) else changed
    if isinstance(value, list):
        return [with_strings(item, change) for item in value]
    return value


def plain_messages(messages: Sequence[Mapping[str, Any]], forms: TemplateForms) -> list[Plain]:
    """The messages as a template wants them.

    Fields that are None are left out, as transformers does. Content that is a list of text parts stays one where the
    template takes parts, and is joined with line breaks otherwise; content that is a string becomes a part only where
    the template takes nothing else. An assistant's message that only calls has the content "" (or null, where the
    template needs that), whether its content was "", null or not there. A call's arguments, JSON in a string on
    OpenAI's wire, become an object, or stay text where the template writes that as it is.

    Raises:
        InvalidRequest: `messages` is not a list of objects with a role, or holds what is no JSON.
        UnsupportedFeature: a content part that is not text.
    """
    plain = plain_copy(messages, "messages")
    if not isinstance(plain, list) or not plain:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    return [_plain_message(message, place, forms) for place, message in enumerate(plain)]


def _plain_message(message: Plain, place: int, forms: TemplateForms) -> Plain:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"messages[{place}] must be an object with a role", param="messages")
    message = {name: value for name, value in message.items() if value is not None}
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(message["tool_calls"], place, forms)
        message.setdefault("content", "")
    content = message.get("content")
    if isinstance(content, list):
        _check_parts(content, place)
        if not forms.takes_parts:
            message["content"] = "\n".join(part["text"] for part in content)
    elif isinstance(content, str):
        if not forms.takes_strings:
            message["content"] = [{"type": "text", "text": content}]
    elif content is not None:
        raise InvalidRequest(f"messages[{place}].content must be a string or a list of parts", param="messages")
    if forms.needs_null_content and content == "" and "tool_calls" in message:
        message["content"] = None
    return message


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise InvalidRequest(f"{where} has the key {key!r}; keys are strings", param=where)
    check_encodable(key, where)
    return str(key)


def _check_parts(parts: list[Plain], place: int) -> None:
    for number, part in enumerate(parts):
        where = f"messages[{place}].content[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise InvalidRequest(f"{where} must be an object with a type", param="messages")
        if kind != "text":
            raise UnsupportedFeature(f"{where} is of type {kind!r}; send parts of type 'text'", param="messages")
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}.text must be a string", param="messages")


def _tool_calls(calls: Plain, place: int, forms: TemplateForms) -> list[Plain]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRequest(f"messages[{place}].tool_calls must be a list of objects", param="messages")
    return [_with_arguments(call, forms) for call in calls]


def _with_arguments(call: dict[str, Plain], forms: TemplateForms) -> dict[str, Plain]:
    """The call with its arguments as the template takes them. Text that is no JSON object stays what it is: it may be
    what a model wrote until it was cut."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        arguments = _read_arguments(arguments)
    if not isinstance(function, dict) or not isinstance(arguments, dict):
        return call
    if forms.takes_arguments_text:
        text = arguments.text if isinstance(arguments, Arguments) else json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}
    return {**call, "function": {**function, "arguments": arguments}}


def _read_arguments(text: str) -> Arguments | None:
    """None for what is no JSON object. No text at all is an object without members.

    JSON that somebody wrote anew without spaces (JavaScript does) gets those that models write.
    """
    text = text.strip() or "{}"
    try:
        # A copy again: JSON in a string may hold what the string did not, such as a lone surrogate.
        value = plain_copy(json.loads(text), "messages")
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    is_packed = json.dumps(value, ensure_ascii=False, separators=(",", ":")) == text
    return Arguments(value, json.dumps(value, ensure_ascii=False) if is_packed else text)
