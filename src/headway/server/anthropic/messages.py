"""Anthropic's messages to those that templates know: blocks become text, calls, results and reasoning.

Messages of one role in a row are one. Of a user's the results of tools come first, and answer all calls of the
assistant's message just before; its text follows as a message of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from headway.errors import InvalidRequest
from headway.server.anthropic.blocks import Block, read_blocks
from headway.server.anthropic.schema import MessageIn
from headway.server.body import describe
from headway.text.history import Message, pair_results, reasoning_fields

_ROLES = ("user", "assistant", "system")
_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
_BILLING = "x-anthropic-billing-header:"
"""Begins a block of the system prompt that a client writes for Anthropic's billing: it differs from request to request,
and would have no prompt begin as the one before it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for a template."""

    messages: Sequence[Message]
    is_prefilled: bool
    """The last one, the assistant's, is to be gone on with."""


@dataclass(slots=True)
class _Turns:
    """The messages so far, and the calls that wait for their results."""

    told: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Ids of the calls of the message before."""
    waiting_path: str = ""


def read_conversation(system: object, messages: Sequence[MessageIn]) -> Conversation:
    """The whole conversation. Raises InvalidRequest, UnsupportedFeature, which name the place."""
    if not messages:
        raise InvalidRequest("messages is an empty list; at least one message is needed", param="messages")
    turns = _Turns()
    instructions = _system_text(system)
    if instructions:
        turns.told.append({"role": "system", "content": instructions})
    for role, group in groupby(enumerate(messages), key=lambda each: _role(each[1], each[0])):
        _ADD[role](turns, [block for place, message in group for block in _message_blocks(message, role, place)])
    _check_answered(turns, {})
    is_prefilled = turns.told[-1]["role"] == "assistant" and _take_prefill(turns.told)
    return Conversation(pair_results(turns.told), is_prefilled)


def _take_prefill(told: list[dict[str, Any]]) -> bool:
    """Whether the assistant's last message has text; without any it is left out."""
    last = told[-1]
    if last["content"]:
        return True
    if "reasoning" in last:
        raise InvalidRequest(
            "messages ends with thinking of the assistant, which is nothing to go on from: add text, or leave it out",
            param="messages",
        )
    told.pop()
    if not told:
        raise InvalidRequest("messages has only an empty message of the assistant: ask something", param="messages")
    return False


def _role(message: MessageIn, place: int) -> str:
    if message.role not in _ROLES:
        path = f"messages[{place}].role"
        raise InvalidRequest(f"{path} must be user or assistant; instructions belong into system", param=path)
    return message.role


def _system_text(system: object) -> str:
    if system is None:
        return ""
    texts = [block.text("text") for block in read_blocks(system, "system", _BLOCKS["system"], "system")]
    return "\n".join(text for text in texts if not text.startswith(_BILLING))


def _message_blocks(message: MessageIn, role: str, place: int) -> list[Block]:
    path = f"messages[{place}].content"
    blocks = read_blocks(message.content, path, _BLOCKS[role], f"a message of the role {role}")
    if not blocks and role != "assistant":
        raise InvalidRequest(f"{path} is an empty list; it must have at least one block", param=path)
    return blocks


def _add_system(turns: _Turns, blocks: Sequence[Block]) -> None:
    _check_answered(turns, {})
    turns.told.append({"role": "system", "content": "\n".join(block.text("text") for block in blocks)})


def _add_user(turns: _Turns, blocks: Sequence[Block]) -> None:
    results: dict[str, str] = {}
    texts: list[str] = []
    for block in blocks:
        if block.kind == "text":
            texts.append(block.text("text"))
        elif texts:
            raise InvalidRequest(
                f"{block.path} is a tool_result behind text: results come first in the message behind their calls",
                param=block.path,
            )
        else:
            call_id, text = _result(block, turns, results)
            results[call_id] = text
    _check_answered(turns, results)
    turns.told += [{"role": "tool", "tool_call_id": name, "content": text} for name, text in results.items()]
    if texts:
        turns.told.append({"role": "user", "content": "\n".join(texts)})


def _result(block: Block, turns: _Turns, results: Mapping[str, str]) -> tuple[str, str]:
    path, call_id = f"{block.path}.tool_use_id", block.text("tool_use_id")
    if call_id not in turns.waiting:
        raise InvalidRequest(
            f"{path} is {call_id[:64]!r}, which no tool_use block of the message before has: each tool_result answers "
            "a tool_use of the assistant's message just before it",
            param=path,
        )
    if call_id in results:
        raise InvalidRequest(
            f"{path} is {call_id[:64]!r}, which another tool_result has answered: send one for each call", param=path
        )
    return call_id, _result_text(block)


def _result_text(block: Block) -> str:
    """A failure is told as one: templates know of none."""
    content, is_error = block.fields.get("content"), block.fields.get("is_error")
    if is_error is not None and not isinstance(is_error, bool):
        path = f"{block.path}.is_error"
        raise InvalidRequest(f"{path} is {describe(is_error)}; it must be true or false", param=path)
    read = [] if content is None else read_blocks(content, f"{block.path}.content", ("text",), "a tool_result")
    text = "\n".join(each.text("text") for each in read)
    return f"Error: {text}" if is_error and not text.lower().startswith("error") else text


def _check_answered(turns: _Turns, results: Mapping[str, str]) -> None:
    """All calls of the message before have results."""
    missing = [call_id for call_id in turns.waiting if call_id not in results]
    if missing:
        names = ", ".join(repr(call_id[:64]) for call_id in missing[:8])
        raise InvalidRequest(
            f"{turns.waiting_path} has tool_use blocks without tool_result blocks right behind it: {names}. Each "
            "tool_use block must have its tool_result in the next message",
            param=turns.waiting_path,
        )
    turns.waiting = []


def _add_assistant(turns: _Turns, blocks: Sequence[Block]) -> None:
    _check_answered(turns, {})
    told: dict[str, Any] = {"role": "assistant", "content": _joined(blocks, "text")}
    calls = [_call(block) for block in blocks if block.kind == "tool_use"]
    if calls:
        told["tool_calls"] = calls
        turns.waiting = _call_ids(blocks)
        turns.waiting_path = blocks[0].path.partition(".")[0]
    thinking = _joined(blocks, "thinking")
    if thinking:
        told |= reasoning_fields(thinking)
    turns.told.append(told)


def _joined(blocks: Sequence[Block], kind: str) -> str:
    return "".join(block.text(kind) for block in blocks if block.kind == kind)


def _call(block: Block) -> dict[str, Any]:
    given = block.fields.get("input")
    if not isinstance(given, dict):
        path = f"{block.path}.input"
        raise InvalidRequest(f"{path} is {describe(given)}; it must be an object", param=path)
    function = {"name": block.text("name"), "arguments": given}
    return {"id": block.text("id"), "type": "function", "function": function}


def _call_ids(blocks: Sequence[Block]) -> list[str]:
    ids: list[str] = []
    for block in blocks:
        if block.kind != "tool_use":
            continue
        call_id = block.text("id")
        if not call_id or call_id in ids:
            what = "empty" if not call_id else f"{call_id[:64]!r}, which an earlier call of this message has"
            raise InvalidRequest(f"{block.path}.id is {what}: ids must differ", param=f"{block.path}.id")
        ids.append(call_id)
    return ids


_ADD: Mapping[str, Callable[[_Turns, Sequence[Block]], None]] = {
    "user": _add_user,
    "assistant": _add_assistant,
    "system": _add_system,
}
