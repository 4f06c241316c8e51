"""What of a JSON schema is refused before it is compiled: sizes whose cost nothing bounds later, and what is no JSON.

Counts and lengths are of the schema's text; llguidance's own limits (grammar_compiler) bound what it makes of them.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from headway.errors import InvalidRequest

MAX_DEPTH = 100
"""Levels of a schema."""
MAX_VALUES = 20_000
"""Objects, lists, texts and numbers in it."""
MAX_TEXT = 4096
"""Characters of a text that an answer may have to repeat: a choice, a const, an entry of an enum, a property's name."""
MAX_PATTERN = 8192
"""Characters of a regular expression."""
MAX_QUANTIFIERS = 1000
"""? * + and {...} of all regular expressions together: their cost grows with the square of it."""
MAX_REPEATS = 10_000
"""In {...}."""
MAX_STEPS = 20_000
"""Of all multipleOf together, their decimal points left out: an automaton has so many states."""

_QUANTIFIER = re.compile(r"[?*+}]")
_REPEATS = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def check_schema(schema: object, param: str) -> None:
    """Raises InvalidRequest that names the place and the limit."""
    totals = _Totals(param)
    for num_values, (value, path, depth) in enumerate(_values(schema)):
        place = f"{param}{path}"
        if num_values >= MAX_VALUES:
            raise InvalidRequest(f"{param} has over {MAX_VALUES} values: make the schema smaller", param=param)
        if depth > MAX_DEPTH:
            raise InvalidRequest(
                f"{param} has over {MAX_DEPTH} levels: name inner schemas in $defs and refer to them", param=param
            )
        if isinstance(value, Mapping):
            totals.add(value, place)
        elif isinstance(value, str):
            if not place.endswith((*_ANNOTATIONS, ".pattern")):
                check_text(value, place, param)
        elif isinstance(value, int | float) and value <= _TOO_LOW and not _is_lower_bound(path):
            raise InvalidRequest(
                f"{place} is {_shown(value)}; the lowest number that an answer may have to be is {_TOO_LOW + 1}",
                param=param,
            )
        elif not _is_json(value):
            raise InvalidRequest(f"{place} is {_shown(value)}, which is no JSON that can be enforced", param=param)


@dataclass(slots=True)
class _Totals:
    """Over all objects of a schema."""

    param: str
    num_quantifiers: int = 0
    num_steps: int = 0

    def add(self, value: Mapping[Any, Any], place: str) -> None:
        """Raises InvalidRequest where a total, or something of the object's own, is over its limit."""
        self.num_quantifiers += sum(check_pattern(each, place, self.param) for each in _patterns(value))
        if self.num_quantifiers > MAX_QUANTIFIERS:
            raise InvalidRequest(_TOO_MANY.format(place=self.param, num=self.num_quantifiers), param=self.param)
        self.num_steps += _num_steps(value)
        if self.num_steps > MAX_STEPS:
            raise InvalidRequest(
                f"{place}.multipleOf is {_shown(value['multipleOf'])}; all of a schema come to at most {MAX_STEPS}, "
                "their decimal points left out",
                param=self.param,
            )
        for name in value:
            if not isinstance(name, str):
                raise InvalidRequest(f"{place} has the key {str(name)[:40]}; keys are texts", param=self.param)
            check_text(name, f"a key of {place}", self.param)


def check_pattern(pattern: str, place: str, param: str) -> int:
    """How often a regular expression repeats or leaves out. Raises InvalidRequest where it is over a limit."""
    if len(pattern) > MAX_PATTERN:
        raise InvalidRequest(
            f"{place} is an expression of {len(pattern)} characters, at most {MAX_PATTERN}: make it shorter",
            param=param,
        )
    for least, most in _REPEATS.findall(pattern):
        if (num := max(map(_bounded, (least, most or "0")))) > MAX_REPEATS:
            raise InvalidRequest(f"{place} repeats {num} times, at most {MAX_REPEATS}: lower it", param=param)
    return check_quantifiers(pattern, place, param)


def check_quantifiers(text: str, place: str, param: str) -> int:
    """How often an expression, or a grammar, repeats or leaves out. Raises InvalidRequest over the limit."""
    num = len(_QUANTIFIER.findall(text))
    if num > MAX_QUANTIFIERS:
        raise InvalidRequest(_TOO_MANY.format(place=place, num=num), param=param)
    return num


_TOO_MANY = (
    "{place} repeats or leaves out at {num} places of its expressions, at most "
    f"{MAX_QUANTIFIERS}: use fewer of ? * + {{{{}}}}"
)


def _bounded(digits: str) -> int:
    """A number whose digits a caller chose."""
    return int(digits[:18])


def check_text(text: str, place: str, param: str) -> None:
    """Raises InvalidRequest for a text that is too long to be forced upon an answer."""
    if len(text) > MAX_TEXT:
        raise InvalidRequest(
            f"{place} is a text of {len(text)} characters, at most {MAX_TEXT}: make it shorter", param=param
        )


def _values(schema: object) -> Iterator[tuple[object, str, int]]:
    """All values with their paths, outer ones first; without recursion, for a caller chooses the depth."""
    waiting: list[tuple[object, str, int]] = [(schema, "", 1)]
    while waiting:
        value, path, depth = waiting.pop()
        yield value, path, depth
        if isinstance(value, Mapping):
            waiting.extend((each, f"{path}.{str(name)[:64]}", depth + 1) for name, each in value.items())
        elif isinstance(value, list):
            waiting.extend((each, f"{path}[{i}]", depth + 1) for i, each in enumerate(value))


def _patterns(value: Mapping[Any, Any]) -> list[str]:
    """The regular expressions that are an object's own."""
    named = value.get("patternProperties")
    found = [value.get("pattern"), *(named if isinstance(named, Mapping) else ())]
    return [each for each in found if isinstance(each, str)]


def _num_steps(value: Mapping[str, Any]) -> int:
    """States of the automaton of a multipleOf; over MAX_STEPS: too many."""
    step = value.get("multipleOf")
    if isinstance(step, int) and not isinstance(step, bool):
        return min(abs(step), MAX_STEPS + 1)
    if not isinstance(step, float) or not math.isfinite(step):
        return 0
    if abs(step) > MAX_STEPS:
        return MAX_STEPS + 1
    return max(int("".join(map(str, Decimal(str(step)).normalize().as_tuple().digits))), int(abs(step)))


_ANNOTATIONS = (".description", ".title", ".$comment", ".default")
"""Texts that are not enforced."""


_TOO_LOW = 512 - 2**63
"""As a float this and all below are -2^63 at most. An integer that may be only that ends the process: llguidance
divides its range without end."""


def _is_lower_bound(path: str) -> bool:
    """Rather than a constant, or a part of one."""
    return path.endswith((".minimum", ".exclusiveMinimum")) and ".const" not in path and ".enum" not in path


def _is_json(value: object) -> bool:
    """A list, or a scalar that others read as it is written: integers have 64 bits."""
    if isinstance(value, int):
        return value.bit_length() <= 64
    return value is None or isinstance(value, list) or (isinstance(value, float) and math.isfinite(value))


def _shown(value: object) -> str:
    return "an integer of over 64 bits" if isinstance(value, int) and value.bit_length() > 64 else str(value)[:40]
