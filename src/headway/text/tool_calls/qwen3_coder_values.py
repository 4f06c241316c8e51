"""Grammar of an argument between qwen3_coder's tags: a string as it is, everything else as JSON, by its schema."""

import json
import re
from collections.abc import Mapping
from typing import Any

import llguidance

from headway.errors import UnsupportedFeature
from headway.text.grammar import JsonSchema, json_part, lark_text
from headway.text.tool_calls.argument_types import resolved, types_of
from headway.text.tool_calls.dialect import GrammarWriter

END = "</parameter>"
RAW = ("raw[lazy]", r"/((?s:.*)\n)?<\/parameter>/")
"""A rule: any text up to the first end tag."""
_CLOSE = lark_text(f"\n{END}")
_NO_END = r"~/(?s:.*)\n<\/parameter>(?s:.*)/ & ~/<\/parameter>(?s:.*)/"
MAX_ALTERNATIVES = 256
"""Of one argument."""
_MAX_DEPTH = 8
"""Alternatives in alternatives."""
_BOUNDS = ("minLength", "maxLength")
_INNER_ANCHOR = re.compile(r"\\.|\[(?:\\.|[^]\\])*\]|(\^|\$|\(\?<?[=!]|\\[bB])", re.DOTALL)


def write_value(writer: GrammarWriter, schema: JsonSchema, rule: str, *, strict_name: str | None) -> list[str]:
    """Alternatives for a value, each with the end tag.

    Args:
        writer: gets the rules that they need; RAW has to be one.
        rule: what the names of those begin with.
        strict_name: of an argument of which everything has to be enforced, for errors; None: as much as can be.

    Raises:
        UnsupportedFeature: a keyword of a string cannot be enforced and has to be.
        InvalidRequest: a limit of the schema's is over ours.
    """
    leaves = _leaves(schema)
    if leaves is None:
        if strict_name is not None:
            _refuse(strict_name, f"type of over {MAX_ALTERNATIVES} alternatives")
        return ["raw"]
    found = [
        value
        for place, leaf in enumerate(leaves)
        for value in _write_leaf(writer, leaf, rule if len(leaves) == 1 else f"{rule}_{place}", strict_name)
    ]
    return ["raw"] if "raw" in found else found


def _leaves(schema: JsonSchema) -> list[JsonSchema] | None:
    """The schemas one of which a value has; None: there are too many."""
    leaves: list[JsonSchema] = []
    waiting = [(resolved(schema), 0)]
    while waiting:
        each, depth = waiting.pop()
        branches = _branches(each) if depth < _MAX_DEPTH else []
        if not branches:
            leaves.append(each)
        waiting += [(resolved(branch), depth + 1) for branch in reversed(branches)]
        if len(leaves) + len(waiting) > MAX_ALTERNATIVES:
            return None
    return leaves


def _write_leaf(writer: GrammarWriter, schema: JsonSchema, rule: str, strict_name: str | None) -> list[str]:
    types = types_of(schema) or frozenset({"string"})
    if isinstance(schema, bool) or "string" not in types:
        return [f"{writer.part(f'value_{rule}', json_part(schema, is_lenient=strict_name is None))} {_CLOSE}"]
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and choices:
        texts = (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in choices)
        return [f"{lark_text(f'{text}')} {_CLOSE}" if text else _CLOSE for text in texts]
    if types == {"string"} and (body := _body(schema, strict_name)):
        return [writer.rule(f"RAW_{rule}".upper(), f"({body} & {_NO_END}) {_CLOSE}")]
    return ["raw"]


def _branches(schema: JsonSchema) -> list[JsonSchema]:
    """Alternatives that a schema is nothing but, each with what its references name."""
    if isinstance(schema, bool) or "type" in schema or "enum" in schema or "const" in schema:
        return []
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    for key in ("anyOf", "oneOf", "allOf"):
        found = schema.get(key)
        if isinstance(found, list) and (key != "allOf" or len(found) == 1):
            return [{**shared, **each} for each in found if isinstance(each, Mapping)]
    return []


def _body(schema: Mapping[str, Any], strict_name: str | None) -> str | None:
    """A terminal for a string of which more is said than its type; None: there is nothing, or it is left out."""
    if strict_name is not None and "format" in schema:
        _refuse(strict_name, f"format {schema['format']!r}")
    wanted = []
    if any(key in schema for key in _BOUNDS):
        low, high = schema.get("minLength", 0), schema.get("maxLength", "")
        wanted.append(rf"/(?s:.){{{low},{high}}}/")
    if isinstance(schema.get("pattern"), str):
        pattern = _whole_pattern(schema["pattern"])
        if pattern is not None:
            wanted.append(f"/{pattern}/")
        elif strict_name is not None:
            _refuse(strict_name, f"pattern {schema['pattern']!r}")
    return " & ".join(wanted) or None


def _refuse(name: str, what: str) -> None:
    raise UnsupportedFeature(
        f"the strict tool's argument {name} has the {what[:100]}, which cannot be enforced where strings are written "
        "without quotes, as this model writes them: leave it out, or strict",
        param="tools",
    )


def _whole_pattern(pattern: str) -> str | None:
    """A JSON schema's pattern, which is searched for, as one that matches the whole text; None for one that looks
    around, or has an anchor that is not at its end, or more alternatives than one outside of parentheses."""
    is_begin, is_end = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    core = pattern[is_begin : len(pattern) - is_end]
    if any(found[1] for found in _INNER_ANCHOR.finditer(core)) or _has_outer_choice(core):
        return None
    anything = "(?s:.*)"
    core = llguidance.regex_to_lark(core, "dw")
    return f"{'' if is_begin else anything}({core}){'' if is_end else anything}"


def _has_outer_choice(pattern: str) -> bool:
    depth = 0
    for token in re.findall(r"\\.|\[(?:\\.|[^]\\])*\]|.", pattern, re.DOTALL):
        depth += (token == "(") - (token == ")")
        if token == "|" and depth == 0:
            return True
    return False
