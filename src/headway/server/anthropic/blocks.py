"""Blocks of Anthropic's messages: of known kinds, with known fields, each with its place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.body import describe, without_nulls

_NO_TEXT = ("image", "document", "search_result", "container_upload")
_IGNORED_FIELDS = frozenset(("type", "cache_control", "citations", "caller", "toolset_name"))
"""Of a block: what places marks of caches, and what answers carry back."""
_FIELDS: Mapping[str, frozenset[str]] = {
    "text": frozenset(("text",)),
    "thinking": frozenset(("thinking", "signature")),
    "redacted_thinking": frozenset(("data",)),
    "tool_use": frozenset(("id", "name", "input")),
    "tool_result": frozenset(("tool_use_id", "content", "is_error")),
}


@dataclass(frozen=True, slots=True)
class Block:
    """One block, and where it stands."""

    path: str
    kind: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A field that must be a string."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise InvalidRequest(
                f"{self.path}.{name} is {describe(value)}; it must be a string", param=f"{self.path}.{name}"
            )
        return value


def read_blocks(content: object, path: str, kinds: Sequence[str], where: str) -> list[Block]:
    """Content that is text, or a list of blocks.

    Args:
        kinds: of the blocks that may stand there.
        where: what the content is of, for errors.

    Raises InvalidRequest, UnsupportedFeature.
    """
    if isinstance(content, str):
        return [Block(path, "text", {"text": content})]
    if not isinstance(content, list):
        raise InvalidRequest(f"{path} is {describe(content)}; it must be text or a list of blocks", param=path)
    return [_read_block(block, f"{path}[{i}]", kinds, where) for i, block in enumerate(content)]


def _read_block(given: object, path: str, kinds: Sequence[str], where: str) -> Block:
    """A block of one of these kinds, with no field that is unknown."""
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(kind, str):
        raise InvalidRequest(f"{path} is {describe(given)}; it must be an object with a type", param=path)
    if kind in _NO_TEXT:
        raise UnsupportedFeature(
            f"{path}.type is {kind}: the served models read text alone, as {{type: text, text: ...}}",
            param=f"{path}.type",
        )
    if kind not in kinds:
        raise UnsupportedFeature(
            f"{path}.type is {kind[:64]!r}; blocks of {where} are {', '.join(kinds)}", param=f"{path}.type"
        )
    known = _FIELDS[kind] | _IGNORED_FIELDS
    unknown = next((name for name in without_nulls(given) if name not in known), None)
    if unknown is not None:
        name = f"{path}.{unknown[:64]}"
        raise InvalidRequest(f"{name} is no field of a {kind} block: leave it out", param=name)
    return Block(path, kind, given)
