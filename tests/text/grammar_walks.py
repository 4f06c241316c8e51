"""Matchers driven by texts and by chance, without a model."""

import random

import llguidance
import numpy as np

from headway.core.structured import StructuredOutputs, StructureKind
from headway.text.grammar_compiler import compile_grammar
from headway.text.structured import structured_grammar

_CLOSING = frozenset(b'"]}')


def compiled(tokenizer: llguidance.LLTokenizer, kind: StructureKind, value: object) -> llguidance.LLMatcher:
    """The matcher of a structure. Raises InvalidRequest."""
    grammar = structured_grammar(StructuredOutputs(kind=kind, value=value, param=kind))
    return compile_grammar(tokenizer, grammar.text(), param=kind)


def matches(tokenizer: llguidance.LLTokenizer, matcher: llguidance.LLMatcher, text: str) -> bool:
    """Whether the whole text is an answer. The matcher is left as it was."""
    copy = matcher.deep_copy()
    token_ids = tokenizer.tokenize_str(text)
    return copy.try_consume_tokens(token_ids) == len(token_ids) and copy.is_accepting()


def walk(
    tokenizer: llguidance.LLTokenizer, matcher: llguidance.LLMatcher, rng: random.Random, *, max_tokens: int = 400
) -> str | None:
    """A text of allowed tokens, each drawn by chance, that the matcher takes for whole; None: it came to no end."""
    copy, token_ids = matcher.deep_copy(), list[int]()
    end_ids = frozenset(tokenizer.eos_tokens)
    for _ in range(max_tokens):
        if copy.is_stopped() or (copy.is_accepting() and rng.random() < 0.5):
            break
        allowed = _allowed(copy)
        usual = [token_id for token_id in allowed if token_id not in end_ids]
        if not usual:
            break
        closing = [token_id for token_id in usual if _CLOSING.issuperset(tokenizer.decode_bytes([token_id]))]
        token_id = rng.choice(closing if closing and rng.random() < 0.5 else usual)
        assert copy.consume_token(token_id), copy.get_error()
        token_ids.append(token_id)
    return tokenizer.decode_bytes(token_ids).decode() if copy.is_accepting() else None


def _allowed(matcher: llguidance.LLMatcher) -> list[int]:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    allowed: list[int] = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()
    return allowed
