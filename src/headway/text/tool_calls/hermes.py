"""hermes: <tool_call>, line break, {"name": ..., "arguments": {...}}, line break, </tool_call>. Qwen 2.5 and 3, too."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headway.text.tool_calls.base import Tool
from headway.text.tool_calls.block import Block, Syntax
from headway.text.tool_calls.dialect import GrammarWriter
from headway.text.tool_calls.json_calls import call_head, read_json_call, write_json_calls
from headway.text.tool_calls.source import Reading

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class HermesForm:
    """See Form."""

    markers: tuple[str, ...] = (OPEN, CLOSE)
    example: str = f'{OPEN}\n{call_head("function_name")}{{"argument": "value"}}}}\n{CLOSE}'

    def syntax(self, tools: Sequence[Tool]) -> Syntax:
        """Any block in the tags."""
        return Syntax((OPEN,), read_block, is_marked=True, is_head=_is_head)

    def trigger(self, tools: Sequence[Tool]) -> str:
        """The opening tag."""
        return re.escape(OPEN)

    def write_grammar(self, writer: GrammarWriter, tools: Sequence[Tool], is_parallel: bool) -> None:
        """Blocks, a line break between them."""
        write_json_calls(writer, tools)
        writer.rule("block", f'{writer.marker(OPEN)} "\\n" call "\\n" {writer.marker(CLOSE)}')
        writer.rule("start", 'block ("\\n" block)*' if is_parallel else "block")


def _is_head(text: str, name: str) -> bool:
    return text == f"{OPEN}\n{call_head(name)}"


def read_block(block: Block) -> Reading[None]:
    """One block. Several objects in one, and one whose closing tag is missing, are read too."""
    source = block.source
    yield from source.expect(OPEN)
    while True:
        yield from source.skip_space()
        if block.num_finished and ((yield from source.skip(CLOSE)) or (yield from source.peek()) != "{"):
            return
        yield from read_json_call(block)
