"""Arguments of any kind, written in every form and streamed in any pieces, join to what the model meant."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.text.tool_calls import DIALECT_NAMES, Dialect
from tool_answers import function, parse, parse_anyhow

MakeDialect = Callable[..., Dialect]
Arguments = Mapping[str, Any]

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10) | st.sampled_from(
    [
        "",
        "}",
        '"',
        "\\",
        "\n",
        "]})",
        '{"',
        "'",
        "é☀😀",
        "if (x) { y } ]",
        "<tool_call>",
        "</function>",
        "[ARGS]",
        "\\u0041",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b_2", "Code", "note"]), VALUES, max_size=4)
_TYPE_OF = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def tool_for(arguments: Arguments) -> dict[str, Any]:
    """run, whose schema has the types of these values."""
    properties = {name: {"type": _TYPE_OF.get(type(value), "null")} for name, value in arguments.items()}
    return function("run", {"type": "object", "properties": properties})


def write(name: str, calls: Sequence[Arguments]) -> str:
    """Calls of run as the dialect's models write them."""
    objects = [json.dumps(each, ensure_ascii=False) for each in calls]
    match name:
        case "hermes":
            return "\n".join(f'<tool_call>\n{{"name": "run", "arguments": {each}}}\n</tool_call>' for each in objects)
        case "llama3_json":
            return "; ".join(f'{{"name": "run", "parameters": {each}}}' for each in objects)
        case "mistral":
            return "".join(f"[TOOL_CALLS]run[ARGS]{each}" for each in objects)
        case "qwen3_coder":
            return "\n".join(
                f"<tool_call>\n<function=run>\n{_parameters(each)}</function>\n</tool_call>" for each in calls
            )
        case "pythonic":
            return "[" + ", ".join(f"run({', '.join(f'{k}={v!r}' for k, v in each.items())})" for each in calls) + "]"
        case _:
            return "\n".join(f'{{"name": "run", "arguments": {each}}}' for each in objects)


def _parameters(arguments: Arguments) -> str:
    texts = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
    return "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in texts.items())


@pytest.mark.case("tool-brace-05", "tool-brace-string-10")
@pytest.mark.parametrize("is_enforced", [False, True])
@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_braces_quotes_and_every_other_value_come_through_every_cut(
    make_dialect: MakeDialect, name: str, is_enforced: bool
) -> None:
    arguments = {
        "code": "if (x) { y } ]",
        "note": 'quote " and }\n\\ é😀',
        "id": 42,
        "yes": True,
        "no": None,
        "empty": "",
        "nested": {"a": [{"}": "{"}, []]},
    }
    found = parse_anyhow(
        make_dialect(name), write(name, [arguments]), is_enforced=is_enforced, tools=[tool_for(arguments)]
    )
    assert (found.text, [call for call, _ in found.calls], found.num_unreadable) == ("", ["run"], 0)
    assert json.loads(found.calls[0][1]) == arguments


@pytest.mark.case("tool-brace-05")
@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_any_arguments_in_any_pieces_join_to_the_whole(make_dialect: MakeDialect, name: str) -> None:
    dialect = make_dialect(name)

    @settings(max_examples=120, deadline=None)
    @given(ARGUMENTS, st.booleans(), st.data())
    def check(arguments: Arguments, is_enforced: bool, data: st.DataObject) -> None:
        text = "So: " + write(name, [arguments])
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
        pieces = [text[start:end] for start, end in itertools.pairwise(cuts)]
        found = parse(dialect, pieces, is_enforced=is_enforced, tools=[tool_for(arguments)])
        assert (found.text, len(found.calls), found.num_unreadable) == ("So:", 1, 0)
        assert json.loads(found.calls[0][1]) == arguments
        if name not in ("qwen3_coder", "pythonic"):
            assert found.calls[0][1] == json.dumps(arguments, ensure_ascii=False)

    check()


@pytest.mark.case("tool-parallel-index-04", "AG022", "AG023", "AG024")
@pytest.mark.parametrize("is_enforced", [False, True])
@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_several_calls_come_one_after_another_each_with_its_index_and_id(
    make_dialect: MakeDialect, name: str, is_enforced: bool
) -> None:
    cities: list[Arguments] = [{"a": "Oslo"}, {"a": "Lima"}, {"a": "Oslo"}]
    parser = make_dialect(name).make_parser([tool_for(cities[0])], is_enforced=is_enforced)
    deltas = [delta for character in write(name, cities) for delta in parser.push(character).calls]
    deltas += parser.end(False).calls
    assert [delta.index for delta in deltas] == sorted(delta.index for delta in deltas)
    firsts = [delta for delta in deltas if delta.name is not None]
    assert [(delta.index, delta.name) for delta in firsts] == [(0, "run"), (1, "run"), (2, "run")]
    assert len({delta.id for delta in firsts}) == 3
    assert all(delta.id is None for delta in deltas if delta.name is None)
    for index, arguments in enumerate(cities):
        assert json.loads("".join(delta.arguments for delta in deltas if delta.index == index)) == arguments


@pytest.mark.case("parser-500-05")
def test_what_is_valid_is_a_call_and_the_rest_is_text(make_dialect: MakeDialect) -> None:
    whole = write("hermes", [{}])
    for broken in ("<tool_call>{bad json", "<think>", '<tool_call>{"name": '):
        found = parse_anyhow(make_dialect("hermes"), f"text before {whole} {broken}", tools=[tool_for({})])
        assert (found.text, found.calls) == (f"text before {broken}", [("run", "{}")])
        assert found.num_unreadable == ("<tool_call>" in broken)
