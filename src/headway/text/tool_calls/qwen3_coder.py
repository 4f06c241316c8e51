"""qwen3_coder: <tool_call>, <function=name>, and each argument between <parameter=name> and </parameter>, all on lines
of their own. Strings are written as they are, everything else as JSON. Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.errors import InvalidRequest
from headway.text.grammar import JsonSchema, lark_text
from headway.text.held import num_held
from headway.text.tool_calls.argument_types import arguments_of, required_of, types_of
from headway.text.tool_calls.base import Tool
from headway.text.tool_calls.block import Block, Syntax
from headway.text.tool_calls.dialect import GrammarWriter
from headway.text.tool_calls.json_pieces import is_json
from headway.text.tool_calls.python_literal import json_inside, literal_json
from headway.text.tool_calls.qwen3_coder_values import END, RAW, write_value
from headway.text.tool_calls.source import SPACE, Reading, Source, Unreadable

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER = "<parameter="
_NAME_END = re.compile(r"[>\n]")
_MAX_NAME_LENGTH = 256
_STRING = frozenset({"string"})
_TYPES_OF_FIRST = {'"': {"string"}, "{": {"object"}, "[": {"array"}, "t": {"boolean"}, "f": {"boolean"}, "n": {"null"}}

Types = Mapping[str, Mapping[str, frozenset[str]]]
"""By tool, by argument: what types_of says."""


@dataclass(frozen=True, slots=True)
class Qwen3CoderForm:
    """See Form."""

    markers: tuple[str, ...] = (_OPEN, _CLOSE)
    example: str = f"{_OPEN}\n{_FUNCTION}function_name>\n{_PARAMETER}argument>\nvalue\n{END}\n{_FUNCTION_END}\n{_CLOSE}"

    def syntax(self, tools: Sequence[Tool]) -> Syntax:
        """Blocks in the tags; models are known to leave the outer one away."""
        types: Types = {
            tool.name: {name: types_of(schema) for name, schema in arguments_of(tool).items()} for tool in tools
        }
        return Syntax((_OPEN, _FUNCTION), lambda block: _read_block(block, types), is_marked=True, is_head=_is_head)

    def trigger(self, tools: Sequence[Tool]) -> str:
        """The outer tag."""
        return re.escape(_OPEN)

    def write_grammar(self, writer: GrammarWriter, tools: Sequence[Tool], is_parallel: bool) -> None:
        """Blocks, a line break between them (but for Step 3.5); arguments in the order of their schema."""
        writer.rule(*RAW)
        names = [_write_function(writer, tool, f"f{place}") for place, tool in enumerate(tools)]
        writer.rule("function", *names)
        writer.rule("block", f'{writer.marker(_OPEN)} "\\n" function "\\n" {writer.marker(_CLOSE)}')
        writer.rule("start", 'block ("\\n"? block)*' if is_parallel else "block")


def _write_function(writer: GrammarWriter, tool: Tool, rule: str) -> str:
    arguments, required = arguments_of(tool), required_of(tool)
    parameters = []
    for place, (name, schema) in enumerate(arguments.items()):
        if _NAME_END.search(name):
            raise InvalidRequest(
                f"tool {tool.name} has an argument named {name[:64]!r}, which this model's form of calls cannot write: "
                "leave > and line breaks out",
                param="tools",
            )
        strict_name = f"{tool.name}.{name}" if tool.is_strict else None
        values = " | ".join(write_value(writer, schema, f"{rule}_{place}", strict_name=strict_name))
        opening = lark_text(f"{_PARAMETER}{name}>\n")
        parameters.append(f'({opening} ({values}) "\\n")' + ("" if name in required else "?"))
    if not arguments and tool.parameters is not False and _is_open(tool.parameters):
        parameters.append(f'({lark_text(_PARAMETER)} /[A-Za-z0-9_.-]{{1,64}}/ ">\\n" raw "\\n")*')
    opening = lark_text(f"{_FUNCTION}{tool.name}>\n")
    return writer.rule(rule, " ".join([opening, *parameters, lark_text(_FUNCTION_END)]))


def _is_open(schema: JsonSchema) -> bool:
    """Whether a schema that names no argument allows any."""
    return isinstance(schema, bool) or schema.get("additionalProperties") is not False


def _is_head(text: str, name: str) -> bool:
    return text == f"{_OPEN}\n{_FUNCTION}{name}>\n"


def _read_block(block: Block, types: Types) -> Reading[None]:
    source = block.source
    is_tagged = yield from source.has(_OPEN)
    if is_tagged:
        yield from source.expect(_OPEN)
    while True:
        yield from source.skip_space()
        if block.num_finished and not (yield from source.has(_FUNCTION)):
            break
        yield from _read_function(block, types)
    # Models that leave the opening tag away write the closing one all the same.
    yield from source.skip(_CLOSE)


def _read_function(block: Block, types: Types) -> Reading[None]:
    source = block.source
    yield from source.expect(_FUNCTION)
    name = yield from _read_name(source)
    if (yield from source.peek()) == "\n":
        source.take(source.at + 1)
    block.begin(name)
    block.add("{")
    known, is_first = types.get(name, {}), True
    while True:
        yield from source.skip_space()
        if (yield from source.has(_FUNCTION_END)):
            break
        yield from source.expect(_PARAMETER)
        argument = yield from _read_name(source)
        block.add(f"{'' if is_first else ', '}{json.dumps(argument, ensure_ascii=False)}: ")
        is_first = False
        yield from _read_value(block, known.get(argument) or _STRING)
    source.take(source.at + len(_FUNCTION_END))
    block.add("}")
    block.finish()


def _read_name(source: Source) -> Reading[str]:
    """A name and the > behind it."""
    pieces: list[str] = []
    while (character := (yield from source.peek())) not in ("", ">", "\n") and len(pieces) < _MAX_NAME_LENGTH:
        pieces.append(source.take(source.at + 1))
    if character != ">" or not pieces:
        raise Unreadable("no name")
    source.take(source.at + 1)
    return "".join(pieces).strip(SPACE)


def _read_value(block: Block, types: frozenset[str]) -> Reading[None]:
    """A value up to its end tag. A line break behind the opening tag and one before the closing tag are not its own."""
    source = block.source
    end = END
    if (yield from source.peek()) == "\n":
        source.take(source.at + 1)
        # An empty value may be written with one line break instead of two.
        if not (yield from source.has(END)):
            end = f"\n{END}"
    if types == _STRING:
        block.add('"')
        yield from _read_up_to(source, end, lambda piece: block.add(json_inside(piece)))
        block.add('"')
        return
    pieces: list[str] = []
    yield from _read_up_to(source, end, pieces.append)
    block.add(_value_json("".join(pieces), types))


def _read_up_to(source: Source, end: str, add: Callable[[str], object]) -> Reading[None]:
    """Adds the text up to the first `end` as it comes, and takes that too."""
    while True:
        place = source.text.find(end, source.at)
        if place >= 0:
            add(source.take(place))
            source.take(place + len(end))
            return
        known = len(source.text) - num_held(source.text, end, source.at)
        if known > source.at:
            add(source.take(known))
        if not (yield from source.more()):
            raise Unreadable("a value without an end")


def _value_json(text: str, types: frozenset[str]) -> str:
    """A value as JSON: as it is written, if that is JSON of a type that the schema allows; else a literal of Python,
    which models write too; else a string."""
    text = text if "string" in types else text.strip(SPACE)
    for found in (text.strip(SPACE) if is_json(text) else None, literal_json(text), _WORDS.get(text.lower())):
        if found is not None and types & _json_types(found):
            return found
    return json.dumps(text, ensure_ascii=False)


_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def _json_types(value: str) -> set[str]:
    """Names of the types that a JSON value is of."""
    first = _TYPES_OF_FIRST.get(value[0])
    if first is not None:
        return first
    return {"number"} if re.search(r"[.eE]", value) else {"number", "integer"}
