"""What an assistant's message carries beside its text: tool calls with their results behind it, and reasoning.

Doors call this on their callers' messages before anything is rendered, since most templates go by position.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import InvalidRequest

Message = Mapping[str, Any]


def reasoning_fields(reasoning: str) -> dict[str, str]:
    """An assistant's reasoning for templates: they ask for it by one name or the other, or leave it out."""
    return {"reasoning_content": reasoning, "reasoning": reasoning}


def pair_results(messages: Sequence[Message], *, may_end_open: bool = False) -> list[Message]:
    """The messages with each call's result behind it, in the order of the calls; a result without a name has the
    function's.

    An id counts for one assistant's message: a later one may have it again.

    Args:
        messages: with role; an assistant's with tool_calls (id, function.name), a tool's with tool_call_id.
        may_end_open: calls of the last message need no results.

    Raises InvalidRequest that names the message and the id: a call without an id or with another's, a result that
    belongs to no call or comes twice, a call without a result.
    """
    paired: list[Message] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        if message.get("role") == "tool":
            raise _orphan(message, place, ())
        paired.append(message)
        place += 1
        calls = message.get("tool_calls")
        if calls:
            names = _names(calls, place - 1)
            results = _results(messages, place, names)
            place += len(results)
            if not (may_end_open and place == len(messages) and not results):
                _check_whole(names, results, place - len(results) - 1)
            paired += [results[call_id] for call_id in names if call_id in results]
    return paired


def _names(calls: Sequence[Mapping[str, Any]], place: int) -> dict[str, str]:
    """Functions by the ids of their calls, in order."""
    names: dict[str, str] = {}
    for number, call in enumerate(calls):
        path, call_id = f"messages[{place}].tool_calls[{number}].id", call.get("id")
        if not isinstance(call_id, str) or not call_id:
            raise InvalidRequest(
                f"{path} is missing: each call needs one, and its result has it as tool_call_id", param=path
            )
        if call_id in names:
            raise InvalidRequest(
                f"{path} is {call_id[:64]!r}, which an earlier call of this message has: ids must differ", param=path
            )
        names[call_id] = call["function"]["name"]
    return names


def _results(messages: Sequence[Message], start: int, names: Mapping[str, str]) -> dict[str, Message]:
    """The results that begin at `start`, by call."""
    results: dict[str, Message] = {}
    for place in range(start, len(messages)):
        message = messages[place]
        if message.get("role") != "tool":
            break
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str) or call_id not in names:
            raise _orphan(message, place, tuple(names))
        if call_id in results:
            path = f"messages[{place}].tool_call_id"
            raise InvalidRequest(
                f"{path} is {call_id[:64]!r}, and an earlier message has that call's result: send one for each call",
                param=path,
            )
        results[call_id] = message if message.get("name") else {**message, "name": names[call_id]}
    return results


def _check_whole(names: Mapping[str, str], results: Mapping[str, Message], place: int) -> None:
    missing = [call_id for call_id in names if call_id not in results]
    if missing:
        raise InvalidRequest(
            f"messages[{place}].tool_calls has the call {missing[0][:64]!r}, and no message of role tool behind it has "
            "its result: send one for each call, an error's text if there is nothing else",
            param=f"messages[{place}].tool_calls",
        )


def _orphan(message: Message, place: int, known: Sequence[str]) -> InvalidRequest:
    path, call_id = f"messages[{place}].tool_call_id", message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        return InvalidRequest(f"{path} is missing: it names the call whose result this is", param=path)
    calls = f"has the calls {', '.join(repr(each[:64]) for each in known[:8])}" if known else "made no calls"
    return InvalidRequest(
        f"{path} is {call_id[:64]!r}, and the message of the assistant before it {calls}: results stand right behind "
        "the message that called",
        param=path,
    )
