"""Numbers of a JSON schema that llguidance takes for others: it reads them as 64-bit floats, some a digit off.

And an end that it lets pass: it takes 0 for a number over 0, if that may be at most 0.3 (at most 1, and it does not).
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from headway.errors import InvalidRequest
from headway.text.schema_names import subschemas

_EXACT = ("const", "enum", "multipleOf")
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_FLOAT = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:e([+-]\d+))?")
_MAX_POWER = 308
"""Of ten, as a float."""


def check_numbers(schema: Any, param: str) -> None:
    """Raises InvalidRequest where an answer could have another number than the schema says."""
    for value, path in subschemas(schema):
        _check_open_ends(_bounds(value, schema), f"{param}{path}", param)
        for keyword, number in _misread(value):
            raise InvalidRequest(
                f"{param}{path}.{keyword} is {number}, which can only be enforced as {_shown(number_read(number))}: "
                "give a number of at most 15 digits, or a text",
                param=param,
            )


def _check_open_ends(bounds: Mapping[str, set[float]], place: str, param: str) -> None:
    """Raises InvalidRequest where an end would pass that is a whole number, and less than one from the other end."""
    for sign, open_end, others in ((1, "exclusiveMinimum", _UPPER), (-1, "exclusiveMaximum", _LOWER)):
        for end in bounds.get(open_end, ()):
            for keyword in others:
                for other in bounds.get(keyword, ()):
                    if end == int(end) and 0 < sign * (other - end) < 1:
                        raise InvalidRequest(
                            f"{place} has {open_end} {end} beside {keyword} {other}, where {end} would pass: give "
                            f"{_CLOSED[open_end]}, the last number that may be",
                            param=param,
                        )


_CLOSED = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_JOINED = ("allOf", "anyOf", "oneOf")
"""Keywords of schemas that are taken together with the one they stand in, as the one of $ref is."""
_MAX_JOINED = 16
"""Schemas that are looked at for one: a caller chooses how they refer to each other."""


def _bounds(schema: Mapping[str, Any], root: Any) -> dict[str, set[float]]:
    """A schema's own and those of what is taken together with it, by keyword; none where only integers may be."""
    found: dict[str, set[float]] = {}
    waiting = deque([schema])
    for _ in range(_MAX_JOINED):
        if not waiting:
            break
        value = waiting.popleft()
        if value.get("type") == "integer":
            return {}
        for keyword in (*_LOWER, *_UPPER):
            if isinstance(bound := value.get(keyword), int | float) and not isinstance(bound, bool):
                found.setdefault(keyword, set()).add(bound)
        for keyword in _JOINED:
            if isinstance(joined := value.get(keyword), list):
                waiting.extend(each for each in joined if isinstance(each, dict))
        if isinstance(named := _referred(value.get("$ref"), root), dict):
            waiting.append(named)
    return found


def _referred(reference: object, root: Any) -> Any:
    """What #/$defs/NAME means in a schema; None: nothing, or another kind of reference."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found = root
    for part in reference.removeprefix("#/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def leave_out_misread(schema: Any) -> Any:
    """The schema without the keywords whose numbers would be others."""
    if not any(True for value, _ in subschemas(schema) for _ in _misread(value)):
        return schema
    if isinstance(schema, list):
        return [leave_out_misread(each) for each in schema]
    left_out = {keyword for keyword, _ in _misread(schema)}
    return {name: leave_out_misread(each) for name, each in schema.items() if name not in left_out}


def number_read(number: float) -> float:
    """What serde_json makes of a number as Python writes it, as llguidance takes it: digits as one float, times or by a
    power of ten as another; and integers as floats."""
    found = None if isinstance(number, int) else _FLOAT.fullmatch(repr(number))
    if found is None:
        return _as_integer(number)
    sign, whole, fraction, exponent = found.groups("")
    value, power = float(int(whole + fraction)), int(exponent or 0) - len(fraction)
    while power < -_MAX_POWER:
        value, power = value / 1e308, power + _MAX_POWER
    value = value * float(f"1e{power}") if power >= 0 else value / float(f"1e{-power}")
    return -value if sign else value


def _misread(schema: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """A schema's own numbers that are taken for others, and would let a wrong one pass; with their keywords."""
    for keyword, number in _numbers(schema):
        taken_for = number_read(number)
        is_tighter = taken_for > number if keyword in _LOWER else keyword in _UPPER and taken_for < number
        if taken_for != number and not is_tighter:
            yield keyword, number


def _as_integer(number: float) -> float:
    """An integer is limited to 63 bits and a sign, behind its way through a float."""
    return max(-(2**63), min(int(float(number)), 2**63 - 1)) if isinstance(number, int) else number


def _numbers(schema: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for keyword in (*_EXACT, *_LOWER, *_UPPER):
        waiting = [schema.get(keyword)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield keyword, value
            elif isinstance(value, dict) and keyword in _EXACT:
                waiting.extend(value.values())
            elif isinstance(value, list) and keyword in _EXACT:
                waiting.extend(value)


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else format(Decimal(repr(number)), "f")
