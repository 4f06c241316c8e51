"""Tools, calls and results as plain text, for chat templates that do not know of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.text.template_forms import TemplateForms
from headway.text.tool_calls import Dialect

Message = Mapping[str, Any]
_EXAMPLE = ("function_name", '{"argument": "value"}')
"""The name and the arguments in Dialect's example of a call."""


def with_tool_texts(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], dialect: Dialect, forms: TemplateForms
) -> list[Message]:
    """The messages as a template of these forms can show them.

    1. A template that leaves tools out: the system message begins with, or is, the dialect's instructions.
    2. One that leaves calls out: they are the end of their message's text, and the results that follow are one message
       of the user's.
    """
    told = list(messages) if forms.shows_calls else _without_calls(messages, dialect)  # 2.
    return _with_instructions(told, dialect.instructions(tools)) if tools and not forms.shows_tools else told  # 1.


def _with_instructions(messages: list[Message], text: str) -> list[Message]:
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": f"{text}\n\n{first['content']}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _without_calls(messages: Sequence[Message], dialect: Dialect) -> list[Message]:
    told: list[Message] = []
    is_behind_result = False
    for message in messages:
        is_result = message.get("role") == "tool"
        if is_result:
            text = f"Result of {message.get('name') or 'the call'}: {_text_of(message)}"
            if is_behind_result:
                told[-1] = {"role": "user", "content": f"{told[-1]['content']}\n{text}"}
            else:
                told.append({"role": "user", "content": text})
        elif message.get("tool_calls"):
            written = [_written(call["function"], dialect) for call in message["tool_calls"]]
            kept = {name: value for name, value in message.items() if name != "tool_calls"}
            told.append({**kept, "content": "\n".join(filter(None, [_text_of(message), *written]))})
        else:
            told.append(message)
        is_behind_result = is_result
    return told


def _text_of(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, Mapping) and "text" in part)
    return str(content or "")


def _written(function: Mapping[str, Any], dialect: Dialect) -> str:
    """A call as the dialect writes it, where its example shows how; else as JSON."""
    given = function.get("arguments") or "{}"
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    name, example = str(function["name"]), dialect.form.example
    if not all(part in example for part in _EXAMPLE):
        return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'
    before, _, behind = example.partition(_EXAMPLE[1])
    return before.replace(_EXAMPLE[0], name) + arguments + behind
