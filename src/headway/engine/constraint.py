"""OutputConstraint: what one output has to match, followed token by token; see headway_wire.Constraint.

    opening | reasoning, free ... reasoning_end | answer
    answer    without a trigger   the grammar, and with its end the output's
              with one            free text, [trigger ... grammar's end], free text, ...

It says which tokens follow without a choice (begin(), accept()) and whether the next one is chosen under a mask. What
it says depends on its tokens alone: not on rows, steps or load.
"""

import re
from enum import Enum
from typing import NamedTuple

import llguidance

import headway_wire as wire
from headway.engine.compiled_grammar import CompiledGrammar
from headway.engine.free_text import Found, FreeText
from headway.errors import InvalidRequest, InvariantBroken
from headway.text.grammar_compiler import check_matcher

PARAM = "structured_outputs"


class Phase(Enum):
    """Where an output is."""

    OPENING = "opening"
    """Nothing but what may become the start of reasoning has come."""
    REASONING = "reasoning"
    FREE = "free"
    """Watched for the trigger."""
    MATCHING = "matching"
    """The grammar holds: the next token is chosen under a mask."""
    LOOSE = "loose"
    """Nothing constrains the rest."""


class Taken(NamedTuple):
    """What came of a sampled token."""

    token_ids: list[int]
    """It and the tokens that follow without a choice. In place of it those of its beginning, where its end was cut off:
    then none of them is the sampled one."""
    is_sampled: bool
    """The first of token_ids is the one that was sampled."""
    is_complete: bool
    """The output ends with them (stop)."""


class OutputConstraint:
    """Of one sequence; a method's call is a step on the way.

    Args:
        compiled: done, without an error.
        forces: tokens that the grammar leaves no choice about are told at once, and not sampled one by one.
    """

    def __init__(self, constraint: wire.Constraint, compiled: CompiledGrammar, *, forces: bool) -> None:
        if compiled.tokens is None:
            raise InvariantBroken("a constraint is followed before its grammar is compiled")
        self.compiled = compiled
        self.phase = Phase.LOOSE
        self.matcher: llguidance.LLMatcher | None = None
        """Where the output is in the grammar, while that holds."""
        self._constraint = constraint
        self._tokens = compiled.tokens
        self._trigger = re.compile(constraint.trigger) if constraint.trigger else None
        self._last_trigger = re.compile(constraint.last_trigger) if constraint.last_trigger else None
        self._forces = forces
        self._free = FreeText(self._tokens.bytes_of)
        self._begun = b""
        """While it is OPENING: what has come, without white space before it."""
        self._num_reasoning_tokens = 0
        self._num_matches = 0
        self._is_last = False
        """What is matched is the last of the output."""

    @property
    def needs_mask(self) -> bool:
        """Whether the next token is chosen under the matcher's mask."""
        return self.phase is Phase.MATCHING

    def begin(self) -> Taken:
        """What the output begins with; called once, first. is_sampled is False."""
        ids = self._tokens.encode(self._constraint.opening) if self._constraint.opening else []
        if not self._constraint.reasoning_end:
            return Taken([*ids, *self._answer()], False, self._is_complete)
        self.phase = Phase.OPENING if self._constraint.reasoning_start else Phase.REASONING
        for token_id in ids:
            self._free.push(token_id)
        self._num_reasoning_tokens = len(ids)
        return Taken([*ids, *self._end_reasoning_in_time()], False, self._is_complete)

    def accept(self, token_id: int) -> Taken:
        """Goes on by a sampled token. Raises InvalidRequest where the grammar cannot be followed any further."""
        match self.phase:
            case Phase.MATCHING:
                return Taken([token_id, *self._match([token_id])], True, self._is_complete)
            case Phase.OPENING:
                return self._accept_opening(token_id)
            case Phase.REASONING:
                return self._accept_reasoning(token_id)
            case Phase.FREE:
                return Taken([token_id, *self._accept_free(token_id)], True, self._is_complete)
            case Phase.LOOSE:
                return Taken([token_id], True, False)

    @property
    def _is_complete(self) -> bool:
        """The grammar is at its end, and nothing comes behind it."""
        return self.phase is Phase.MATCHING and self.matcher is not None and self.matcher.is_stopped()

    def _accept_opening(self, token_id: int) -> Taken:
        """Reasoning begins with its start; all else is the answer's."""
        start = self._constraint.reasoning_start.encode()
        self._begun = (self._begun + self._tokens.bytes_of(token_id)).lstrip()
        if self._begun.startswith(start):
            self.phase = Phase.REASONING
            return self._accept_reasoning(token_id)
        if start.startswith(self._begun):
            self._free.push(token_id)
            return Taken([token_id], True, False)
        self.phase = Phase.FREE
        return Taken([token_id, *self._accept_free(token_id)], True, self._is_complete)

    def _accept_reasoning(self, token_id: int) -> Taken:
        self._num_reasoning_tokens += 1
        self._free.push(token_id)
        found = self._free.find(self._constraint.reasoning_end)
        if found is None:
            return Taken([token_id, *self._end_reasoning_in_time()], True, self._is_complete)
        rest = found.rest.lstrip()
        if not rest or self._trigger is not None or not self._constraint.grammar:
            return Taken([token_id, *self._answer(found.rest)], True, self._is_complete)
        matcher = self._begin_match()
        if (ids := self._accepted(matcher, self._tokens.encode_bytes(rest))) is not None:
            self.phase = Phase.MATCHING
            return Taken([token_id, *self._match(ids)], True, self._is_complete)
        spelling = self._tokens.bytes_of(token_id)
        cut = self._tokens.encode_bytes(spelling[: len(spelling) - len(found.rest)])
        return Taken([*cut, *self._answer()], False, self._is_complete)

    def _end_reasoning_in_time(self) -> list[int]:
        """The end of the reasoning, where no more of it is wanted."""
        limit = self._constraint.max_reasoning_tokens
        if limit is None or self._num_reasoning_tokens < limit:
            return []
        return [*self._tokens.encode(self._constraint.reasoning_end), *self._answer()]

    def _answer(self, rest: bytes = b"") -> list[int]:
        """The answer begins, with what a token before it had more. What follows without a choice."""
        if self._trigger is not None:
            return self._be_free(rest)
        if not self._constraint.grammar:
            self.phase = Phase.LOOSE
            return []
        self._begin_match()
        return self._match([])

    def _be_free(self, rest: bytes = b"") -> list[int]:
        self.phase = Phase.FREE
        self.matcher = None
        self._free = FreeText(self._tokens.bytes_of)
        if not rest:
            return []
        self._free.push_bytes(rest)
        return self._look()

    def _accept_free(self, token_id: int) -> list[int]:
        self._free.push(token_id)
        return self._look()

    def _look(self) -> list[int]:
        """Whether a trigger has come, with which the grammar can begin."""
        if self._trigger is None:
            raise InvariantBroken("free text is watched without a trigger")
        for found in self._free.search(self._trigger):
            ids = self._accepted(self._begin_match(), self._ids_of(found))
            if ids is not None:
                self._is_last = self._ends_output(ids)
                return self._match(ids)
        self.phase, self.matcher = Phase.FREE, None
        return []

    def _ends_output(self, ids: list[int]) -> bool:
        """Whether a match that begins with these tokens is the last, by what it begins with."""
        if self._last_trigger is None:
            return False
        return self._last_trigger.match(b"".join(map(self._tokens.bytes_of, ids)).decode(errors="replace")) is not None

    def _ids_of(self, found: Found) -> list[int]:
        return [*(self._tokens.encode_bytes(found.head) if found.head else ()), *found.token_ids]

    def _begin_match(self) -> llguidance.LLMatcher:
        if self.compiled.matcher is None:
            raise InvariantBroken("a constraint without a grammar matches nothing")
        self.phase = Phase.MATCHING
        self.matcher = self.compiled.matcher.deep_copy()
        return self.matcher

    def _accepted(self, matcher: llguidance.LLMatcher, ids: list[int]) -> list[int] | None:
        """The ids, if the matcher takes them all where it is."""
        return ids if matcher.validate_tokens(ids) == len(ids) else None

    def _match(self, token_ids: list[int]) -> list[int]:
        """Goes on in the grammar. What follows without a choice."""
        matcher = self.matcher
        if matcher is None:
            raise InvariantBroken("a grammar is followed that has not begun")
        if token_ids:
            matcher.consume_tokens(token_ids)
        forced: list[int] = []
        if self._forces and not matcher.is_stopped():
            forced = list(matcher.compute_ff_tokens())
            if forced:
                matcher.consume_tokens(forced)
        check_matcher(matcher, PARAM)
        if matcher.is_stopped() and self._trigger is not None:
            self._num_matches += 1
            if self._num_matches != self._constraint.max_matches and not self._is_last:
                return forced + self._be_free()
        return forced


def check_constraint(constraint: wire.Constraint) -> None:
    """Raises InvalidRequest for one that cannot be followed, whatever its grammar says."""
    if constraint.trigger and not constraint.grammar:
        raise InvalidRequest("the constraint has a trigger and no grammar: leave it out", param=PARAM)
    if constraint.max_matches is not None and not (constraint.trigger and constraint.max_matches >= 1):
        raise InvalidRequest(
            f"the constraint's max_matches is {constraint.max_matches}; it must be at least 1, beside a trigger",
            param=PARAM,
        )
    if constraint.last_trigger and not constraint.trigger:
        raise InvalidRequest("the constraint has a last_trigger: it needs a trigger too", param=PARAM)
    if constraint.reasoning_start and not (constraint.reasoning_end and constraint.trigger):
        raise InvalidRequest(
            "the constraint has a reasoning_start: it needs a reasoning_end and a trigger too", param=PARAM
        )
    limit = constraint.max_reasoning_tokens
    if limit is not None and (limit < 0 or not constraint.reasoning_end):
        raise InvalidRequest(
            f"the constraint's max_reasoning_tokens is {limit}; it must be at least 0, and needs a reasoning_end",
            param="thinking_token_budget",
        )
    for name, pattern in (("trigger", constraint.trigger), ("last_trigger", constraint.last_trigger)):
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidRequest(f"the constraint's {name} is no regular expression: {error}", param=PARAM) from error


def is_constraining(constraint: wire.Constraint | None) -> bool:
    """Whether it changes anything."""
    if constraint is None:
        return False
    return bool(constraint.grammar or constraint.opening or constraint.max_reasoning_tokens is not None)
