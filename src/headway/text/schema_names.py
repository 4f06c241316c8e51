"""Names of an object's properties in a JSON schema, where llguidance would take a name that is none of those it may be.

It knows a name by its text: "\\u0061" is not "a" to it, though it is to whoever reads the answer, and two of the same
name are two properties.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.errors import InvalidRequest

_VALUES = ("const", "enum", "default", "examples")
"""Keywords whose values are no schemas."""


def has_open_names(schema: Any) -> bool:
    """Whether an object says something of names, and takes others too: then a name may be written in one way alone."""
    return any(
        value.get("additionalProperties", True) is not False
        and any(value.get(keyword) for keyword in ("properties", "required", "patternProperties"))
        for value, _ in _objects(schema)
    )


def check_num_properties(schema: Any, param: str) -> None:
    """Raises InvalidRequest where an answer could reach minProperties by saying a name twice."""
    for value, path in _objects(schema):
        least, required = value.get("minProperties"), value.get("required")
        num_required = len(set(map(str, required))) if isinstance(required, list) else 0
        if isinstance(least, int) and least > num_required + 1:
            raise InvalidRequest(
                f"{param}{path}.minProperties is {least}, at most {num_required + 1} can be enforced beside "
                f"{num_required} required properties: a name could be said twice; name more of them in required",
                param=param,
            )


def _objects(schema: Any) -> Iterator[tuple[Mapping[str, Any], str]]:
    """All objects of a schema that may be schemas, with their paths; without recursion, for a caller chooses the
    depth."""
    waiting: list[tuple[Any, str]] = [(schema, "")]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, Mapping):
            yield value, path
            inner = ((name, each) for name, each in value.items() if name not in _VALUES)
            waiting.extend((each, f"{path}.{str(name)[:64]}") for name, each in inner)
        elif isinstance(value, list):
            waiting.extend((each, f"{path}[{i}]") for i, each in enumerate(value))
