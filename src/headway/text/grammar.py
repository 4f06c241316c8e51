"""Grammar: what llguidance is given, put together from parts. Text alone: the engine compiles it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JsonSchema = Mapping[str, Any] | bool
Part = str | JsonSchema
"""A Lark grammar, or a JSON schema."""


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
