"""Whether a model can write what a grammar says literally: not every vocabulary has all characters."""

import json
import re
from collections.abc import Callable, Iterator, Set
from typing import Any

from headway.errors import InvalidRequest

_VALUES = frozenset({"const", "enum", "required"})
_NAMES = frozenset({"properties", "dependentRequired", "dependentSchemas"})
_NOTES = frozenset({"title", "description", "$comment", "examples", "default"})
"""Keywords whose texts no answer has."""
_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalItems", "additionalProperties", "anyOf", "oneOf", "allOf", "not"}
)
"""Keywords of a schema, or a list of them."""
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
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


def leave_out_unwritable(text: str, can_spell: Callable[[str], bool]) -> str:
    """The grammar without those values and properties of its schemas that the model has no tokens for, where others
    are left: it says the same of all that the model can write. The same text where nothing is left out."""
    unwritable = {character for character in unusual_characters(text) if not can_spell(character)}
    if not unwritable or not text.startswith("{"):
        return text
    tree = json.loads(text)
    for part in tree["grammars"]:
        if "json_schema" in part:
            part["json_schema"] = _writable(part["json_schema"], unwritable)
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"))


def _writable(schema: Any, unwritable: Set[str]) -> Any:
    """A schema, or schemas; False for one that takes nothing that can be written."""
    if isinstance(schema, list):
        return [_writable(each, unwritable) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = dict(schema)
    if "const" in schema and not _is_writable(schema["const"], unwritable):
        return False
    if isinstance(values := schema.get("enum"), list):
        kept["enum"] = [value for value in values if _is_writable(value, unwritable)]
        if values and not kept["enum"]:
            return False
    if schema.get("type") == "object" and not _is_writable(schema.get("required"), unwritable):
        return False
    for keyword in _SCHEMAS & schema.keys():
        kept[keyword] = _writable(schema[keyword], unwritable)
    for keyword in _NAMED_SCHEMAS & schema.keys():
        if isinstance(named := schema[keyword], dict):
            kept[keyword] = {
                name: _writable(each, unwritable)
                if keyword != "properties" or _is_writable(name, unwritable)
                else False
                for name, each in named.items()
            }
    return kept


def _is_writable(value: Any, unwritable: Set[str]) -> bool:
    return unwritable.isdisjoint(json.dumps(value, ensure_ascii=False))


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
                yield from (name for name, each in value.items() if each is not False)
                yield from _literals(list(value.values()))
            else:
                yield from _literals(value)
