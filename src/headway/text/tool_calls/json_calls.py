"""Calls that are JSON objects: {"name": ..., "arguments": {...}}, as most dialects have them."""

import json
import re
from collections.abc import Sequence

from headway.text.grammar import lark_text
from headway.text.tool_calls.base import Tool, arguments_schema
from headway.text.tool_calls.block import Block
from headway.text.tool_calls.dialect import GrammarWriter
from headway.text.tool_calls.json_pieces import is_json, read_json, read_json_text
from headway.text.tool_calls.source import SPACE, Reading, Unreadable

_ARGUMENTS = frozenset({"arguments", "parameters"})
_OTHERS = frozenset({"id", "type"})
"""Keys that a call without a marker may have besides; with any other the object is not meant to be one."""


def read_json_call(block: Block) -> Reading[None]:
    """Takes one object and says it to the block, whatever the order of its keys. Raises Unreadable.

    Arguments may also be null or absent (none), or an object's JSON once more as a string, as some models write them.
    """
    source = block.source
    yield from source.expect("{")
    name: str | None = None
    arguments: str | None = None
    is_begun = False
    while True:
        key = yield from _read_key(block)
        if key == "name" and name is None:
            name = yield from _read_name(block)
        elif key in _ARGUMENTS and name is not None and arguments is None and (yield from source.peek()) == "{":
            block.begin(name)
            is_begun = True
            arguments = ""
            yield from read_json(source, block.add)
        elif key in _ARGUMENTS and arguments is None:
            arguments = yield from read_json_text(source)
        elif block.is_marked or key in _OTHERS:
            yield from read_json_text(source)
        else:
            raise Unreadable(f"a key {key!r}")
        yield from source.skip_space()
        if not (yield from _goes_on(block)):
            break
    if not is_begun:
        _say_whole(block, name, arguments)
    source.take(source.at + 1)
    block.finish()


def _read_key(block: Block) -> Reading[str]:
    """A key and what is between it and its value."""
    source = block.source
    yield from source.skip_space()
    if (yield from source.peek()) != '"':
        raise Unreadable("no key")
    key: str = json.loads((yield from read_json_text(source)))
    if not block.is_marked and key not in _ARGUMENTS | _OTHERS | {"name"}:
        raise Unreadable(f"a key {key!r}")
    yield from source.skip_space()
    yield from source.expect(":")
    yield from source.skip_space()
    return key


def _read_name(block: Block) -> Reading[str]:
    if (yield from block.source.peek()) != '"':
        raise Unreadable("the name is no string")
    name: str = json.loads((yield from read_json_text(block.source)))
    if not name or not block.is_known(name):
        raise Unreadable(f"no tool {name!r}")
    block.is_certain = True
    return name


def _goes_on(block: Block) -> Reading[bool]:
    """Takes a comma; a closing brace stays."""
    if (yield from block.source.peek()) == "}":
        return False
    yield from block.source.expect(",")
    return True


def _say_whole(block: Block, name: str | None, arguments: str | None) -> None:
    """A call whose arguments could not be passed on as they came."""
    if name is None or (arguments is None and not block.is_marked):
        raise Unreadable("a name or arguments are missing")
    text = _unwrap(arguments or "null")
    block.begin(name)
    block.add(text)


def _unwrap(arguments: str) -> str:
    """The object's JSON."""
    if arguments.startswith('"'):
        arguments = json.loads(arguments).strip(SPACE) or "null"
    if arguments == "null":
        return "{}"
    if not arguments.startswith("{") or not is_json(arguments):
        raise Unreadable("the arguments are no object")
    return arguments


def call_head(name: str, arguments_key: str = "arguments") -> str:
    """A call's text up to its arguments, as tojson writes it."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{arguments_key}": '


def write_json_calls(writer: GrammarWriter, tools: Sequence[Tool], arguments_key: str = "arguments") -> None:
    """Adds the rule `call`: one object."""
    for place, tool in enumerate(tools):
        arguments = writer.part(f"arguments_{place}", arguments_schema(tool))
        writer.rule(f"call_{place}", f'{lark_text(call_head(tool.name, arguments_key))} {arguments} "}}"')
    writer.rule("call", *(f"call_{place}" for place in range(len(tools))))


def name_trigger(tools: Sequence[Tool]) -> str:
    """A regular expression: the beginning of an object, up to the end of a tool's name."""
    heads = (f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}' for tool in tools)
    return "|".join(map(re.escape, heads))
