"""The words of this room: a tool, a parser, and what a parser makes of a piece of the answer."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headway.core.tools import ToolCallDelta
from headway.errors import InvalidRequest
from headway.text.grammar import JsonSchema, json_part

_CLOSED_BY = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
_COMBINED_BY = frozenset({"allOf", "anyOf", "oneOf", "$ref"})


class Parsed(NamedTuple):
    """What a parser made of a piece of the answer. Both may be empty: what can still become a call is held back."""

    text: str
    calls: Sequence[ToolCallDelta]


class ToolCallParser(Protocol):
    """One choice's answer (without its reasoning) on its way: text here, calls there.

    The deltas joined are the same however the answer is cut into pieces. A call's first delta has its id and name; the
    arguments of all join to one JSON object: the text that the model wrote, where it wrote JSON. White space directly
    before a call, between calls and at the end behind one is dropped. What cannot be read is text, in its place. Never
    raises.

    With is_enforced a call is given while it is made, once the answer has kept to the grammar up to its arguments; else
    only when it is whole and valid. So half a call comes only of an answer that was cut (finish_reason length). Where a
    dialect opens calls with a special token, the same text spelt in other tokens is none to the engine, and what stands
    behind it is not enforced.
    """

    @property
    def num_unreadable(self) -> int:
        """Calls that could not be read, and so became text. One that the end cut short does not count."""

    def push(self, text: str, num_special: int = 0) -> Parsed:
        """Takes the next piece of the answer; num_special: its last so many characters are one special token."""

    def end(self, is_cut: bool) -> Parsed:
        """What was held back. is_cut: the answer did not end by itself, but by a limit, a stop string or an abort."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called."""

    name: str
    parameters: JsonSchema
    """Of its arguments."""
    is_strict: bool = False
    """Its schema holds as it is, or the request is refused; else what cannot be enforced of it is left out."""
    description: str = ""


def read_tools(tools: Sequence[Mapping[str, Any]], names: Collection[str] | None = None) -> tuple[Tool, ...]:
    """Tools from their API form ({"type": "function", "function": {...}}); names: only those, None: all.

    Raises InvalidRequest that names the place.
    """
    found = tuple(_read_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools))
    if names is None:
        return found
    known = {tool.name for tool in found}
    missing = sorted(set(names) - known)
    if missing:
        raise InvalidRequest(
            f"tool_choice names {missing[0][:64]!r}, which is not among tools ({', '.join(sorted(known))[:200]})",
            param="tool_choice",
        )
    return tuple(tool for tool in found if tool.name in names)


def _read_tool(tool: Mapping[str, Any], param: str) -> Tool:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{param}.function is missing; a tool is a function with a name", param=param)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{param}.function.name must be a text of at least one character", param=param)
    parameters = function.get("parameters")
    if parameters is False or not isinstance(parameters, Mapping | bool | None):
        raise InvalidRequest(f"{param}.function.parameters must be a JSON schema of an object", param=param)
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    return Tool(
        name=name,
        parameters=parameters,
        is_strict=function.get("strict") is True,
        description=str(function.get("description") or ""),
    )


def arguments_schema(tool: Tool) -> JsonSchema:
    """The schema of a tool's arguments as a part of a grammar: an object, in the spacing of all enforced JSON.

    A tool that is not strict takes no arguments but those that it names: models that may invent some do.
    """
    schema = {} if isinstance(tool.parameters, bool) else dict(tool.parameters)
    schema.setdefault("type", "object")
    if not tool.is_strict and "properties" in schema and not schema.keys() & (_CLOSED_BY | _COMBINED_BY):
        schema["additionalProperties"] = False
    return json_part(schema, is_lenient=not tool.is_strict)
