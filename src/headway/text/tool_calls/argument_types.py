"""What a tool's schema says of one argument, for forms that do not write all of a call as JSON."""

from collections.abc import Iterable, Mapping
from typing import Any

from headway.text.grammar import JsonSchema
from headway.text.tool_calls.base import Tool

_MAX_DEPTH = 16
"""References that are followed."""
_TYPE_OF = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_DEFINITIONS = ("$defs", "definitions")


def arguments_of(tool: Tool) -> Mapping[str, JsonSchema]:
    """The schemas of the arguments that a tool names and allows, each by itself: what its references name is in it."""
    schema = tool.parameters
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(schema, Mapping) or not isinstance(properties, Mapping):
        return {}
    shared = {name: schema[name] for name in _DEFINITIONS if name in schema}
    allowed = {name: each for name, each in properties.items() if each is not False}
    return {name: {**shared, **each} if isinstance(each, Mapping) else True for name, each in allowed.items()}


def required_of(tool: Tool) -> frozenset[str]:
    """Names of the arguments that may not be left out."""
    required = tool.parameters.get("required") if isinstance(tool.parameters, Mapping) else None
    return frozenset(name for name in required if isinstance(name, str)) if isinstance(required, list) else frozenset()


def resolved(schema: JsonSchema) -> JsonSchema:
    """A schema that is a reference as what it names, with the definitions that it may refer to itself."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        named = _resolve(schema["$ref"], schema)
        if not isinstance(named, Mapping):
            break
        shared = {name: schema[name] for name in _DEFINITIONS if name in schema}
        schema = {**shared, **named}
    return schema


def types_of(schema: JsonSchema) -> frozenset[str]:
    """JSON types (as "type" names them) that a schema allows; empty: it does not say. Each reference is read once."""
    return _types(schema, schema, 0, {})


def _types(schema: object, root: JsonSchema, depth: int, named: dict[str, frozenset[str]]) -> frozenset[str]:
    """named: what is known of references; nothing of one that is being read, so that one to itself ends."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    if "type" in schema:
        types = schema["type"]
        return frozenset(each for each in (types if isinstance(types, list) else [types]) if isinstance(each, str))
    if "const" in schema:
        return _types_of_values([schema["const"]])
    if isinstance(schema.get("enum"), list):
        return _types_of_values(schema["enum"])
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in named:
            named[reference] = frozenset()
            named[reference] = _types(_resolve(reference, root), root, depth + 1, named)
        return named[reference]
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            found = [_types(each, root, depth + 1, named) for each in schema[name]]
            return frozenset().union(*found) if all(found) else frozenset()
    parts = schema.get("allOf")
    for each in parts if isinstance(parts, list) else ():
        if found_one := _types(each, root, depth + 1, named):
            return found_one
    return frozenset()


def _types_of_values(values: Iterable[object]) -> frozenset[str]:
    return frozenset(_TYPE_OF.get(type(value), "null") for value in values)


def _resolve(reference: str, root: JsonSchema) -> object:
    """What "#/$defs/name" names; None if there is nothing."""
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
