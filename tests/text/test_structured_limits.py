"""What is made to hurt: each is refused with its reason, or compiled and begun within bounds of time and memory.

Times are the processor's own, for compiling, the first masks and the first tokens, over a vocabulary of 49,152 tokens.
"""

import random
import resource
import time
from collections.abc import Callable
from typing import Any

import llguidance
import pytest

from headway.core.structured import StructureKind
from headway.errors import InvalidRequest
from headway.text.constrained_vocabulary import make_llguidance_tokenizer
from headway.text.tokenizer import Tokenizer
from text.grammar_walks import compiled

MAX_S = 2.0
MAX_BYTES = 256 * 2**20
WORKS = None


@pytest.fixture(scope="module")
def tokens(demo: Tokenizer) -> llguidance.LLTokenizer:
    return make_llguidance_tokenizer(demo)


def words_by_chance(num: int) -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices("abcdefghij", k=12)) for _ in range(num)]


def nested(keyword: Callable[[Any], Any], depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = keyword(schema)
    return schema


def doubled(join: Callable[[str], Any], last: Any) -> dict[str, Any]:
    """A schema of 26 names, each of which says the next one twice: 2**25 of the last if it were written out."""
    names = {f"d{i}": join(f"#/$defs/d{i + 1}") for i in range(25)}
    return {"$defs": {**names, "d25": last}, "$ref": "#/$defs/d0"}


def rules(pattern: str, num: int, last: str, first: str = "start: r0") -> str:
    return "\n".join([first, *(pattern.format(i=i, j=i + 1) for i in range(num)), last.format(i=num)])


EXPRESSIONS: list[tuple[str, str | None]] = [
    ("(a+)+$", WORKS),
    ("((a{1,100}){1,100}){1,100}", WORKS),
    ("(a{1,10000}){1,10000}", WORKS),
    ("(a{1,100000}){1,100000}", "repeats 100000 times, at most 10000"),
    ("a{1000000000}", "repeats 1000000000 times"),
    ("a{9999999999999999999999}", "at most 10000"),
    ("((((a{1,50}b){1,50}c){1,50}d){1,50}e){1,50}", WORKS),
    ("(.*a){200}.*", WORKS),
    ("[ab]*a[ab]{20}", WORKS),
    (".*a.{1000}", WORKS),
    ("(a*)*(b*)*(c*)*" * 200, "at 1200 places of its expressions, at most 1000"),
    ("(a*)*(b*)*(c*)*" * 150, "lexer precomputation failed"),
    ("(a*)*(b*)*(c*)*" * 50, WORKS),
    ("a?" * 20_000 + "a" * 20_000, "60000 characters, at most 8192"),
    ("a?" * 900 + "a" * 900, "lexer precomputation failed"),
    ("|".join(words_by_chance(600)), WORKS),
    ("(?i)(" + "|".join(words_by_chance(600)) + ")*", WORKS),
    ("(\\p{L}|\\p{N}|\\w)*\\p{Lu}{100}", WORKS),
    ("(\\p{L}{1,100}\\s){1,100}", WORKS),
    ("(" * 4000 + "a" + ")" * 4000, "nest"),
    (".{0,10000}", WORKS),
    ("\\u0000\\x00", WORKS),
]
SCHEMAS: list[tuple[Any, str | None]] = [
    ({"enum": [f"v{i}" for i in range(15_000)]}, WORKS),
    ({"enum": list(range(15_000))}, WORKS),
    ({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}}, WORKS),
    ({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(450)}}, WORKS),
    ({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(600)}}, "Current row has"),
    (
        {
            "type": "object",
            "properties": {f"p{i}": {"type": "integer"} for i in range(3000)},
            "required": [f"p{i}" for i in range(3000)],
        },
        WORKS,
    ),
    (nested(lambda inner: {"items": inner}, 80), WORKS),
    (nested(lambda inner: {"items": inner}, 100), "over 100 levels"),
    (
        {"allOf": [{"oneOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(3)]} for i in range(8)]},
        "schema too large",
    ),
    (
        {"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(2)]} for i in range(20)]},
        "schema too large",
    ),
    (doubled(lambda ref: {"allOf": [{"$ref": ref}, {"$ref": ref}]}, {"type": "object"}), WORKS),
    (doubled(lambda ref: {"prefixItems": [{"$ref": ref}, {"$ref": ref}]}, {"type": "integer"}), WORKS),
    ({"$ref": "#"}, "nothing can match it"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "nothing can match it"),
    ({"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}}, "$ref": "#/$defs/x"}, WORKS),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}, WORKS),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 10**18}, WORKS),
    ({"type": "string", "minLength": 10**9}, WORKS),
    ({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$", "maxLength": 100}, WORKS),
    ({"type": "integer", "multipleOf": 9973}, WORKS),
    ({"type": "integer", "multipleOf": 999_999}, "multipleOf is 999999"),
    ({"type": "integer", "multipleOf": 10**5000}, "multipleOf is an integer of over 64 bits"),
    (
        {"prefixItems": [{"type": "integer", "multipleOf": 9973 + i} for i in range(50)]},
        r"multipleOf is \d+; all of a schema come to at most 20000",
    ),
    ({"allOf": [{"type": "integer", "multipleOf": step} for step in (4999, 4993, 4987)]}, WORKS),
    ({"patternProperties": {f"^a{i}.*b$": {"type": "integer"} for i in range(30)}}, "not disjoint"),
    ({"prefixItems": [{"type": "string", "pattern": "(a?){100}" * 100} for _ in range(9)]}, "at most 1000"),
    (
        {
            "oneOf": [
                {"properties": {"k": {"const": f"k{i}"}, "v": {"type": "string"}}, "required": ["k", "v"]}
                | {"type": "object"}
                for i in range(200)
            ]
        },
        WORKS,
    ),
]
GRAMMARS: list[tuple[str, str | None]] = [
    ('start: e\ne: e "+" e | /[0-9]+/', WORKS),
    ('start: s\ns: s s | s s s | "a" | ""', WORKS),
    ('start: a*\na: b*\nb: c*\nc: ""', WORKS),
    ("start: start", "nothing can match it"),
    ("start: a\na: b\nb: a", "nothing can match it"),
    ('start: "a"{1,100000}', WORKS),
    ('start: a{1000000000}\na: "x" | "y"', WORKS),
    ('start: a{1,1000}\na: b{1,1000}\nb: c{1,1000}\nc: "x" | "y"', WORKS),
    (rules("R{i}: R{j} R{j}", 40, 'R{i}: "x"', "start: R0"), "too big"),
    (rules("R{i}: R{j} | R{j} /[a-z]/", 40, 'R{i}: "x"', "start: R0"), WORKS),
    (rules("r{i}: r{j} | r{j} r{j}", 300, 'r{i}: "x"'), WORKS),
    ("start: (" + " | ".join(f"/[a-z]*{i}[a-z]*/" for i in range(300)) + ")*", WORKS),
    ("start: T\nT: ~(/.*a.{20}/) & /.*b.{20}/ & ~/.*c.{25}/", "too many expressions"),
    ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "too deeply nested"),
    ('start: "' + "a?" * 1001 + '"', "at most 1000"),
    (rules("r{i} ::= r{j}", 490, 'r{i} ::= "x"', "root ::= r0"), WORKS),
]
CASES: list[tuple[StructureKind, Any, str | None]] = [
    *(("regex", value, words) for value, words in EXPRESSIONS),
    *(("json_schema", value, words) for value, words in SCHEMAS),
    *(("grammar", value, words) for value, words in GRAMMARS),
    ("choice", words_by_chance(9000), WORKS),
    ("choice", ["a" * 4096, "b" * 4096], WORKS),
    ("choice", ["a" * 4000 + str(i) for i in range(80)], "bytes, at most 262144"),
]


@pytest.mark.parametrize(("kind", "value", "words"), CASES, ids=[f"{kind}-{i}" for i, (kind, _, _) in enumerate(CASES)])
def test_what_is_made_to_hurt_is_bounded(
    tokens: llguidance.LLTokenizer, kind: StructureKind, value: Any, words: str | None
) -> None:
    start_s, start_bytes = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if words is WORKS:
        begin(tokens, compiled(tokens, kind, value))
    else:
        with pytest.raises(InvalidRequest, match=words) as caught:
            compiled(tokens, kind, value)
        assert len(caught.value.message) < 1000
    assert time.process_time() - start_s < MAX_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start_bytes < MAX_BYTES


def begin(tokens: llguidance.LLTokenizer, matcher: llguidance.LLMatcher) -> None:
    """Ten tokens, the first that are allowed; a limit that is met on the way ends this matcher alone."""
    end_ids = frozenset(tokens.eos_tokens)
    for _ in range(10):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error() or matcher.is_stopped():
            return
        allowed = [bit for bit in range(2000) if mask >> bit & 1 and bit not in end_ids]
        if not allowed or not matcher.consume_token(allowed[0]):
            return
        matcher.compute_ff_tokens()
