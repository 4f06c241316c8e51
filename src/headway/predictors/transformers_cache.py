"""What the caches of transformers take, measured on the model itself, and how many tokens fit into what was charged.

A cache grows with its sequence, so each request reserves beforehand what it may grow to. Some parts do not grow: states
of recurrent layers. Layers with a window stop growing: they are reserved as if they did not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headway.observe.sizes import size_text
from headway.predictors.options import invalid_config

_SHARE = 0.25
"""Of memory_limit, where no size of the caches was told: as Headway's own engine takes."""
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Of one sequence: the bytes of `fixed_bytes` and of each of its tokens."""

    fixed_bytes: int
    token_bytes: int

    def of(self, num_tokens: int) -> int:
        """Bytes of so many tokens."""
        return self.fixed_bytes + num_tokens * self.token_bytes

    def num_tokens(self, num_bytes: int) -> int | None:
        """Tokens of one sequence in so many bytes; None: any number."""
        return None if not self.token_bytes else max(0, num_bytes - self.fixed_bytes) // self.token_bytes


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """What all caches may take together, and the longest context that it lets one sequence have."""

    num_bytes: int
    max_model_len: int


def measure_size(two_tokens: int, three_tokens: int) -> CacheSize:
    """From what a cache took with so many tokens."""
    token_bytes = max(0, three_tokens - two_tokens)
    return CacheSize(max(0, two_tokens - 2 * token_bytes), token_bytes)


def cache_bytes(cache: Any) -> int:
    """Of the tensors in a cache: each once."""
    tensors = {id(tensor): tensor for tensor in _tensors(cache, 0)}
    return sum(tensor.nbytes for tensor in tensors.values())


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    if hasattr(value, "nbytes") and hasattr(value, "device"):
        yield value
    elif depth < _MAX_DEPTH:
        if isinstance(value, dict):
            parts = list(value.values())
        elif isinstance(value, (list, tuple)):
            parts = list(value)
        else:
            parts = list(getattr(value, "__dict__", {}).values())
        for part in parts:
            yield from _tensors(part, depth + 1)


def choose_room(
    size: CacheSize,
    *,
    kv_cache_memory: int | None,
    memory_limit: int | None,
    max_num_seqs: int,
    max_model_len: int,
    is_asked: bool,
) -> CacheRoom:
    """How much there is: what was told, else the least of a quarter of the limit and what all sequences could use.

    `is_asked`: the context was asked for; else it is lowered to what fits. Raises PredictorError.
    """
    all_bytes = max_num_seqs * size.of(max_model_len)
    share = all_bytes if memory_limit is None else int(_SHARE * memory_limit)
    num_bytes = min(all_bytes, share if kv_cache_memory is None else kv_cache_memory)
    fitting = size.num_tokens(num_bytes)
    longest = max_model_len if fitting is None else min(max_model_len, fitting)
    if longest < 2 or num_bytes < size.fixed_bytes or (is_asked and longest < max_model_len):
        wanted = max_model_len if is_asked else 2
        raise invalid_config(
            f"{size_text(num_bytes)} for keys and values hold {longest} tokens of this model, and {wanted} are asked"
            f" for, which take {size_text(size.of(wanted))}: give kv_cache_memory more, or lower max_model_len",
            "kv_cache_memory",
        )
    return CacheRoom(num_bytes, longest)


def describe_plan(weights_bytes: int, size: CacheSize, room: CacheRoom) -> dict[str, Any]:
    """For Ready.info: what the pool charges, and the lines that people read."""
    tokens = size.num_tokens(room.num_bytes)
    held = "" if tokens is None else f", {tokens:,} tokens"
    return {
        "weights_bytes": weights_bytes,
        "workspace_bytes": 0,
        "kv_cache_bytes": room.num_bytes,
        "plan": [
            f"weights    {size_text(weights_bytes)}",
            f"KV cache   {size_text(room.num_bytes)}{held}, {size_text(size.token_bytes)} a token",
        ],
    }
