"""Tools to call, and what a parser makes of an answer, joined."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headway.text.tool_calls import Dialect


def function(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    """A tool as the API has it."""
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


WEATHER = function(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "metric": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
    description="Weather of a city.",
)
NOW = function("now")
TOOLS = [WEATHER, NOW]


class Answer(NamedTuple):
    """Everything that a parser gave."""

    text: str
    calls: list[tuple[str, str]]
    """Names and arguments."""
    num_unreadable: int
    ids: list[str]


def parse(
    dialect: Dialect,
    pieces: Iterable[str],
    *,
    is_enforced: bool = False,
    is_cut: bool = False,
    tools: Sequence[dict[str, Any]] = TOOLS,
) -> Answer:
    """Pushes the pieces, and checks what holds of any stream: a call's first delta names it, and no other does."""
    parser = dialect.make_parser(tools, is_enforced=is_enforced)
    parsed = [*(parser.push(piece) for piece in pieces), parser.end(is_cut)]
    names: list[str] = []
    arguments: list[str] = []
    ids: list[str] = []
    for delta in (delta for each in parsed for delta in each.calls):
        if delta.id is not None:
            assert delta.index == len(names)
            assert delta.name is not None
            names.append(delta.name)
            ids.append(delta.id)
            arguments.append(delta.arguments)
        else:
            assert delta.index == len(names) - 1
            assert delta.name is None
            assert delta.arguments
            arguments[-1] += delta.arguments
    assert len(set(ids)) == len(ids)
    return Answer(
        "".join(each.text for each in parsed), list(zip(names, arguments, strict=True)), parser.num_unreadable, ids
    )


def parse_anyhow(dialect: Dialect, text: str, **how: Any) -> Answer:
    """An answer that is the same whole, by character, and cut at every offset."""
    whole = parse(dialect, [text], **how)
    cuts = [list(text), *([text[:place], text[place:]] for place in range(1, len(text)))]
    for pieces in cuts:
        cut = parse(dialect, pieces, **how)
        assert cut[:3] == whole[:3], pieces
    return whole
