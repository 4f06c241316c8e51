"""Names of an object's properties in a JSON schema, where llguidance would take a name that is none of those it may be.

It knows a name by its text: "\\u0061" is not "a" to it, though it is to whoever reads the answer, and two of the same
name are two properties.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.errors import InvalidRequest

_VALUES = ("const", "enum", "default", "examples")
"""Keywords whose values are no schemas."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords of schemas by names."""


def has_open_names(schema: Any) -> bool:
    """Whether an object says something of names, and takes others too: then a name may be written in one way alone."""
    return any(
        value.get("additionalProperties", True) is not False
        and any(value.get(keyword) for keyword in ("properties", "required", "patternProperties"))
        for value, _ in subschemas(schema)
    )


def check_num_properties(schema: Any, param: str) -> None:
    """Raises InvalidRequest where an answer could reach minProperties by saying a name twice."""
    for value, path in subschemas(schema):
        least, required = value.get("minProperties"), value.get("required")
        num_required = len(set(map(str, required))) if isinstance(required, list) else 0
        if isinstance(least, int) and least > num_required + 1:
            raise InvalidRequest(
                f"{param}{path}.minProperties is {least}, at most {num_required + 1} can be enforced beside "
                f"{num_required} required properties: a name could be said twice; name more of them in required",
                param=param,
            )


def subschemas(schema: Any) -> Iterator[tuple[Mapping[str, Any], str]]:
    """A schema and those in it that are objects, with paths; without recursion, for a caller chooses the depth."""
    waiting: list[tuple[Any, str, bool]] = [(schema, "", False)]
    while waiting:
        value, path, is_named = waiting.pop()
        if isinstance(value, list):
            waiting.extend((each, f"{path}[{i}]", False) for i, each in enumerate(value))
        elif isinstance(value, Mapping):
            if not is_named:
                yield value, path
            for name, each in value.items():
                if is_named or name not in _VALUES:
                    waiting.append((each, f"{path}.{str(name)[:64]}", not is_named and name in _NAMED))
