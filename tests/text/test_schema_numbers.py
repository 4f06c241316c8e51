"""A number that a schema says is the one that its answers have, or it is refused: against llguidance itself."""

import itertools
import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import jsonschema
import llguidance
import pytest

from headway.errors import InvalidRequest
from headway.text.constrained_vocabulary import make_llguidance_tokenizer
from headway.text.grammar import Grammar, json_part
from headway.text.grammar_compiler import compile_grammar
from headway.text.schema_numbers import _LOWER, _UPPER, number_read
from headway.text.tokenizer import Tokenizer
from text.grammar_walks import compiled, matches

NUM_NUMBERS = 60


@pytest.fixture
def tokens(make_small: Callable[..., Tokenizer]) -> llguidance.LLTokenizer:
    return make_llguidance_tokenizer(make_small())


def numbers(rng: random.Random) -> list[float]:
    kinds: list[Callable[[], float]] = [
        lambda: rng.uniform(-1, 1),
        lambda: rng.uniform(-1e6, 1e6),
        lambda: rng.uniform(0, 1) * 10 ** rng.randint(-40, 0),
        lambda: round(rng.uniform(-100, 100), 3),
        lambda: rng.randint(-(2**53), 2**53),
        lambda: rng.randint(-(2**63), 2**63 - 1),
        lambda: rng.choice([0.1, 2.5, 1e15, 1e-7, 0.0, 2**63 - 1, 1024 - 2**63, 2**53 + 1, 10**18]),
    ]
    return [kind() for kind in kinds for _ in range(NUM_NUMBERS)]


def enforced(tokens: llguidance.LLTokenizer, value: float) -> Decimal:
    """The one number that llguidance takes for this constant."""
    text = Grammar("start: @answer", {"answer": json_part({"const": [value]})}).text()
    matcher = llguidance.LLMatcher(tokens, text)
    return json.loads(matcher.compute_ff_bytes(), parse_float=Decimal, parse_int=Decimal)[0]


def test_what_llguidance_takes_numbers_for_is_known(tokens: llguidance.LLTokenizer) -> None:
    drawn = numbers(random.Random(7))
    for number in drawn:
        assert enforced(tokens, number) == Decimal(repr(number_read(number))), number
    is_other = [number_read(number) != number for number in drawn]
    assert 40 < sum(is_other) < len(drawn) - 200


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"const": 5567713808534132990},
            ".const is 5567713808534132990, which can only be enforced as 5567713808534132736",
        ),
        ({"enum": [1, {"a": [2**53 + 1]}]}, ".enum is 9007199254740993"),
        ({"type": "number", "multipleOf": -0.9642709583444093}, ".multipleOf is -0.9642709583444093"),
        ({"type": "array", "items": {"minimum": 2**53 + 1}}, ".items.minimum is 9007199254740993"),
        ({"properties": {"const": {"const": -0.9642709583444093}}}, ".properties.const.const is -0.9642709583444093"),
        ({"type": "number", "exclusiveMinimum": -0.09400242545366333 * -1, "maximum": 1}, None),
    ],
)
def test_a_number_that_would_be_another_is_refused(
    tokens: llguidance.LLTokenizer, schema: Any, words: str | None
) -> None:
    if words is None:
        words = ".exclusiveMinimum is 0.09400242545366333, which can only be enforced as 0.09400242545366332"
    with pytest.raises(InvalidRequest) as caught:
        compiled(tokens, "json_schema", schema)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.3}, " has exclusiveMinimum 0 beside maximum 0.3"),
        ({"exclusiveMinimum": 1.0, "exclusiveMaximum": 1.5}, " has exclusiveMinimum 1.0 beside exclusiveMaximum 1.5"),
        ({"items": {"exclusiveMaximum": -1, "minimum": -1.25}}, ".items has exclusiveMaximum -1 beside minimum -1.25"),
        (
            {"$defs": {"a/b": {"maximum": 0.3}}, "$ref": "#/$defs/a~1b", "exclusiveMinimum": 0},
            " has exclusiveMinimum 0 beside maximum 0.3",
        ),
        ({"minimum": -0.5, "allOf": [{"exclusiveMaximum": 0}]}, " has exclusiveMaximum 0 beside minimum -0.5"),
    ],
)
def test_an_end_that_would_pass_is_refused(tokens: llguidance.LLTokenizer, schema: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiled(tokens, "json_schema", schema)
    assert words in caught.value.message
    assert "give m" in caught.value.message


ENDS = (None, -10, -1.5, -1, -0.5, -0.05, 0, 0.05, 0.5, 1, 1.25, 10)


def test_no_number_beyond_an_end_passes(tokens: llguidance.LLTokenizer) -> None:
    """Every pair of ends, open and closed, against every one of them and its neighbours."""
    texts = [text for end in ENDS[1:] for text in (str(end), f"{end}5" if "." in str(end) else f"{end}.5", f"-{end}")]
    texts = [text for text in texts if not text.startswith("--")]
    num_checked = 0
    for low, high, low_word, high_word in itertools.product(ENDS, ENDS, _LOWER, _UPPER):
        ends = {low_word: low, high_word: high}
        schema = {"type": "number"} | {word: end for word, end in ends.items() if end is not None}
        try:
            matcher = compiled(tokens, "json_schema", schema)
        except InvalidRequest:
            continue
        validator = jsonschema.Draft202012Validator(json.loads(json.dumps(schema), parse_float=Decimal))
        for text in texts:
            num_checked += 1
            if matches(tokens, matcher, text):
                assert validator.is_valid(Decimal(text)), (schema, text)
    assert num_checked > 5_000


def test_numbers_of_usual_length_and_the_bounds_of_64_bits_are_enforced(tokens: llguidance.LLTokenizer) -> None:
    for schema, right, wrong in (
        ({"enum": [0.1, 123456789012345, -2.5e-7]}, "0.1", "0.2"),
        (
            {"type": "integer", "minimum": 1024 - 2**63, "maximum": 2**63 - 1},
            "9223372036854775807",
            "9223372036854775808",
        ),
        ({"type": "number", "maximum": -0.09400242545366333 * -1}, "0.05", "0.09400242545366334"),
        ({"properties": {"maximum": {"const": 1}}}, '{"maximum": 1}', '{"maximum": 2}'),
    ):
        matcher = compiled(tokens, "json_schema", schema)
        assert matches(tokens, matcher, right)
        assert not matches(tokens, matcher, wrong)


LOW = -(2**63)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": LOW},
        {"type": "integer", "minimum": LOW, "maximum": LOW + 512},
        {"enum": [0, {"minimum": LOW}]},
        {"type": "integer", "minimum": LOW, "maximum": LOW},
        {"type": "integer", "exclusiveMinimum": -1e300, "exclusiveMaximum": -9.3e18},
        {"allOf": [{"type": "integer", "minimum": LOW}, {"maximum": LOW}]},
    ],
)
def test_integers_below_63_bits_are_refused_before_llguidance_sees_them(
    tokens: llguidance.LLTokenizer, schema: Any
) -> None:
    with pytest.raises(InvalidRequest, match="the lowest number that an answer may have to be is -9223372036854775295"):
        compiled(tokens, "json_schema", schema)


def test_the_lowest_integers_are_enforced(tokens: llguidance.LLTokenizer) -> None:
    lowest = compiled(tokens, "json_schema", {"type": "integer", "minimum": LOW + 1024, "maximum": LOW + 4096})
    assert matches(tokens, lowest, str(LOW + 1024))
    assert not matches(tokens, lowest, str(LOW + 1023))


def test_where_what_cannot_be_enforced_is_left_out_so_are_such_numbers(tokens: llguidance.LLTokenizer) -> None:
    big = 2**53 + 1
    properties = {"id": {"type": "integer", "enum": [big, 7]}, "enum": {"enum": [7]}, "at": {"minimum": big}}
    schema = {"type": "object", "properties": properties, "required": ["id"], "additionalProperties": False}
    part = json_part(schema, is_lenient=True)
    kept = {"id": {"type": "integer"}, "enum": {"enum": [7]}, "at": {}}
    assert part == {**schema, "properties": kept, "x-guidance": part["x-guidance"]}  # type: ignore[index]
    matcher = compile_grammar(tokens, Grammar("start: @a", {"a": part}).text())
    assert matches(tokens, matcher, f'{{"id": {big}, "enum": 7}}')
    usual = {"type": "object", "properties": {"id": {"enum": [1, 0.5]}}}
    assert json_part(usual, is_lenient=True)["properties"] is usual["properties"]  # type: ignore[index]
