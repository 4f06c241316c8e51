"""mistral: [TOOL_CALLS] and a list of {"name", "arguments"}, or, of later models, a name, [ARGS] and the arguments."""

import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.text.grammar import lark_text
from headway.text.tool_calls.base import Tool, arguments_schema
from headway.text.tool_calls.block import Block, Syntax
from headway.text.tool_calls.dialect import GrammarWriter
from headway.text.tool_calls.json_calls import call_head, read_json_call, write_json_calls
from headway.text.tool_calls.json_pieces import read_json
from headway.text.tool_calls.source import Reading, Unreadable

_CALLS, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9


def make_mistral_id() -> str:
    """Mistral's templates take no other: nine letters and digits."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))


def make_mistral_form(template: str) -> "MistralListForm | MistralNameForm":
    """The form that the template writes; what it does not show is taken for the later one."""
    if _ARGS in template or _CALLS not in template:
        return MistralNameForm(has_id=_ID in template)
    return MistralListForm(opening=f"{_CALLS} [" if f"{_CALLS} [" in template else f"{_CALLS}[")


@dataclass(frozen=True, slots=True)
class MistralListForm:
    """Mistral 7B v0.3, Mixtral, Nemo: all calls in one list."""

    opening: str = f"{_CALLS}["
    markers: tuple[str, ...] = (_CALLS,)
    example: str = field(default=f'{_CALLS}[{call_head("function_name")}{{"argument": "value"}}}}]')

    def syntax(self, tools: Sequence[Tool]) -> Syntax:
        """Either form: what the model writes counts."""
        return Syntax((_CALLS,), _read_block, is_marked=True, is_head=self._is_head, make_id=make_mistral_id)

    def trigger(self, tools: Sequence[Tool]) -> str:
        """The control token."""
        return re.escape(_CALLS)

    def write_grammar(self, writer: GrammarWriter, tools: Sequence[Tool], is_parallel: bool) -> None:
        """A list."""
        write_json_calls(writer, tools)
        calls = 'call (", " call)*' if is_parallel else "call"
        opening = lark_text(self.opening.removeprefix(_CALLS))
        writer.rule("start", f'{writer.marker(_CALLS)} {opening} {calls} "]"')

    def _is_head(self, text: str, name: str) -> bool:
        return text == self.opening + call_head(name)


@dataclass(frozen=True, slots=True)
class MistralNameForm:
    """Mistral Small 3.2, Devstral, Ministral 3: each call with a control token of its own."""

    has_id: bool = False
    """An id may be between name and arguments."""
    markers: tuple[str, ...] = (_CALLS, _ID, _ARGS)
    example: str = f'{_CALLS}function_name{_ARGS}{{"argument": "value"}}'

    def syntax(self, tools: Sequence[Tool]) -> Syntax:
        """Either form: what the model writes counts."""
        return Syntax((_CALLS,), _read_block, is_marked=True, is_head=_is_name_head, make_id=make_mistral_id)

    def trigger(self, tools: Sequence[Tool]) -> str:
        """The control token."""
        return re.escape(_CALLS)

    def write_grammar(self, writer: GrammarWriter, tools: Sequence[Tool], is_parallel: bool) -> None:
        """Calls with nothing between them."""
        call_id = ""
        if self.has_id:
            writer.rule("ID", f"/[A-Za-z0-9]{{{_ID_LENGTH}}}/")
            call_id = f"({writer.marker(_ID)} ID)? "
        for place, tool in enumerate(tools):
            arguments = writer.part(f"arguments_{place}", arguments_schema(tool))
            writer.rule(f"call_{place}", f"{lark_text(tool.name)} {call_id}{writer.marker(_ARGS)} {arguments}")
        names = " | ".join(f"call_{place}" for place in range(len(tools)))
        writer.rule("call", f"{writer.marker(_CALLS)} ({names})")
        writer.rule("start", "call+" if is_parallel else "call")


def _is_name_head(text: str, name: str) -> bool:
    head = re.escape(_CALLS + name) + rf"(?:{re.escape(_ID)}[A-Za-z0-9]{{{_ID_LENGTH}}})?" + re.escape(_ARGS)
    return re.fullmatch(head, text) is not None


def _read_block(block: Block) -> Reading[None]:
    source = block.source
    yield from source.expect(_CALLS)
    yield from source.skip_space()
    if (yield from source.peek()) == "{":
        yield from read_json_call(block)
    elif (yield from source.peek()) == "[":
        yield from source.list_of(lambda: read_json_call(block))
    else:
        yield from _read_named(block)


def _read_named(block: Block) -> Reading[None]:
    source = block.source
    name = yield from source.name()
    yield from source.skip_space()
    call_id = None
    if (yield from source.has(_ID)):
        yield from source.expect(_ID)
        call_id = yield from source.name()
        if len(call_id) != _ID_LENGTH or not call_id.isalnum():
            raise Unreadable(f"{call_id!r} is no id")
    if (yield from source.has(_ARGS)):
        yield from source.expect(_ARGS)
    yield from source.skip_space()
    if (yield from source.peek()) != "{":
        raise Unreadable("the arguments are no object")
    block.begin(name, call_id)
    yield from read_json(source, block.add)
    block.finish()
