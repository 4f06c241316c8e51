"""OpenAI's messages to those that templates know: role, content as one text, name, calls, results, reasoning."""

from collections.abc import Sequence
from typing import Any

from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.body import describe, without_nulls
from headway.server.openai.schema import ChatMessage
from headway.text.history import Message, pair_results, reasoning_fields

_ROLES = ("system", "developer", "user", "assistant", "tool")
_ASSISTANTS = ("tool_calls", "reasoning", "reasoning_content")
"""Fields of an assistant's messages alone."""
_CARRIED_BACK = ("refusal", "annotations", "audio", "function_call")
"""What an answer of OpenAI's has and ours have not: taken where it is empty."""


def chat_messages(messages: Sequence[ChatMessage], *, may_end_open: bool = False) -> list[Message]:
    """Messages for a template, each call's result behind it. Raises InvalidRequest.

    developer is told as system; text parts are joined by a line feed; an assistant or a tool without content (null, [])
    has the empty text.

    Args:
        may_end_open: the last message's calls need no results yet.
    """
    if not messages:
        raise InvalidRequest("messages is an empty list; at least one message is needed", param="messages")
    told = [_chat_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    return pair_results(told, may_end_open=may_end_open)


def _chat_message(message: ChatMessage, path: str) -> dict[str, Any]:
    role = message.role
    if role == "function":
        raise UnsupportedFeature(
            f"{path}.role is function, which OpenAI replaced: send role tool with a tool_call_id", param=f"{path}.role"
        )
    if role not in _ROLES:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(_ROLES)}", param=f"{path}.role")
    _check_fields(message, path)
    is_nothing = role in ("assistant", "tool") and (message.content is None or message.content == [])
    content = "" if is_nothing else read_text(message.content, f"{path}.content")
    told: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content}
    if message.name is not None:
        told["name"] = message.name
    if message.tool_calls:
        told["tool_calls"] = _tool_calls(message.tool_calls, f"{path}.tool_calls")
    if role == "tool":
        told["tool_call_id"] = message.tool_call_id
    reasoning = _reasoning(message, path)
    if reasoning:
        told |= reasoning_fields(reasoning)
    return told


def _check_fields(message: ChatMessage, path: str) -> None:
    """Fields that the role has not are taken where they are empty."""
    for name in _CARRIED_BACK:
        if getattr(message, name):
            raise UnsupportedFeature(f"{path}.{name} is not supported: leave it out", param=f"{path}.{name}")
    others = [] if message.role == "assistant" else [name for name in _ASSISTANTS if getattr(message, name)]
    if message.tool_call_id and message.role != "tool":
        others.append("tool_call_id")
    if others:
        raise InvalidRequest(
            f"{path}.{others[0]} is not for a message of the role {message.role}: leave it out",
            param=f"{path}.{others[0]}",
        )


def _reasoning(message: ChatMessage, path: str) -> str:
    for name in ("reasoning_content", "reasoning"):
        value = getattr(message, name)
        if value and not isinstance(value, str):
            raise InvalidRequest(f"{path}.{name} is {describe(value)}; it must be a string", param=f"{path}.{name}")
        if value:
            return str(value)
    return ""


def _tool_calls(calls: object, path: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{path} is {describe(calls)}; it must be a list of calls", param=path)
    return [_tool_call(call, f"{path}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, path: str) -> dict[str, Any]:
    """Of a call the id, the function's name and its arguments; an index, which streams have, is left out."""
    if not isinstance(call, dict):
        raise InvalidRequest(f"{path} is {describe(call)}; it must be an object", param=path)
    call = without_nulls(call)
    if call.get("type", "function") != "function":
        raise UnsupportedFeature(f"{path}.type must be function: there are no other tools", param=f"{path}.type")
    function = call.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{path}.function is {describe(function)}; it must be an object", param=f"{path}.function")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{path}.function.name must be the function's name", param=f"{path}.function.name")
    if arguments is not None and not isinstance(arguments, str | dict):
        param = f"{path}.function.arguments"
        raise InvalidRequest(f"{param} is {describe(arguments)}; it must be JSON in a string", param=param)
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": name, "arguments": "" if arguments is None else arguments},
    }


def read_text(content: object, path: str, *, kinds: Sequence[str] = ("text", "input_text")) -> str:
    """A message's content: text, or text parts of these types, joined by a line feed. Raises InvalidRequest."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        what = "an empty list" if content == [] else describe(content)
        raise InvalidRequest(f"{path} is {what}; it must be text or a list of text parts", param=path)
    return "\n".join(_text_part(part, f"{path}[{i}]", kinds) for i, part in enumerate(content))


_OTHER_PARTS = frozenset(
    (
        "audio_url", "file", "image", "image_embeds", "image_url", "input_audio", "input_file", "input_image",
        "refusal", "thinking", "video_url",
    )
)  # fmt: skip
"""Of OpenAI's and vLLM's messages: no text."""


def _text_part(part: object, path: str, kinds: Sequence[str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise InvalidRequest(f"{path} is {describe(part)}; it must be an object with a type", param=path)
    if kind not in kinds:
        named = f"is {kind}" if kind in _OTHER_PARTS else "is no type of this API"
        raise UnsupportedFeature(
            f"{path}.type {named}: the served models read text alone, as {{type: {kinds[0]}, text: ...}}",
            param=f"{path}.type",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{path}.text is {describe(text)}; it must be a string", param=f"{path}.text")
    return text
