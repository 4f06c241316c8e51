"""Typed reading of a checkpoint's key-value data (config.json, GGUF metadata), with the file and key in every error."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from headway.errors import CorruptCheckpoint

MAX_JSON_BYTES = 16 * 1024 * 1024
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_file(path: Path, *, max_bytes: int) -> bytes:
    """The file's bytes. Raises CorruptCheckpoint: unreadable, or over max_bytes."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise CorruptCheckpoint(f"{path} has {size} bytes; at most {max_bytes} are read")
        return path.read_bytes()
    except OSError as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The file's value. Raises CorruptCheckpoint: unreadable, over max_bytes, not JSON, or a key twice in an object."""
    return parse_json(read_file(path, max_bytes=max_bytes), str(path))


def parse_json(text: bytes, where: str) -> Any:
    """As read_json, of bytes."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # a half of a pair alone is no text: it has no UTF-8
        return value
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{where} is not valid JSON: {error}") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class Fields:
    """A mapping whose values are taken out with a type and a range. Every failure is CorruptCheckpoint."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    @classmethod
    def of_json(cls, path: Path) -> "Fields":
        """The object in this file."""
        values = read_json(path)
        if not isinstance(values, dict):
            raise CorruptCheckpoint(f"{path} holds {_kind(values)}, not an object")
        return cls(values, str(path))

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 31) -> int:
        """A whole number in low..high; without a default the key must be there. 4.0 is no whole number."""
        value = self._given(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(key, f"is {value!r}, not a whole number")
        if not low <= value <= high:
            self.fail(key, f"is {value}; {low} to {high} are possible")
        return int(value)

    def number(self, key: str, default: float | None = None, *, positive: bool = True) -> float:
        """A finite number, by default over zero."""
        value = self._given(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(key, f"is {value!r}, not a number")
        try:
            value = float(value)
        except OverflowError:
            self.fail(key, "is too large")
        if not math.isfinite(value) or (positive and value <= 0):
            self.fail(key, f"is {value}, not a {'positive ' if positive else ''}finite number")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """true or false."""
        value = self._given(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"is {value!r}, not true or false")
        return bool(value)

    def string(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._given(key, default)
        if not isinstance(value, str):
            self.fail(key, f"is {_kind(value)}, not a string")
        return str(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object; empty where the key is not there."""
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(key, f"is {_kind(value)}, not an object")
        return dict(value)

    def token_ids(self, key: str) -> frozenset[int]:
        """One id or a list of ids; empty where the key is not there. -1 (none, in old files) is left out."""
        value = self.values.get(key)
        if value is None:
            return frozenset()
        ids = value if isinstance(value, list) else [value]
        for number in ids:
            if not isinstance(number, int) or isinstance(number, bool) or not -1 <= number < 1 << 31:
                self.fail(key, f"is {value!r}, not a token id or a list of them")
        return frozenset(number for number in ids if number >= 0)

    def fail(self, key: str, why: str) -> NoReturn:
        """Raises CorruptCheckpoint about this key."""
        raise CorruptCheckpoint(f"{self.where}: {key} {why}"[:2000])

    def _given(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            self.fail(key, "is missing")
        return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
