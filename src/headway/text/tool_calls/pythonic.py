"""pythonic: a list of calls as Python writes them, [f(a=1, b="x"), g()]. Llama 3.2 and 4, LFM2, which puts it between
<|tool_call_start|> and <|tool_call_end|>."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import InvalidRequest
from headway.text.grammar import JsonSchema, json_part, lark_text
from headway.text.tool_calls.argument_types import arguments_of, required_of, resolved, types_of
from headway.text.tool_calls.base import Tool
from headway.text.tool_calls.block import Block, Syntax
from headway.text.tool_calls.dialect import GrammarWriter
from headway.text.tool_calls.python_literal import read_literal
from headway.text.tool_calls.source import MAX_NAME_LENGTH, Reading, Unreadable

START, END = "<|tool_call_start|>", "<|tool_call_end|>"
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$defs", "definitions"})
"""Keywords that say nothing of a string's text."""
_ARGUMENT_NAME = re.compile(rf"[A-Za-z0-9_.:/-]{{1,{MAX_NAME_LENGTH}}}")
_ESCAPED = re.compile(r"['\\\x00-\x1f]")
_WORDS = {frozenset({"boolean"}): '"True" | "False"', frozenset({"null"}): '"None"'}


@dataclass(frozen=True, slots=True)
class PythonicForm:
    """See Form."""

    has_tags: bool = False
    """The list is between control tokens."""
    markers: tuple[str, ...] = (START, END)

    @property
    def example(self) -> str:
        """See Form."""
        text = '[function_name(argument="value")]'
        return f"{START}{text}{END}" if self.has_tags else text

    def syntax(self, tools: Sequence[Tool]) -> Syntax:
        """Lists that begin with a tool's name: without tags, nothing else tells a call from a list."""
        return Syntax((START, "["), _read_block, is_marked=False, is_head=self._is_head)

    def trigger(self, tools: Sequence[Tool]) -> str:
        """The control token, or a list that begins with a tool's name."""
        if self.has_tags:
            return re.escape(START)
        return rf"\[(?:{'|'.join(re.escape(tool.name) for tool in tools)})\("

    def write_grammar(self, writer: GrammarWriter, tools: Sequence[Tool], is_parallel: bool) -> None:
        """A list; arguments in the order of their schema."""
        writer.rule("QUOTED", r"""/'([^'\\\x00-\x1f]|\\['"\\nrt])*'/""")
        writer.rule("call", *(_write_call(writer, tool, f"f{place}") for place, tool in enumerate(tools)))
        calls = 'call (", " call)*' if is_parallel else "call"
        opening, closing = (f"{writer.marker(START)} ", f" {writer.marker(END)}") if self.has_tags else ("", "")
        writer.rule("start", f'{opening}"[" {calls} "]"{closing}')

    def _is_head(self, text: str, name: str) -> bool:
        return text == f"{START if self.has_tags else ''}[{name}("


def _write_call(writer: GrammarWriter, tool: Tool, rule: str) -> str:
    """Rules of one tool: `rule`_i is the arguments from the i-th on where none is before them, `rule`_i_more else."""
    arguments, required = arguments_of(tool), required_of(tool)
    last = len(arguments)
    if (wrong := next((name for name in arguments if not _ARGUMENT_NAME.fullmatch(name)), None)) is not None:
        raise InvalidRequest(
            f"tool {tool.name} has an argument named {wrong[:64]!r}, which this model's form of calls cannot write: "
            f"use up to {MAX_NAME_LENGTH} of the letters A to Z, digits and _ - . : /",
            param="tools",
        )
    writer.rule(f"{rule}_{last}", '""')
    writer.rule(f"{rule}_{last}_more", '""')
    for place, (name, schema) in enumerate(arguments.items()):
        argument = f"{lark_text(name + '=')} {_write_value(writer, schema, f'{rule}_{place}', tool.is_strict)}"
        follows = f"{rule}_{place + 1}_more"
        without = [] if name in required else [f"{rule}_{place + 1}"]
        writer.rule(f"{rule}_{place}", f"{argument} {follows}", *without)
        writer.rule(f"{rule}_{place}_more", f'", " {argument} {follows}', *(f"{each}_more" for each in without))
    return writer.rule(rule, f'{lark_text(tool.name + "(")} {rule}_0 ")"')


def _write_value(writer: GrammarWriter, schema: JsonSchema, name: str, is_strict: bool) -> str:
    """JSON's values are Python's, but for three words, and for strings in single quotes, as LFM2 writes them.

    Both are allowed where they stand alone: words instead of JSON's, strings beside them if nothing but their type or
    their choices is said of them.
    """
    schema = resolved(schema)
    words = _WORDS.get(types_of(schema))
    if words is not None:
        return f"({words})"
    part = writer.part(f"value_{name}", json_part(schema, is_lenient=not is_strict))
    return f"({' | '.join([part, *_single_quoted(schema)])})"


def _single_quoted(schema: JsonSchema) -> list[str]:
    if isinstance(schema, bool) or types_of(schema) != {"string"}:
        return []
    keys = schema.keys() - _ANNOTATIONS
    choices = schema.get("enum", [schema.get("const")])
    if keys == {"type"}:
        return ["QUOTED"]
    if keys <= {"type", "enum", "const"} and isinstance(choices, list):
        return [lark_text(f"'{each}'") for each in choices if isinstance(each, str) and not _ESCAPED.search(each)]
    return []


def _read_block(block: Block) -> Reading[None]:
    source = block.source
    is_tagged = yield from source.has(START)
    if is_tagged:
        yield from source.expect(START)
        block.mark()
        yield from source.skip_space()
    yield from source.list_of(lambda: _read_call(block))
    if is_tagged:
        yield from source.skip_space()
        yield from source.skip(END)


def _read_call(block: Block) -> Reading[None]:
    source = block.source
    name = yield from source.name()
    if not block.is_known(name):
        raise Unreadable(f"no tool {name!r}")
    yield from source.expect("(")
    block.begin(name)
    block.add("{")
    seen: set[str] = set()
    while True:
        yield from source.skip_space()
        if (yield from source.peek()) == ")":
            break
        argument = yield from source.name()
        if argument in seen:
            raise Unreadable(f"{argument!r} twice")
        yield from source.skip_space()
        yield from source.expect("=")
        yield from source.skip_space()
        block.add(f"{', ' if seen else ''}{json.dumps(argument)}: ")
        seen.add(argument)
        yield from read_literal(source, block.add)
        yield from source.skip_space()
        if (yield from source.peek()) != ")":
            yield from source.expect(",")
    source.take(source.at + 1)
    block.add("}")
    block.finish()
