"""What of a JSON schema is refused before it is compiled: sizes whose cost nothing bounds later, and what is no JSON.

Counts and lengths are of the schema's text; llguidance's own limits (grammar_compiler) bound what it makes of them.
"""

import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from headway.errors import InvalidRequest

MAX_DEPTH = 100
"""Levels of a schema."""
MAX_VALUES = 50_000
"""Objects, lists, texts and numbers in it."""
MAX_TEXT = 4096
"""Characters of a text that an answer may have to repeat: a choice, a const, an entry of an enum, a property's name."""
MAX_PATTERN = 8192
"""Characters of a regular expression."""
MAX_QUANTIFIERS = 1000
"""? * + and {...} of a regular expression, whose cost grows with their square."""
MAX_STEP = 10_000
"""Of multipleOf, its decimal point left out: an automaton has so many states."""

_QUANTIFIER = re.compile(r"[?*+}]")


def check_schema(schema: object, param: str) -> None:
    """Raises InvalidRequest that names the place and the limit."""
    for num_values, (value, path, depth) in enumerate(_values(schema)):
        place = f"{param}{path}"
        if num_values >= MAX_VALUES:
            raise InvalidRequest(f"{param} has over {MAX_VALUES} values: make the schema smaller", param=param)
        if depth > MAX_DEPTH:
            raise InvalidRequest(
                f"{param} has over {MAX_DEPTH} levels: name inner schemas in $defs and refer to them", param=param
            )
        if isinstance(value, Mapping):
            _check_object(value, place, param)
        elif isinstance(value, str):
            _check_length(value, place, param)
        elif not _is_json(value):
            raise InvalidRequest(f"{place} is {str(value)[:40]}, which is no JSON", param=param)


def check_pattern(pattern: str, place: str, param: str) -> None:
    """Raises InvalidRequest for a regular expression that is over a limit."""
    if len(pattern) > MAX_PATTERN:
        raise InvalidRequest(
            f"{place} is an expression of {len(pattern)} characters, at most {MAX_PATTERN}: make it shorter",
            param=param,
        )
    if (num := len(_QUANTIFIER.findall(pattern))) > MAX_QUANTIFIERS:
        raise InvalidRequest(
            f"{place} repeats or leaves out {num} times, at most {MAX_QUANTIFIERS}: use fewer of ? * + {{}}",
            param=param,
        )


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


def _check_object(value: Mapping[Any, Any], place: str, param: str) -> None:
    for name in value:
        if not isinstance(name, str):
            raise InvalidRequest(f"{place} has the key {str(name)[:40]}; keys are texts", param=param)
        check_text(name, f"a key of {place}", param)
    patterns = value.get("patternProperties")
    for pattern in patterns if isinstance(patterns, Mapping) else ():
        check_pattern(pattern, f"{place}.patternProperties", param)
    step = value.get("multipleOf")
    if isinstance(step, int | float) and not isinstance(step, bool) and math.isfinite(step):
        _check_step(step, f"{place}.multipleOf", param)


def _check_step(step: float, place: str, param: str) -> None:
    digits = int("".join(map(str, Decimal(str(step)).normalize().as_tuple().digits)))
    if abs(step) >= 1:
        digits = max(digits, int(min(abs(step), 1e18)))
    if digits > MAX_STEP:
        raise InvalidRequest(
            f"{place} is {step}; at most {MAX_STEP} is enforced (the decimal point left out)", param=param
        )


def _check_length(value: str, place: str, param: str) -> None:
    if place.endswith(".pattern"):
        check_pattern(value, place, param)
    elif not place.endswith(_ANNOTATIONS):
        check_text(value, place, param)


_ANNOTATIONS = (".description", ".title", ".$comment", ".default")
"""Texts that are not enforced."""


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, list | bool | int) or (isinstance(value, float) and math.isfinite(value))
