"""What schemas say of one argument: references that lead to themselves, and schemas that are none."""

from collections.abc import Callable
from typing import Any

import pytest

from headway.errors import InvalidRequest, UnsupportedFeature
from headway.text.tool_calls import Dialect
from headway.text.tool_calls.argument_types import types_of

NUM_LEVELS = 12
WIDE = {f"a{level}": {"anyOf": [{"$ref": f"#/$defs/a{level + 1}"}] * 20} for level in range(NUM_LEVELS)}
WIDE[f"a{NUM_LEVELS}"] = {"type": "string"}  # type: ignore[dict-item]
"""20 to the 12th ways lead to a string."""
ITSELF = {"a0": {"anyOf": [{"$ref": "#/$defs/a0"}] * 20}}


def _tool(schema: Any, definitions: Any, *, strict: bool = False) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": schema}, "$defs": definitions}
    return {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}


def test_a_reference_is_read_once_however_many_ways_lead_to_it() -> None:
    definitions = {name: {"anyOf": branch["anyOf"][:2]} for name, branch in WIDE.items() if "anyOf" in branch}
    shallow = {"a0": {"anyOf": [{"$ref": "#/$defs/s"}, {"type": "null"}]}, "s": {"type": "string"}}
    assert types_of({"$ref": "#/$defs/a0", "$defs": shallow}) == {"string", "null"}
    assert types_of({"$ref": "#/$defs/a0", "$defs": ITSELF}) == frozenset()
    assert types_of({"$ref": "#/$defs/a0", "$defs": definitions}) == frozenset()


@pytest.mark.parametrize("name", ["qwen3_coder", "pythonic"])
@pytest.mark.parametrize("definitions", [WIDE, ITSELF], ids=["wide", "itself"])
def test_no_schema_multiplies_by_its_references(
    make_dialect: Callable[..., Dialect], name: str, definitions: Any
) -> None:
    tools = [_tool({"$ref": "#/$defs/a0"}, definitions)]
    dialect = make_dialect(name)
    assert len(dialect.grammar(tools).text()) < 20_000
    dialect.make_parser(tools, is_enforced=True)


def test_a_strict_argument_of_too_many_alternatives_is_refused(make_dialect: Callable[..., Dialect]) -> None:
    with pytest.raises(UnsupportedFeature, match=r"argument f\.x has the type of over 256 alternatives"):
        make_dialect("qwen3_coder").grammar([_tool({"$ref": "#/$defs/a0"}, WIDE, strict=True)])


def test_alternatives_in_alternatives_are_all_written(make_dialect: Callable[..., Dialect]) -> None:
    schema = {"anyOf": [{"anyOf": [{"const": "a"}, {"const": "b"}]}, {"type": "integer"}]}
    text = make_dialect("qwen3_coder").grammar([_tool(schema, {})]).text()
    assert "a\\\\n</parameter>" not in text  # a choice is a literal, and its end tag another
    assert all(f'\\"{choice}\\" ' in text for choice in "ab")
    assert '"type":"integer"' in text


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "pythonic"])
@pytest.mark.parametrize(
    "schema",
    [{"allOf": 5}, {"anyOf": {}}, {"enum": 5}, {"type": {}}, {"$ref": "#"}, {"$ref": 5}, {"const": {}}, "string", None],
)
def test_what_is_no_schema_of_an_argument_breaks_nothing(
    make_dialect: Callable[..., Dialect], name: str, schema: Any
) -> None:
    """The compiler says what is wrong with it, or it is left out."""
    dialect = make_dialect(name)
    dialect.grammar([_tool(schema, {})]).text()
    dialect.make_parser([_tool(schema, {})], is_enforced=True)


@pytest.mark.parametrize("argument", ["user name", "", "größe", "a=1, b", "n" * 257])
def test_an_argument_that_pythonic_calls_cannot_name_is_refused(
    make_dialect: Callable[..., Dialect], argument: str
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {argument: {}}}}}
    with pytest.raises(InvalidRequest, match="tool f has an argument named"):
        make_dialect("pythonic").grammar([tool])
