"""What a matcher takes for a whole answer is valid for its schema, by jsonschema: random schemas, random tokens."""

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
from headway.text.tokenizer import Tokenizer
from text.grammar_walks import compiled, walk

NUM_SCHEMAS = 200
NUM_WALKS = 5


@pytest.fixture
def tokens(make_small: Callable[..., Tokenizer]) -> llguidance.LLTokenizer:
    return make_llguidance_tokenizer(make_small("t r", "tr u", "tru e", '" :', '" ,', ", Ġ", "1 0", "a b"))


def random_schema(rng: random.Random, depth: int = 3) -> Any:
    """A schema of the keywords that people use; a deep one ends in scalars."""
    kinds = [_string, _number, _integer, _enum, _constant]
    if depth:
        kinds += [_object, _object, _array, _any_of, _all_of]
    return rng.choice(kinds)(rng, depth - 1)


def _string(rng: random.Random, depth: int) -> Any:
    low = rng.randrange(3)
    return {"type": "string"} | rng.choice(
        [
            {},
            {"minLength": low, "maxLength": low + rng.randrange(4)},
            {"pattern": rng.choice(["^[a-f]{2,4}$", "^(on|off)$", "x+y", "^\\d+\\.\\d$", "[äöü]"])},
            {"format": rng.choice(["date", "ipv4", "uuid"])},
        ]
    )


def _number(rng: random.Random, depth: int) -> Any:
    low = rng.randrange(-50, 50)
    bounds = {rng.choice(["minimum", "exclusiveMinimum"]): low, rng.choice(["maximum", "exclusiveMaximum"]): low + 20}
    narrow = {"exclusiveMinimum": low / 4, "maximum": low / 4 + rng.choice([0.2, 0.75, 1, 1.5])}
    return {"type": "number"} | rng.choice([{}, bounds, {"minimum": low}, narrow])


def _integer(rng: random.Random, depth: int) -> Any:
    low = rng.randrange(-500, 500)
    return {"type": "integer"} | rng.choice(
        [{}, {"minimum": low, "maximum": low + 17}, {"multipleOf": rng.choice([2, 3, 10])}, {"exclusiveMaximum": low}]
    )


def _enum(rng: random.Random, depth: int) -> Any:
    return {"enum": rng.sample(["a", "b", "ä\n", 1, 2.5, None, True, [], {"a": 1}], rng.randint(1, 4))}


def _constant(rng: random.Random, depth: int) -> Any:
    return rng.choice([{"const": "x"}, {"const": 0}, {"const": None}, {"type": "null"}, {"type": "boolean"}])


def _object(rng: random.Random, depth: int) -> Any:
    names = rng.sample(["a", "b", "cc", "d e", "é", "type"], rng.randint(0, 4))
    schema: dict[str, Any] = {"type": "object", "properties": {name: random_schema(rng, depth) for name in names}}
    if names:
        schema["required"] = rng.sample(names, rng.randint(0, len(names)))
    others = rng.choice([None, False, False, True, {"type": "integer"}])
    if others is not None:
        schema["additionalProperties"] = others
    if rng.random() < 0.2:
        schema["patternProperties"] = {"^x_": random_schema(rng, 0)}
    return schema


def _array(rng: random.Random, depth: int) -> Any:
    low = rng.randrange(3)
    return {"type": "array", "items": random_schema(rng, depth)} | rng.choice(
        [
            {},
            {"minItems": low, "maxItems": low + rng.randrange(3)},
            {"prefixItems": [random_schema(rng, depth)], "minItems": 1},
        ]
    )


def _any_of(rng: random.Random, depth: int) -> Any:
    return {rng.choice(["anyOf", "anyOf", "oneOf"]): [random_schema(rng, depth) for _ in range(rng.randint(1, 3))]}


def _all_of(rng: random.Random, depth: int) -> Any:
    return {"allOf": [random_schema(rng, depth), random_schema(rng, depth)]}


def test_every_text_that_a_matcher_takes_is_valid(tokens: llguidance.LLTokenizer) -> None:
    rng = random.Random(20)
    num_compiled = num_texts = 0
    for _ in range(NUM_SCHEMAS):
        schema = random_schema(rng)
        try:
            matcher = compiled(tokens, "json_schema", schema)
        except InvalidRequest:
            continue  # two that exclude each other, or oneOf of what overlaps
        num_compiled += 1
        validator = jsonschema.Draft202012Validator(json.loads(json.dumps(schema), parse_float=Decimal))
        for _ in range(NUM_WALKS):
            text = walk(tokens, matcher, rng)
            if text is not None:
                num_texts += 1
                answer = json.loads(text, parse_float=Decimal)
                assert validator.is_valid(answer), (schema, text)
    assert num_compiled > 0.7 * NUM_SCHEMAS
    assert num_texts > 0.8 * NUM_WALKS * num_compiled


def test_recursive_schemas_give_valid_trees(tokens: llguidance.LLTokenizer) -> None:
    schema = {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"v": {"type": "integer"}, "l": {"$ref": "#/$defs/tree"}, "r": {"$ref": "#/$defs/tree"}},
                "required": ["v"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    }
    matcher, rng = compiled(tokens, "json_schema", schema), random.Random(3)
    texts = [text for _ in range(20) if (text := walk(tokens, matcher, rng)) is not None]
    for text in texts:
        jsonschema.validate(json.loads(text), schema)
    assert any('"l": {"v"' in text for text in texts)
