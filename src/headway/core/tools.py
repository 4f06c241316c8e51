"""Tools: which of them an answer may or must call, and the calls as they come."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a chat's tools (ChatPrompt.tools) are used. Without tools it has no meaning."""

    choice: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    """Of the tool that must be called, with "named"."""
    names: tuple[str, ...] = ()
    """The tools that may be called; (): all."""
    is_parallel: bool = True
    """False: one call at most."""


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """What a tool call gained. The first one of a call has its id and name; the arguments of all join to the whole."""

    index: int
    """Of the call in its answer."""
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    """A piece of JSON text."""


@dataclass(slots=True)
class ToolCall:
    """A whole call."""

    id: str
    name: str
    arguments: str = ""
    """JSON text, as the model wrote it; cut short where the answer ended with finish_reason length."""


def add_deltas(calls: list[ToolCall], deltas: Iterable[ToolCallDelta]) -> None:
    """Appends what an answer's calls gained."""
    for delta in deltas:
        if delta.index == len(calls):
            calls.append(ToolCall(delta.id or "", delta.name or ""))
        calls[delta.index].arguments += delta.arguments
