"""StructuredOutputs: what a request says that its answer has to match."""

from typing import Any, Literal

import msgspec

StructureKind = Literal["json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"]


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """One structure that the whole answer matches (behind its reasoning, where there is some).

    text/grammar makes a grammar of it, or says what is wrong with it; core only carries it.
    """

    kind: StructureKind
    value: Any = None
    """json_schema: the schema (an object, or true); regex and grammar: text; choice: a list of texts; structural_tag:
    vLLM's object of structures and triggers; json_object: None."""
    param: str = "structured_outputs"
    """The request's field, for errors."""
