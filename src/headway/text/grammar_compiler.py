"""Grammar text to a matcher, within limits of time and memory: whoever asks for too much gets a 400 with the reason.

Called in a side thread of the process that runs the model; llguidance drops the interpreter lock while it compiles.
"""

import json
import re
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import llguidance

from headway.errors import HeadwayError, InvalidRequest
from headway.text.schema_bounds import check_schema
from headway.text.schema_names import check_num_properties
from headway.text.schema_numbers import check_numbers
from headway.text.schema_search import find_place

MAX_GRAMMAR_BYTES = 256 * 1024
"""Of a grammar's text, schemas included."""
MAX_WORDS = 600
"""Characters of llguidance's own words in an error."""
MAX_LINE = 160
"""... and of a line of them, which may repeat all of an expression."""

ANY_PARAM = "structured_outputs"
"""The field that errors name until the request's own is known: compiled grammars are shared by requests."""

LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=400_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    verbose_errors=False,
)
"""A compiled grammar with its lexer takes at most some 50 MB. A mask of 8,000 items takes 2 ms in a programming
language and 100 ms in an ambiguous grammar: items alone do not bound its time."""

_TERMINAL = re.compile(r"^[ \t]*_*[A-Z]", re.MULTILINE)
"""Where a terminal may be defined: at the beginning of a line."""
_TERMINAL_IN_JSON = re.compile(r"""(?:(?<!\\)(?:\\\\)*\\n|"lark_grammar":")[ \t]*_*[A-Z]""")
"""... of a Lark grammar that is a part."""

_EMBEDDED_SCHEMA = re.compile(r"%json\s*(?=\{)")


def compile_grammar(tokenizer: llguidance.LLTokenizer, text: str, *, param: str = ANY_PARAM) -> llguidance.LLMatcher:
    """A matcher at the grammar's beginning, its first mask computed. Give each sequence a `deep_copy()` of it.

    Args:
        tokenizer: of the model.
        text: wire.Constraint.grammar.
        param: the request's field, for errors.

    Raises InvalidRequest with llguidance's words: what it does not know, what is over the limits, and what nothing can
    match.
    """
    num_bytes = len(text.encode())
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(
            f"{param} makes a grammar of {num_bytes} bytes, at most {MAX_GRAMMAR_BYTES}: make it smaller", param=param
        )
    schemas = list(_schemas(text))
    for schema in schemas:
        check_schema(schema, param)
        if not _is_lenient(schema):
            check_num_properties(schema, param)
            check_numbers(schema, param)
    matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
    for tried in (matcher, _begun(matcher)):
        if tried.is_error():
            told = tried.get_error()
            place = next((place for schema in schemas if (place := find_place(schema, told))), "")
            raise InvalidRequest(f"{param}{place} cannot be enforced: {_words(tried)}", param=param)
    return matcher


def needs_trial(text: str) -> bool:
    """Whether nothing bounds what compiling takes: terminals that name each other multiply, far beyond what is counted
    before (schemas, expressions, repetitions; rules do not). With a single terminal none names another.
    """
    pattern = _TERMINAL_IN_JSON if text.startswith("{") else _TERMINAL
    return next(islice(pattern.finditer(text), 1, None), None) is not None


def seconds_to_begin(matcher: llguidance.LLMatcher) -> float:
    """Processor time of this thread for the masks of a first token and of a second, now that the lexer knows them."""
    begin_s = time.thread_time()
    _begun(matcher.deep_copy())
    return time.thread_time() - begin_s


def _begun(matcher: llguidance.LLMatcher) -> llguidance.LLMatcher:
    """A copy behind its first token: what is too large for a step is known before an answer begins."""
    mask = matcher.compute_bitmask() if not matcher.is_error() else b""
    copy = matcher.deep_copy()
    if matcher.is_error() or matcher.is_stopped() or not any(mask):
        return copy
    token_ids = copy.compute_ff_tokens()[:1] or [_lowest_bit(mask)]
    if copy.consume_tokens(token_ids) and not copy.is_stopped():
        copy.compute_bitmask()
    return copy


def _lowest_bit(mask: bytes) -> int:
    place = next(place for place, byte in enumerate(mask) if byte)
    return place * 8 + (mask[place] & -mask[place]).bit_length() - 1


def check_matcher(matcher: llguidance.LLMatcher, param: str) -> None:
    """Raises InvalidRequest if the matcher is in its error state."""
    if matcher.is_error():
        raise InvalidRequest(f"{param} cannot be enforced any further: {_words(matcher)}", param=param)


def error_of_field(error: HeadwayError, param: str) -> HeadwayError:
    """An error of compile_grammar, of the field that the grammar of this request came from."""
    if not isinstance(error, InvalidRequest) or error.param != ANY_PARAM:
        return error
    return InvalidRequest(error.message.replace(ANY_PARAM, param, 1), param=param)


_IN_OUR_WORDS = {
    "NoExtensionBias": "nothing can match it",
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf": (
        "oneOf of schemas that a value may match at once is not supported: use anyOf"
    ),
}
"""Where llguidance's speak of options that callers have not, or to nobody."""


_UNSPELT = "has no ids for exactly"
"""In what constrained_vocabulary raises, and llguidance tells as a panic of its own."""


def _words(matcher: llguidance.LLMatcher) -> str:
    if _UNSPELT in matcher.get_error():
        return "it leaves no choice but a text that this model has no tokens for"
    words = matcher.get_error().split("<state>")[0].split("<non-verbose/>")[0].strip()
    return "\n".join(line[:MAX_LINE] for line in _IN_OUR_WORDS.get(words, words).splitlines())[:MAX_WORDS]


def _is_lenient(schema: Any) -> bool:
    """What cannot be enforced is left out of it (grammar.json_part)."""
    return isinstance(schema, dict) and bool(schema.get("x-guidance", {}).get("lenient"))


def _schemas(text: str) -> Iterator[Any]:
    """The JSON schemas in a grammar's text, those that stand in Lark too."""
    for part in json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]:
        if "json_schema" in part:
            yield part["json_schema"]
        lark = part.get("lark_grammar", "")
        for found in _EMBEDDED_SCHEMA.finditer(lark):
            try:
                yield json.JSONDecoder().raw_decode(lark, found.end())[0]
            except (ValueError, RecursionError):
                continue  # llguidance says what is wrong with it
