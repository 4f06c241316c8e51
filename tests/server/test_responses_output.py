"""OutputItems: however what a model says is cut into deltas, the items are the same, and the changes join to them."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.output import TextDelta
from headway.core.tools import ToolCallDelta
from headway.server.openai.responses.output import Began, Ended, Gained, OutputItems
from headway.server.openai.responses.schema import FunctionCallItem, MessageItem, OutputItem, ReasoningItem

PIECES = st.lists(
    st.tuples(st.sampled_from(["text", "call"]), st.text(st.sampled_from(" \nab{é"), max_size=6)), max_size=8
)


def deltas_of(reasoning: str, pieces: Sequence[tuple[str, str]], *, by_character: bool) -> list[TextDelta]:
    def cut(text: str) -> list[str]:
        return list(text) if by_character else [text] if text else []

    deltas = [TextDelta(0, "", reasoning=part) for part in cut(reasoning)]
    num_calls = 0
    for kind, text in pieces:
        if kind == "text":
            deltas += [TextDelta(0, part) for part in cut(text)]
            continue
        deltas.append(TextDelta(0, "", tool_calls=(ToolCallDelta(num_calls, f"call_{num_calls}", "f"),)))
        deltas += [TextDelta(0, "", tool_calls=(ToolCallDelta(num_calls, arguments=part),)) for part in cut(text)]
        num_calls += 1
    return [*deltas, TextDelta(0, "", finish_reason="stop")]


def told_of(item: OutputItem) -> tuple[str, str]:
    match item:
        case ReasoningItem() | MessageItem():
            return type(item).__name__, "".join(part.text for part in item.content)
        case FunctionCallItem():
            return item.call_id, item.arguments


def run(deltas: Sequence[TextDelta], *, is_fast: bool) -> list[tuple[str, str]]:
    """The items; what begins, gains and ends is checked. is_fast: try_add() is asked first, as a stream does."""
    items = OutputItems(has_logprobs=False)
    open_id, gained, ended = "", "", []
    for delta in deltas:
        if is_fast and items.try_add(delta):
            gained += delta.text
            continue
        for change in items.take(delta):
            match change:
                case Began(item):
                    assert (open_id, item.status) == ("", "in_progress")
                    open_id, gained = item.id, ""
                case Gained():
                    assert change.item_id == open_id
                    gained += change.text
                case Ended(item):
                    assert (item.id, told_of(item)[1], item.status) == (open_id, gained, "completed")
                    open_id = ""
                    ended.append(item)
    assert (open_id, ended) == ("", items.items())
    return [told_of(item) for item in ended]


def expected(reasoning: str, pieces: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """By hand: texts between calls are one message each; white space alone behind a call is none."""
    told: list[Any] = [("ReasoningItem", reasoning)] if reasoning else []
    text, is_behind_call, num_calls = "", False, 0
    for kind, piece in [*pieces, ("end", "")]:
        if kind == "text":
            text += piece
            continue
        if text.strip() or (text and not is_behind_call):
            told.append(("MessageItem", text))
        text, is_behind_call = "", True
        if kind == "call":
            told.append((f"call_{num_calls}", piece))
            num_calls += 1
    return told or [("MessageItem", "")]


@given(st.text(st.sampled_from("ab \n"), max_size=4), PIECES)
@settings(max_examples=100, deadline=None)
def test_items_are_the_same_however_what_is_said_is_cut(reasoning: str, pieces: list[tuple[str, str]]) -> None:
    told = expected(reasoning, pieces)
    for by_character in (False, True):
        for is_fast in (False, True):
            assert run(deltas_of(reasoning, pieces, by_character=by_character), is_fast=is_fast) == told
