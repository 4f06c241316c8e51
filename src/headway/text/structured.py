"""From what a request says of its answer (StructuredOutputs) to a grammar, or to an error that says what is wrong.

What only llguidance can tell (a keyword that it does not know, a pattern that is none) is told by the compiler, in the
process that runs the model.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import llguidance
import orjson
from llguidance.gbnf_to_lark import any_to_lark

import headway_wire as wire
from headway.core.structured import StructuredOutputs, StructureKind
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.text.grammar import Grammar, JsonSchema, Part, json_part, lark_text
from headway.text.schema_bounds import check_pattern, check_quantifiers, check_schema, check_text
from headway.text.tokenizer import check_encodable

MAX_CHOICES = 10_000
"""Texts of a choice."""
MAX_GRAMMAR = 32 * 1024
"""Characters of a grammar."""
MAX_STRUCTURES = 128
"""Structures, and triggers, of a structural tag."""
MAX_TRIGGER = 256
"""Characters of a trigger."""
MAX_RULES = 500
"""Rules of an EBNF grammar, which is translated before it is compiled."""

_EBNF_RULE = re.compile(r"^[ \t]*([\w-]+)[ \t]*::=", re.MULTILINE)


def structured_constraint(wanted: StructuredOutputs) -> wire.Constraint:
    """The constraint of an answer without reasoning and tools. Raises InvalidRequest."""
    return wire.Constraint(
        grammar=structured_grammar(wanted).text(), trigger=structured_trigger(wanted), param=wanted.param
    )


def structured_grammar(wanted: StructuredOutputs) -> Grammar:
    """What the answer has to match; with structural_tag, from a trigger's text on.

    Raises InvalidRequest that names the request's field and the place inside it.
    """
    return _MAKERS[wanted.kind](wanted.value, wanted.param)


def structured_trigger(wanted: StructuredOutputs) -> str:
    """wire.Constraint.trigger: empty unless the kind is structural_tag. structured_grammar checks its value first."""
    if wanted.kind != "structural_tag":
        return ""
    return "|".join(map(re.escape, _tag(wanted.value, wanted.param)["triggers"]))


def _json_object(value: object, param: str) -> Grammar:
    return Grammar("start: @answer", {"answer": json_part({"type": "object"})})


def _json_schema(value: object, param: str) -> Grammar:
    return Grammar("start: @answer", {"answer": json_part(_schema(value, param))})


def _regex(value: object, param: str) -> Grammar:
    text = _text(value, param)
    check_pattern(text, param, param)
    return Grammar(f"start: /{llguidance.regex_to_lark(text, 'd')}/")


def _choice(value: object, param: str) -> Grammar:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
        what = f"has {len(value)} texts" if isinstance(value, list) else "is no list"
        raise InvalidRequest(f"{param} {what}; it must be a list of 1 to {MAX_CHOICES} texts", param=param)
    for i, each in enumerate(value):
        check_text(_text(each, f"{param}[{i}]"), f"{param}[{i}]", param)
    return Grammar(f"start: CHOICE\nCHOICE: {' | '.join(map(lark_text, value))}")


def _grammar(value: object, param: str) -> Grammar:
    text = _text(value, param)
    if len(text) > MAX_GRAMMAR:
        raise InvalidRequest(
            f"{param} has {len(text)} characters, at most {MAX_GRAMMAR}: make the grammar smaller", param=param
        )
    if text.lstrip().startswith("{"):
        raise InvalidRequest(
            f"{param} is neither Lark nor EBNF: it begins with a brace; a JSON schema is sent as json", param=param
        )
    check_quantifiers(text, param, param)
    rules = _EBNF_RULE.findall(text)
    if len(rules) > MAX_RULES:
        raise InvalidRequest(
            f"{param} has {len(rules)} EBNF rules, at most {MAX_RULES}: send it as Lark, or a JSON schema", param=param
        )
    twice = next((name for i, name in enumerate(rules) if name in rules[:i]), None)
    if twice is not None:
        raise InvalidRequest(f"{param} has two rules named {twice[:64]}: join them by |", param=param)
    try:
        return Grammar(any_to_lark(text))
    except Exception as problem:  # The translator raises plain Exception, IndexError and RecursionError alike.
        raise InvalidRequest(
            f"{param} is neither Lark (it has no rule start) nor EBNF: {str(problem)[:300]}", param=param
        ) from None


def _structural_tag(value: object, param: str) -> Grammar:
    tag = _tag(value, param)
    triggers = [_text(each, f"{param}.triggers[{i}]") for i, each in enumerate(_list(tag, "triggers", param))]
    if (longest := max(map(len, triggers))) > MAX_TRIGGER:
        raise InvalidRequest(
            f"{param}.triggers has a text of {longest} characters, at most {MAX_TRIGGER}", param=f"{param}.triggers"
        )
    rules, parts = [], dict[str, Part]()
    for i, structure in enumerate(_list(tag, "structures", param)):
        rules.append(_structure_rule(structure, i, tuple(triggers), parts, f"{param}.structures[{i}]"))
    return Grammar("start: " + " | ".join(rules), parts)


def _structure_rule(
    structure: object, place: int, triggers: tuple[str, ...], parts: dict[str, Part], param: str
) -> str:
    if not isinstance(structure, Mapping):
        raise InvalidRequest(f"{param} must be an object of begin, schema and end", param=param)
    begin = _text(structure.get("begin"), f"{param}.begin")
    if not begin.startswith(triggers):
        raise InvalidRequest(f"{param}.begin starts with none of the triggers: add one", param=f"{param}.begin")
    end = structure.get("end", "")
    if not isinstance(end, str):
        raise InvalidRequest(f"{param}.end must be a text", param=f"{param}.end")
    check_text(begin, f"{param}.begin", param)
    check_text(end, f"{param}.end", param)
    parts[f"schema_{place}"] = json_part(_schema(structure.get("schema", True), f"{param}.schema"))
    return f"{lark_text(begin)} @schema_{place}" + (f" {lark_text(end)}" if end else "")


def _tag(value: object, param: str) -> Mapping[str, Any]:
    """The object of a structural tag, given as such or as JSON text."""
    tag = _parsed(value, param)
    if not isinstance(tag, Mapping) or "structures" not in tag or "triggers" not in tag:
        raise UnsupportedFeature(
            f"{param} must be an object of structures, a list of {{begin, schema, end}}, and triggers, a list of texts",
            param=param,
        )
    return tag


def _schema(value: object, param: str) -> JsonSchema:
    """A JSON schema, given as such or as JSON text, within its limits."""
    schema = _parsed(value, param)
    if schema is False or not isinstance(schema, Mapping | bool):
        raise InvalidRequest(f"{param} must be a JSON schema that takes some value: an object, or true", param=param)
    check_schema(schema, param)
    return schema


def _parsed(value: object, param: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as problem:
        raise InvalidRequest(f"{param} is a text that is no JSON: {problem}", param=param) from None


def _list(value: Mapping[str, Any], name: str, param: str) -> list[Any]:
    found = value[name]
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_STRUCTURES:
        raise InvalidRequest(f"{param}.{name} must be a list of 1 to {MAX_STRUCTURES} entries", param=f"{param}.{name}")
    return found


def _text(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        what = "empty" if value == "" else "no text"
        raise InvalidRequest(f"{param} is {what}; it must be a text of at least one character", param=param)
    check_encodable(value, param)
    return value


_MAKERS: Mapping[StructureKind, Callable[[object, str], Grammar]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}
