"""The file of --warm-prefix: prompts that are computed when the model starts and whose KV is kept for good.

One prefix a line; empty lines are skipped. A line is text, or a JSON object with one of:
    {"text": "..."}               may hold line breaks
    {"token_ids": [1, 2, ...]}
    {"messages": [...], "tools": [...]}    by the model's chat template; tools may be left out
Only whole blocks are kept; what a block of a text's end would be depends on what follows it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from headway.config import EngineConfig
from headway.engine.engine import Engine
from headway.errors import HeadwayError, InvalidConfig, InvalidRequest
from headway.text.chat_template import make_chat_template
from headway.text.source import TextSource
from headway.text.tokenizer import make_tokenizer

MAX_SHARE = 0.5
"""Of the KV cache, what may be pinned: the rest is for the requests."""
MAX_FILE_BYTES = 64 * 1024 * 1024


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON line."""

    text: str | None = None
    token_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


def pin_warm_prefixes(engine: Engine, config: EngineConfig, source: TextSource) -> int:
    """Computes and pins what the config's file holds; how many blocks that is, 0 without a file. Blocks.

    Raises InvalidConfig: a file or a line that can not be, no prefix cache, or more than MAX_SHARE of the cache.
    """
    if config.warm_prefix is None:
        return 0
    if not (config.enable_prefix_caching and config.enable_kv_cache):
        raise _refuse("there is no prefix cache to keep them in: leave out --no-enable-prefix-caching, --no-kv-cache")
    prefixes = read_prefixes(Path(config.warm_prefix), source, config.warm_chat_template)
    lines = list(prefixes)
    check_share(prefixes.values(), config.block_size, engine.limits.num_pool_tokens // config.block_size)
    try:
        return engine.pin_prefixes(list(prefixes.values()))
    except InvalidRequest as error:
        longest = max(lines, key=lambda number: len(prefixes[number]))
        raise _refuse(f"{error.message} (the longest prefix is in line {longest})") from error


def read_prefixes(path: Path, source: TextSource, chat_template: str | None) -> dict[int, list[int]]:
    """Token ids by line number. Raises InvalidConfig that names the line."""
    tokenizer = make_tokenizer(source)
    template = make_chat_template(source, chat_template)

    def encode(line: _Line) -> list[int]:
        if line.token_ids is not None:
            tokenizer.check_ids(line.token_ids, "token_ids")
            return line.token_ids
        if line.text is not None:
            return tokenizer.encode(line.text, add_special_tokens=True, parse_special=True)
        if template is None:
            raise InvalidRequest("this model has no chat template: give --chat-template, or write the text itself")
        rendered = template.render(line.messages or [], tools=line.tools, add_generation_prompt=False)
        return tokenizer.encode_rendered(rendered)

    return {number: _encode_line(path, number, line, encode) for number, line in _lines(path)}


def check_share(prefixes: Iterable[list[int]], block_size: int, num_blocks: int) -> None:
    """Raises InvalidConfig if the whole blocks of all prefixes, shared ones once, are over their share of the cache."""
    root: dict[tuple[int, ...], Any] = {}
    num_wanted = 0
    for prefix in prefixes:
        node = root
        for start in range(0, len(prefix) - block_size + 1, block_size):
            block = tuple(prefix[start : start + block_size])
            num_wanted += block not in node
            node = node.setdefault(block, {})
    if num_wanted == 0:
        raise _refuse(f"none fills a block of {block_size} tokens, and only whole blocks are kept")
    num_allowed = int(num_blocks * MAX_SHARE)
    if num_wanted > num_allowed:
        raise _refuse(
            f"they fill {num_wanted} blocks of {block_size} tokens, and at most {num_allowed} of the KV cache's "
            f"{num_blocks} may be kept: shorten them, or give --kv-cache-memory more"
        )


def _lines(path: Path) -> Iterable[tuple[int, str]]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _refuse(f"{path} has {path.stat().st_size} bytes, at most {MAX_FILE_BYTES} are read")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse(f"{path} can not be read: {error}") from error
    # Not splitlines(): a line separator of Unicode may stand in a prompt.
    found = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not found:
        raise _refuse(f"{path} is empty: it needs a prefix a line")
    return found


def _encode_line(path: Path, number: int, line: str, encode: Callable[[_Line], list[int]]) -> list[int]:
    try:
        parsed = msgspec.json.decode(line, type=_Line) if line.startswith("{") else _Line(text=line)
        kinds = [parsed.text, parsed.token_ids, parsed.messages]
        if sum(kind is not None for kind in kinds) != 1 or (parsed.tools is not None and parsed.messages is None):
            raise InvalidRequest("a line has one of text, token_ids and messages, and tools only with messages")
        token_ids = encode(parsed)
    except (msgspec.DecodeError, HeadwayError) as error:
        raise _refuse(f"line {number} of {path}: {error}") from error
    if not token_ids:
        raise _refuse(f"line {number} of {path} has no tokens")
    return token_ids


def _refuse(words: str) -> InvalidConfig:
    return InvalidConfig(f"the prefixes of --warm-prefix can not be kept: {words}", param="warm_prefix")
