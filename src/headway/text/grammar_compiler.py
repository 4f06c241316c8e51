"""Grammar text to a matcher, within limits of time and memory: whoever asks for too much gets a 400 with the reason.

Called in a side thread of the process that runs the model; llguidance drops the interpreter lock while it compiles.
"""

import llguidance

from headway.errors import InvalidRequest

MAX_GRAMMAR_BYTES = 256 * 1024
"""Of a grammar's text, schemas included."""
MAX_WORDS = 600
"""Characters of llguidance's own words in an error."""

LIMITS = llguidance.LLParserLimits(verbose_errors=False)


def compile_grammar(
    tokenizer: llguidance.LLTokenizer, text: str, *, param: str = "structured_outputs"
) -> llguidance.LLMatcher:
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
    matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
    check_matcher(matcher, param)
    matcher.compute_bitmask()
    check_matcher(matcher, param)
    return matcher


def check_matcher(matcher: llguidance.LLMatcher, param: str) -> None:
    """Raises InvalidRequest if the matcher is in its error state."""
    if matcher.is_error():
        words = matcher.get_error().split("<state>")[0].strip()
        raise InvalidRequest(f"{param} cannot be enforced: {words[:MAX_WORDS]}", param=param)
