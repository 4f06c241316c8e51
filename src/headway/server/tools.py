"""Tools, tool_choice and parallel_tool_calls in OpenAI's form: checked, and as templates and the core know them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from headway.core.tools import ToolUse
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.body import describe, without_nulls

MAX_TOOLS = 512
MAX_NAME_LENGTH = 64
_NAME = re.compile(r"[a-zA-Z0-9_.-]+")
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")

Json = Mapping[str, Any]


def read_tools(tools: Sequence[object], *, max_name_length: int = MAX_NAME_LENGTH) -> list[dict[str, Any]]:
    """Functions as they were sent, without what is null. An empty list is no tools. Raises InvalidRequest."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools has {len(tools)} tools, at most {MAX_TOOLS}: send fewer", param="tools")
    read = [_read_tool(tool, f"tools[{i}]", max_name_length) for i, tool in enumerate(tools)]
    seen: set[str] = set()
    for i, tool in enumerate(read):
        name = tool["function"]["name"]
        if name in seen:
            path = f"tools[{i}].function.name"
            raise InvalidRequest(f"{path} is {name!r}, as an earlier tool's: names must differ", param=path)
        seen.add(name)
    return read


def _read_tool(tool: object, path: str, max_name_length: int) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"{path} is {describe(tool)}; it must be an object", param=path)
    if tool.get("type") != "function":
        raise UnsupportedFeature(f"{path}.type must be function: there are no other tools", param=f"{path}.type")
    _check_names(without_nulls(tool), ("type", "function"), path)
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{path}.function is {describe(function)}; it must be an object", param=f"{path}.function")
    function = without_nulls(function)
    _check_names(function, _FUNCTION_FIELDS, f"{path}.function")
    _check_function(function, f"{path}.function", max_name_length)
    return {"type": "function", "function": function}


def _check_function(function: Json, path: str, max_name_length: int) -> None:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > max_name_length:
        raise InvalidRequest(
            f"{path}.name must be 1 to {max_name_length} letters of a to z, digits, underscores, dots and dashes",
            param=f"{path}.name",
        )
    kinds: tuple[tuple[str, type, str], ...] = (
        ("description", str, "a string"),
        ("parameters", dict, "a JSON schema of an object"),
        ("strict", bool, "true or false"),
    )
    for field, kind, what in kinds:
        if field in function and not isinstance(function[field], kind):
            raise InvalidRequest(
                f"{path}.{field} is {describe(function[field])}; it must be {what}", param=f"{path}.{field}"
            )
    if function.get("parameters", {}).get("type", "object") != "object":
        param = f"{path}.parameters.type"
        raise InvalidRequest(f'{param} must be "object": arguments have names', param=param)


def _check_names(given: Json, known: Sequence[str], path: str) -> None:
    for name in given:
        if name not in known:
            raise InvalidRequest(f"{path}.{name[:64]} is no field of a tool: leave it out", param=f"{path}.{name[:64]}")


def read_tool_use(tools: Sequence[Json], choice: object, is_parallel: bool | None) -> ToolUse:
    """How the tools are used. Raises InvalidRequest for a choice that is none, or that names no tool of these."""
    if choice is None:
        return ToolUse(is_parallel=is_parallel is not False)
    if not tools and choice != "none":
        raise InvalidRequest(
            "tool_choice is only for requests with tools: send them, or leave it out", param="tool_choice"
        )
    use = _read_choice(choice)
    known = {tool["function"]["name"] for tool in tools}
    for name in filter(None, (use.name, *use.names)):
        if name not in known:
            raise InvalidRequest(
                f"tool_choice names {name[:64]!r}, and tools has {', '.join(sorted(known))[:200]}: name one of them",
                param="tool_choice",
            )
    return replace(use, is_parallel=is_parallel is not False)


def _read_choice(choice: object) -> ToolUse:
    match choice:
        case "auto" | "none" | "required":
            return ToolUse(choice)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolUse("named", name)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]}}:
            return _read_allowed(mode, allowed)
    raise InvalidRequest(
        'tool_choice must be auto, none, required, {"type": "function", "function": {"name": ...}}, or {"type": '
        '"allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}',
        param="tool_choice",
    )


def _read_allowed(mode: Literal["auto", "required"], allowed: Sequence[object]) -> ToolUse:
    names = []
    for tool in allowed:
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                names.append(name)
            case _:
                raise InvalidRequest(
                    'tool_choice.allowed_tools.tools must be a list of {"type": "function", "function": {"name": ...}}',
                    param="tool_choice",
                )
    if not names:
        raise InvalidRequest("tool_choice.allowed_tools.tools is empty: name a tool", param="tool_choice")
    return ToolUse(mode, names=tuple(names))
