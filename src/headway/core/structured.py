"""StructuredOutputs: what a request says that its answer has to match."""

from typing import Any, Literal

import msgspec

from headway.errors import InvalidRequest

StructureKind = Literal["json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"]


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """One structure that the whole answer matches (behind its reasoning, where there is some).

    text/grammar makes a grammar of it, or says what is wrong with it; core only carries it.
    """

    kind: StructureKind
    value: Any = None
    """json_schema: the schema (an object, true, or its JSON text); regex and grammar: text; choice: a list of texts;
    structural_tag: vLLM's object of structures and triggers, or its JSON text; json_object: None."""
    param: str = "structured_outputs"
    """The request's field, for errors."""


def StructuredOutputsParams(
    *,
    json: Any = None,
    regex: str | None = None,
    choice: list[str] | None = None,
    grammar: str | None = None,
    json_object: bool | None = None,
    structural_tag: Any = None,
    param: str = "structured_outputs",
) -> StructuredOutputs:
    """StructuredOutputs from vLLM's names, this function's own included; exactly one is given.

    Args:
        json: a JSON schema: a mapping, true, or its text.
        regex: for the whole answer.
        choice: the answer is one of these.
        grammar: Lark (with a rule start) or EBNF (with a rule root).
        json_object: True: any JSON object.
        structural_tag: a mapping of structures, each with begin, schema and end, and triggers; or its text.
        param: the request's field, for errors.

    Raises InvalidRequest for none or several.
    """
    given: dict[str, tuple[StructureKind, Any]] = {
        "json": ("json_schema", json),
        "regex": ("regex", regex),
        "choice": ("choice", choice),
        "grammar": ("grammar", grammar),
        "json_object": ("json_object", json_object or None),
        "structural_tag": ("structural_tag", structural_tag),
    }
    found = [name for name, (_, value) in given.items() if value is not None]
    if len(found) != 1:
        what = f"has {' and '.join(found)}" if found else "says nothing"
        raise InvalidRequest(f"{param} {what}; it must have exactly one of {', '.join(given)}", param=param)
    kind, value = given[found[0]]
    return StructuredOutputs(kind=kind, value=None if kind == "json_object" else value, param=f"{param}.{found[0]}")
