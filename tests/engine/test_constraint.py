"""What an output has to match where a token spans the end of the reasoning and the beginning of the answer."""

from typing import NamedTuple

import pytest

import headway_wire as wire
from headway.core.sequence import Sequence
from headway.engine.compiled_grammar import CompiledGrammar
from headway.engine.constrained import ConstrainedOutput
from headway.engine.constraint import OutputConstraint
from headway.engine.constraint_tokens import ConstraintTokens
from headway.text.byte_alphabet import CHARACTER_OF_BYTE
from headway.text.grammar_compiler import compile_grammar
from headway.text.source import GgufVocabulary, TextSource
from headway.text.tokenizer import make_tokenizer

END = 0
FIRST_BYTE = 1
SPANNING = 257
"""The token ">7"."""


@pytest.fixture(scope="module")
def tokens() -> ConstraintTokens:
    spelt = ["<end>", *CHARACTER_OF_BYTE.values(), ">7"]
    vocabulary = GgufVocabulary(
        model="gpt2",
        pre="gpt-2",
        tokens=spelt,
        token_types=[3, *[1] * 257],
        merges=["> 7"],
        eos_token_id=END,
        end_token_ids=frozenset({END}),
    )
    return ConstraintTokens(make_tokenizer(TextSource(vocabulary, len(spelt), frozenset({END}))))


def ids_of(text: str) -> list[int]:
    order = list(CHARACTER_OF_BYTE)
    return [FIRST_BYTE + order.index(byte) for byte in text.encode()]


class Told(NamedTuple):
    sequence: list[int]
    """Its tokens."""
    growths: list[tuple[list[int], int, bool, int | None]]
    """Of each sampled token: told, of them forced, whether it is in the output, from where on others are."""
    output: ConstrainedOutput


def follow(tokens: ConstraintTokens, grammar: str, sampled: list[int]) -> Told:
    """What becomes of an output whose reasoning ends with </t>."""
    compiled = CompiledGrammar(grammar, 0.0)
    compiled.tokens, compiled.matcher, compiled.is_done = tokens, compile_grammar(tokens.llguidance, grammar), True
    constraint = OutputConstraint(wire.Constraint(grammar=grammar, reasoning_end="</t>"), compiled, forces=True)
    output = ConstrainedOutput(constraint, constraint.begin(), tells_logprobs=False)
    sequence = Sequence(
        request_id="r",
        choice=0,
        arrival=0,
        arrival_s=0.0,
        token_ids=ids_of("p"),
        num_prompt_tokens=1,
        max_total_tokens=100,
        sampling=wire.Sampling(),
        seed=1,
        end_token_ids=frozenset({END}),
    )
    output.begin(sequence)
    growths = [output.grow(sequence, token_id, None) for token_id in sampled]
    told = [(growth.token_ids, growth.num_forced, growth.is_used, growth.rewritten) for growth in growths]
    return Told(sequence.token_ids, told, output)


def allowed(output: ConstrainedOutput, tokens: ConstraintTokens) -> set[bytes]:
    mask = output.matcher.compute_bitmask()
    return {tokens.bytes_of(token_id) for token_id in range(258) if mask[token_id // 8] >> token_id % 8 & 1}


def test_the_rest_of_a_token_that_the_grammar_refuses_is_taken_back(tokens: ConstraintTokens) -> None:
    thought = ids_of("hm</t")
    told = follow(tokens, "start: /ab[cd]/", [*thought, SPANNING])
    assert told.sequence == ids_of("phm</t>ab"), "the 7 is gone, and what has to come is there"
    assert told.growths[-1] == (ids_of(">ab"), 3, True, len("phm</t"))
    assert told.output.needs_mask
    assert allowed(told.output, tokens) == {b"c", b"d"}


def test_the_rest_of_a_token_that_the_grammar_takes_is_the_answers_beginning(tokens: ConstraintTokens) -> None:
    told = follow(tokens, "start: /[78]ab[cd]/", [*ids_of("hm</t"), SPANNING])
    assert told.sequence == [*ids_of("phm</t"), SPANNING, *ids_of("ab")]
    assert told.growths[-1] == ([SPANNING, *ids_of("ab")], 2, True, len("phm</t"))
    assert allowed(told.output, tokens) == {b"c", b"d"}


def test_a_token_that_ends_with_the_reasoning_is_left_as_it_is(tokens: ConstraintTokens) -> None:
    told = follow(tokens, "start: /[78]a/", ids_of("hm</t>"))
    assert told.sequence == ids_of("phm</t>")
    assert told.growths[-1] == (ids_of(">"), 0, True, None)
    assert allowed(told.output, tokens) == {b"7", b"8"}
