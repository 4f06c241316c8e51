"""TemplateForms: in which form a chat template wants what can be said in several. Found out by rendering small chats.

Templates were written for what their authors' own code gave them: content as text or as parts, a call's arguments as an
object or as JSON text, null where an assistant only called. Nothing in a template says which.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.errors import TemplateRefused

_NEEDLE = "zqneedlezq"
_ARGUMENTS_TEXT = '{"zqneedlezq": 1.50, "é": 1}'
"""1.50 tells this text from an object that the template wrote itself, and é how it would have written it."""
_ARGUMENTS = {_NEEDLE: 1.5, "é": 1}

Render = Callable[[Mapping[str, Any]], str]
"""Renders {"messages", "tools", "kwargs"} with a generation prompt. Raises TemplateRefused."""


@dataclass(frozen=True, slots=True)
class TemplateForms:
    """What one template takes."""

    takes_strings: bool = True
    """Content may be a string."""
    takes_parts: bool = False
    """Content may be a list of {type: text, text}."""
    takes_arguments_text: bool = False
    """A call's arguments are given as JSON text, which is written into the prompt as it is; False: as an object."""
    needs_null_content: bool = False
    """An assistant's message shows its calls only where its content is null."""
    shows_tools: bool = False
    """Tools that are given are in the prompt."""
    shows_calls: bool = False
    """An assistant's calls are in the prompt."""


def find_forms(render: Render) -> TemplateForms:
    """Tries them out."""
    takes_strings = _shows_content(render, _NEEDLE)
    takes_parts = _shows_content(render, [{"type": "text", "text": _NEEDLE}])
    if not takes_strings and not takes_parts:
        return TemplateForms()

    def shown_call(content: str | None, arguments: object) -> str | None:
        given: object = content if takes_strings or content is None else [{"type": "text", "text": content}]
        asked: object = "q" if takes_strings else [{"type": "text", "text": "q"}]
        return _shown_call(render, asked, given, arguments)

    needs_null = not any(shown_call("", form) for form in (_ARGUMENTS, _ARGUMENTS_TEXT)) and any(
        shown_call(None, form) for form in (_ARGUMENTS, _ARGUMENTS_TEXT)
    )
    content = None if needs_null else ""
    as_text, as_object = shown_call(content, _ARGUMENTS_TEXT), shown_call(content, _ARGUMENTS)
    is_raw = as_text is not None and _ARGUMENTS_TEXT in as_text
    takes_text = is_raw and (as_object is None or (as_text or "").replace("1.50", "1.5") == as_object)
    return TemplateForms(
        takes_strings,
        takes_parts,
        takes_text,
        needs_null,
        shows_tools=_shows_tools(render, takes_strings),
        shows_calls=as_text is not None or as_object is not None,
    )


def _try(render: Render, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str | None:
    try:
        return render({"messages": messages, "tools": tools, "kwargs": None})
    except TemplateRefused:
        return None


def _shows_content(render: Render, content: object) -> bool:
    text = _try(render, [{"role": "user", "content": content}])
    # A template that prints the list as it is shows the part's keys too.
    return text is not None and _NEEDLE in text and not re.search(rf"['\"]text['\"]: *['\"]{_NEEDLE}", text)


def _shown_call(render: Render, asked: object, content: object, arguments: object) -> str | None:
    """What is rendered, if the call is in it."""
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}
    text = _try(
        render,
        [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00001", "name": "f", "content": asked},
        ],
        [_tool("f")],
    )
    return text if text is not None and _NEEDLE in text else None


def _shows_tools(render: Render, takes_strings: bool) -> bool:
    asked: object = "q" if takes_strings else [{"type": "text", "text": "q"}]
    text = _try(render, [{"role": "user", "content": asked}], [_tool(_NEEDLE)])
    return text is not None and _NEEDLE in text


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}
