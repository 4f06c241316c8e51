"""plain_json: {"name": ..., "arguments": {...}} alone or in a ```json block, for models whose own form is not known."""

from collections.abc import Sequence
from dataclasses import dataclass

from headway.text.tool_calls.base import Tool
from headway.text.tool_calls.block import Block, Syntax
from headway.text.tool_calls.dialect import GrammarWriter
from headway.text.tool_calls.json_calls import call_head, name_trigger, read_json_call, write_json_calls
from headway.text.tool_calls.source import Reading

_FENCE, _END = "```json", "```"


@dataclass(frozen=True, slots=True)
class PlainJsonForm:
    """See Form."""

    markers: tuple[str, ...] = ()
    example: str = call_head("function_name") + '{"argument": "value"}}'

    def syntax(self, tools: Sequence[Tool]) -> Syntax:
        """Objects that have the name of a tool; a fence around them is dropped."""
        return Syntax((_FENCE, "{"), _read_block, is_marked=False, is_head=_is_head)

    def trigger(self, tools: Sequence[Tool]) -> str:
        """The beginning of an object with the name of a tool."""
        return name_trigger(tools)

    def write_grammar(self, writer: GrammarWriter, tools: Sequence[Tool], is_parallel: bool) -> None:
        """Objects, a line break between them. A fence may be closed behind them that was opened in free text."""
        write_json_calls(writer, tools)
        calls = 'call ("\\n" call)*' if is_parallel else "call"
        writer.rule("start", f'{calls} ("\\n{_END}")?')


def _is_head(text: str, name: str) -> bool:
    """The trigger is found behind a fence too, which is no part of the grammar."""
    return text.removeprefix(_FENCE).lstrip() == call_head(name)


def _read_block(block: Block) -> Reading[None]:
    source = block.source
    is_fenced = yield from source.skip(_FENCE)
    yield from source.skip_space()
    while True:
        yield from read_json_call(block)
        yield from source.skip_space()
        if (yield from source.peek()) != "{":
            break
    # The grammar does not know whether a fence was opened in front of it.
    if is_fenced or block.is_streamed:
        yield from source.skip(_END)
