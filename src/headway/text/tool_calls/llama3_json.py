"""llama3_json: {"name": ..., "parameters": {...}}, ; between several, <|python_tag|> in front or not. Llama 3.x."""

from collections.abc import Sequence
from dataclasses import dataclass

from headway.text.tool_calls.base import Tool
from headway.text.tool_calls.block import Block, Syntax
from headway.text.tool_calls.dialect import GrammarWriter
from headway.text.tool_calls.json_calls import call_head, name_trigger, read_json_call, write_json_calls
from headway.text.tool_calls.source import Reading

_TAG = "<|python_tag|>"
_KEY = "parameters"


@dataclass(frozen=True, slots=True)
class Llama3JsonForm:
    """See Form."""

    markers: tuple[str, ...] = (_TAG,)
    example: str = call_head("function_name", _KEY) + '{"argument": "value"}}'

    def syntax(self, tools: Sequence[Tool]) -> Syntax:
        """Objects that have the name of a tool: without the tag, nothing tells a call from an answer in JSON."""
        return Syntax((_TAG, "{"), _read_block, is_marked=False, is_head=_is_head)

    def trigger(self, tools: Sequence[Tool]) -> str:
        """The beginning of an object with the name of a tool."""
        return name_trigger(tools)

    def write_grammar(self, writer: GrammarWriter, tools: Sequence[Tool], is_parallel: bool) -> None:
        """Objects, a semicolon between them. The templates write no tag in front of them."""
        write_json_calls(writer, tools, _KEY)
        writer.rule("start", 'call ("; " call)*' if is_parallel else "call")


def _is_head(text: str, name: str) -> bool:
    """The trigger is found behind a tag too, which is no part of the grammar."""
    return text.removeprefix(_TAG).lstrip() == call_head(name, _KEY)


def _read_block(block: Block) -> Reading[None]:
    source = block.source
    if (yield from source.skip(_TAG)):
        block.mark()
        yield from source.skip_space()
    while True:
        yield from read_json_call(block)
        yield from source.skip_space()
        if (yield from source.peek()) == ";":
            source.take(source.at + 1)
            yield from source.skip_space()
        if (yield from source.peek()) != "{":
            return
