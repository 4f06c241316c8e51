"""Grammar: what llguidance is given, put together from parts. Text alone: the engine compiles it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.errors import InvariantBroken
from headway.text.schema_names import has_open_names
from headway.text.schema_numbers import leave_out_misread

JsonSchema = Mapping[str, Any] | bool
Part = str | JsonSchema
"""A Lark grammar, or a JSON schema."""

JSON_SPACING: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space of all JSON that is enforced: one space behind a comma and a colon. A model that may add white space as
it likes can go on adding it for ever."""
_ONE_SPELLING = {"json_allowed_escapes": 'nrbtf\\"'}
"""Without \\u: each text is written in one way. Control characters that need it are not written."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A Lark grammar with a rule `start`, and the parts that it names as @part."""

    lark: str
    parts: Mapping[str, Part] = field(default_factory=dict)

    def text(self) -> str:
        """For wire.Constraint.grammar. The same grammar has the same text: it is what compiled ones are found by."""
        if not self.parts:
            return self.lark
        grammars: list[dict[str, Any]] = [{"name": "main", "lark_grammar": self.lark}]
        for name, part in self.parts.items():
            grammars.append({"name": name, "lark_grammar" if isinstance(part, str) else "json_schema": part})
        return json.dumps({"grammars": grammars}, ensure_ascii=False, separators=(",", ":"))


def json_part(schema: JsonSchema, *, is_lenient: bool = False) -> JsonSchema:
    """A schema as a part of a Grammar: JSON in one fixed spacing.

    Args:
        schema: true takes any value; what it says of x-guidance is left out.
        is_lenient: what cannot be enforced is left out, and oneOf is read as anyOf; else the compiler refuses both.
    """
    if schema is False:
        return False
    keywords = {} if schema is True else dict(leave_out_misread(schema) if is_lenient else schema)
    escapes = _ONE_SPELLING if has_open_names(keywords) else {}
    options = {**JSON_SPACING, **escapes, "lenient": is_lenient, "coerce_one_of": is_lenient}
    return {**keywords, "x-guidance": options}


def lark_text(text: str) -> str:
    """A Lark literal that matches exactly this text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def behind_line_breaks(grammar: Grammar) -> Grammar:
    """What it matches, with up to two line breaks before it: models put them behind their reasoning."""
    parts: dict[str, Part] = {"behind": grammar.lark}
    return Grammar("start: LINE_BREAKS? @behind\nLINE_BREAKS: /\\n{1,2}/", {**parts, **grammar.parts})


def either(first: Grammar, second: Grammar) -> Grammar:
    """What one or the other matches. Their parts must have different names."""
    if shared := first.parts.keys() & second.parts.keys():
        raise InvariantBroken(f"two grammars have a part {min(shared)}")
    parts: dict[str, Part] = {"first": first.lark, "second": second.lark}
    return Grammar("start: @first | @second", {**parts, **first.parts, **second.parts})
