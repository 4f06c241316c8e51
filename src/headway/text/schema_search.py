"""Where in a JSON schema stands what llguidance's words are about: they name the thing, and not its place."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_UNKNOWN_KEYS = re.compile(r'Unimplemented keys: \["((?:[^"\\]|\\.)*)"')
_POINTER = re.compile(r"Pointer '([^']*)' does not exist")
_RESOURCE = re.compile(r"Resource '([^']*)'")


def find_place(schema: Any, words: str) -> str:
    """A path such as .properties.a.items, of the first object that the words fit; empty: none is found."""
    if (found := _UNKNOWN_KEYS.search(words)) is not None:
        return _first(path for value, path in _objects(schema) if found[1] in value)
    if (found := _POINTER.search(words)) is not None:
        return _first(path for value, path in _objects(schema) if str(value.get("$ref", "")).endswith(f"#{found[1]}"))
    if (found := _RESOURCE.search(words)) is not None:
        name = found[1].rsplit("/", 1)[-1]
        return _first(path for value, path in _objects(schema) if name in str(value.get("$ref", "")))
    return _first(path for value, path in _objects(schema) if _is_named(value, words))


def _is_named(value: Mapping[str, Any], words: str) -> bool:
    """The words repeat its pattern, its format or its type."""
    for name, least in (("pattern", 2), ("format", 2)):
        text = value.get(name)
        if isinstance(text, str) and len(text) >= least and text in words:
            return True
    kinds = value.get("type")
    return any(f"Invalid type: {kind}" == words.strip() for kind in (kinds if isinstance(kinds, list) else [kinds]))


def _objects(schema: Any) -> Iterator[tuple[Mapping[str, Any], str]]:
    waiting: list[tuple[Any, str]] = [(schema, "")]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, Mapping):
            yield value, path
            waiting.extend((each, f"{path}.{name[:64]}") for name, each in reversed(list(value.items())))
        elif isinstance(value, list):
            waiting.extend((each, f"{path}[{i}]") for i, each in reversed(list(enumerate(value))))


def _first(paths: Iterator[str]) -> str:
    return next(paths, "")
