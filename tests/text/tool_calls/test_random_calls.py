"""Calls drawn by chance from the grammars: each is read, is of a tool that there is, and valid for its schema."""

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest

from headway.errors import UnsupportedFeature
from headway.text.constrained_vocabulary import make_llguidance_tokenizer
from headway.text.grammar_compiler import compile_grammar
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls import DIALECT_NAMES, Dialect
from tool_answers import function, parse

ENDINGS = ["\n</parameter>", "\n", '"', "'", "]", "}", ")", "</function>", "<parameter=", ", ", "3"]
"""Texts that bring a call to its end sooner than chance does."""

ARGUMENTS: dict[str, Any] = {
    "text": {"type": "string"},
    "unit": {"enum": ["km", "mi", "ñ\n'\""]},
    "mixed": {"enum": ["a", 7, None, {"b": [True]}]},
    "const": {"const": "only"},
    "count": {"type": "integer", "minimum": -3, "maximum": 20},
    "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "yes": {"type": "boolean"},
    "nothing": {"type": "null"},
    "maybe": {"type": ["string", "null"]},
    "optional": {"anyOf": [{"enum": ["x", "y"]}, {"type": "null"}]},
    "either": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}]},
    "referred": {"$ref": "#/$defs/kind"},
    "listed": {"type": "array", "items": {"$ref": "#/$defs/kind"}, "minItems": 1, "maxItems": 3},
    "nested": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}, "maxItems": 2}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "code": {"type": "string", "pattern": "^[A-Z]{2}-(1|2)$"},
    "found": {"type": "string", "pattern": "[0-9]"},
    "short": {"type": "string", "minLength": 2, "maxLength": 4},
    "wrapped": {"allOf": [{"$ref": "#/$defs/kind"}]},
}
DEFINITIONS = {"kind": {"type": "string", "enum": ["first", "second"]}}


def draw_tools(rng: random.Random) -> list[dict[str, Any]]:
    tools = []
    for place in range(rng.randint(1, 3)):
        names = rng.sample(sorted(ARGUMENTS), rng.randint(0, 4))
        parameters = {
            "type": "object",
            "properties": {name: ARGUMENTS[name] for name in names},
            "required": [name for name in names if rng.random() < 0.6],
            "$defs": DEFINITIONS,
        }
        tools.append(function(f"tool_{place}", parameters, strict=False))
    return tools


def draw_call(tokenizer: Tokenizer, matcher: llguidance.LLMatcher, rng: random.Random) -> str | None:
    """None: it came to no end."""
    token_ids: list[int] = []
    endings = [tokenizer.encode(text, add_special_tokens=False) for text in ENDINGS]
    for _ in range(300):
        if matcher.is_stopped() or (matcher.is_accepting() and rng.random() < 0.3):
            break
        rng.shuffle(endings)
        fitting = [ids for ids in endings if matcher.validate_tokens(ids) == len(ids)]
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        usual = [int(token_id) for token_id in np.flatnonzero(bits) if token_id not in tokenizer.end_token_ids]
        if not usual:
            break
        ids = rng.choice(fitting) if fitting and rng.random() < 0.4 else [rng.choice(usual)]
        assert matcher.consume_tokens(ids), matcher.get_error()
        token_ids += ids
    if not matcher.is_accepting():
        return None
    try:
        return b"".join(map(tokenizer.token_bytes, token_ids)).decode()
    except UnicodeDecodeError:
        return None


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_every_call_that_the_grammar_allows_is_valid(
    make_dialect: Callable[..., Dialect], byte_tokenizer: Callable[..., Tokenizer], name: str
) -> None:
    dialect, tokenizer, rng = make_dialect(name), byte_tokenizer(), random.Random(5)
    guidance = make_llguidance_tokenizer(tokenizer)
    num_calls = num_arguments = 0
    for _ in range(60):
        tools = draw_tools(rng)
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        text = draw_call(tokenizer, compile_grammar(guidance, dialect.grammar(tools).text()), rng)
        if text is None:
            continue
        found = parse(dialect, list(text), is_enforced=True, tools=tools)
        assert (found.text, found.num_unreadable) == ("", 0), text
        for called, arguments in found.calls:
            jsonschema.validate(json.loads(arguments), schemas[called])
            num_arguments += len(json.loads(arguments))
        num_calls += len(found.calls)
    assert num_calls > 40
    assert num_arguments > 20


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "pattern": "^a|b$"}, "x", None),
        ({"type": "string", "pattern": "b"}, "abc", "ac"),
        ({"type": "string", "pattern": "^(a|b)\\d$"}, "a7", "c7"),
        ({"type": "string", "pattern": "^[^$]+\\$$"}, "a$", "a"),
        ({"type": "string", "minLength": 3}, "a\né", "é€"),
        ({"type": "string", "maxLength": 2}, "", "abc"),
        ({"type": "string", "enum": ["", "a"]}, "", "b"),
        ({"type": "string", "format": "date"}, "soon", None),
    ],
)
def test_strings_without_quotes_keep_to_what_is_said_of_them(
    make_dialect: Callable[..., Dialect], byte_tokenizer: Callable[..., Tokenizer], schema: Any, right: str, wrong: str
) -> None:
    """wrong None: it cannot be enforced, and is left out of a tool that is not strict."""
    dialect, tokenizer = make_dialect("qwen3_coder"), byte_tokenizer()
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    matcher = compile_grammar(make_llguidance_tokenizer(tokenizer), dialect.grammar([function("f", parameters)]).text())

    def is_accepted(value: str) -> bool:
        text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
        ids = tokenizer.encode(text, add_special_tokens=False)
        return matcher.deep_copy().try_consume_tokens(ids) == len(ids)

    assert is_accepted(right)
    strict = [function("f", parameters, strict=True)]
    if wrong is None:
        with pytest.raises(UnsupportedFeature, match=r"the strict tool's argument f\.a has the (pattern|format)"):
            dialect.grammar(strict)
    else:
        assert not is_accepted(wrong)
        dialect.grammar(strict)
