"""Whether a model can write what a grammar says literally: not every vocabulary has all characters."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from headway.errors import InvalidRequest

_VALUES = frozenset({"const", "enum", "required"})
_NAMES = frozenset({"properties", "dependentRequired", "dependentSchemas"})
_NOTES = frozenset({"title", "description", "$comment", "examples", "default"})
"""Keywords whose texts no answer has."""
_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""Of a regular expression: an escape, or a class of characters, which has others to choose from."""


def unusual_characters(text: str) -> list[str]:
    """The characters beyond ASCII that a grammar's text (wire.Constraint.grammar) says literally, in order."""
    if text.isascii():
        return []
    parts = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    said: set[str] = set()
    for part in parts:
        said.update(part.get("lark_grammar", ""))
        for literal in _literals(part.get("json_schema")):
            said.update(literal)
    return sorted(character for character in said if not character.isascii())


def check_spelling(text: str, can_spell: Callable[[str], bool], param: str) -> None:
    """Raises InvalidRequest for a grammar that says what the model has no tokens for."""
    for character in unusual_characters(text):
        if not can_spell(character):
            raise InvalidRequest(
                f"{param} has the character {character!r} (U+{ord(character):04X}), which this model has no tokens "
                "for: leave it out",
                param=param,
            )


def _literals(schema: Any) -> Iterator[str]:
    """The texts of a schema that an answer may have to have."""
    if isinstance(schema, list):
        for each in schema:
            yield from _literals(each)
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in _VALUES:
            yield json.dumps(value, ensure_ascii=False)
        elif keyword == "pattern" and isinstance(value, str):
            yield _CLASS.sub("", value)
        elif keyword == "patternProperties" and isinstance(value, dict):
            yield from (_CLASS.sub("", pattern) for pattern in value)
            yield from _literals(list(value.values()))
        elif keyword not in _NOTES:
            if keyword in _NAMES and isinstance(value, dict):
                yield from value
                yield from _literals(list(value.values()))
            else:
                yield from _literals(value)
