"""What the torch executor makes of a Program: one number type for weights, values, K and V."""

import math

from headway.config import EngineConfig
from headway.errors import InvalidConfig
from headway.model.ops import Embed, Experts, HeadLinear, Linear, Op
from headway.model.program import Program
from headway.planner.costs import Costs
from headway.planner.limits import MAX_ATTENTION_SCORES, MAX_GATHERED_ON_GPU, MAX_GATHERED_TOKENS

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def torch_costs(program: Program, dtype: str, config: EngineConfig, *, on_gpu: bool = False) -> Costs:
    """The costs in `dtype`. Raises InvalidConfig for what only the native executor has: quantization, an int8 cache.

    Args:
        config: max_model_len, max_num_seqs, max_num_batched_tokens, quantization, kv_cache_dtype and enforce_eager are
            read.
        on_gpu: nothing is packed there, attention may gather more, and captured steps have a workspace of their own.
    """
    _check_config(dtype, config)
    size = DTYPE_BYTES[dtype]
    max_gathered = MAX_GATHERED_ON_GPU if on_gpu else MAX_GATHERED_TOKENS
    num_repacked = 0 if on_gpu else _num_repacked(program)
    num_workspaces = 2 if on_gpu and not config.enforce_eager else 1
    return Costs(
        dtype=dtype,
        weights_text=dtype,
        weights_bytes=(program.num_weights + num_repacked) * size,
        workspace_bytes=num_workspaces * _workspace_bytes(program, dtype, config, max_gathered),
        kv_dtype=dtype,
        kv_bytes_per_token=sum(cache.elements_per_token for cache in program.caches) * size,
    )


def _check_config(dtype: str, config: EngineConfig) -> None:
    if config.quantization is not None:
        raise InvalidConfig(
            f"quantization is {config.quantization}, which the torch executor does not have: take --executor native, "
            "or a quantised GGUF file",
            param="quantization",
        )
    if config.kv_cache_dtype not in ("auto", dtype):
        raise InvalidConfig(
            f"kv_cache_dtype is {config.kv_cache_dtype}; the torch executor keeps K and V in its dtype, {dtype}: leave "
            "it out, or take --executor native",
            param="kv_cache_dtype",
        )


def _num_repacked(program: Program) -> int:
    """Elements of tables that products use too: an executor lays these out for each use (a tied embedding)."""
    tables = {op.table for op in program.ops if isinstance(op, Embed)}
    shared = tables & {op.weight for op in program.ops if isinstance(op, Linear)}
    return sum(math.prod(program.weights[name]) for name in shared)


def _workspace_bytes(program: Program, dtype: str, config: EngineConfig, max_gathered: int) -> int:
    """The widest moment of a full step, its logits, and what attention gathers and masks."""
    size, max_model_len = DTYPE_BYTES[dtype], config.max_model_len or program.max_position
    num_rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    values = config.max_num_batched_tokens * _peak_width(program) * size
    logits = num_rows * program.vocab_size * (4 if size == 4 else 4 + size)
    gathered_tokens = min(max(max_gathered, max_model_len), config.max_num_seqs * max_model_len)
    widest = max((cache.num_kv_heads * max(cache.qk_dim, cache.v_dim) for cache in program.caches), default=0)
    scores = min(MAX_ATTENTION_SCORES, config.max_num_batched_tokens * max_model_len)
    return values + logits + 2 * gathered_tokens * widest * size + scores * size


def _peak_width(program: Program) -> int:
    """Elements of a token's live values at the widest moment; values after SelectRows are not a token's."""
    widths = program.widths()
    last_use = {name: at for at, op in enumerate(program.ops) for name in op.inputs}
    live = peak = 0
    for at, op in enumerate(program.ops):
        live += widths.get(op.out, 0)
        peak = max(peak, live + _own_width(op, program))
        live -= sum(widths.get(name, 0) for name in set(op.inputs) if last_use[name] == at)
    return peak


def _own_width(op: Op, program: Program) -> int:
    """Elements of a token that lie in memory only while the op runs, where all tokens go to one expert."""
    if isinstance(op, HeadLinear):
        heads, out_width, _ = program.weights[op.weight]
        return heads * out_width
    if isinstance(op, Experts):
        width, in_width = program.weights[op.gates[0]]
        return in_width + 4 * width + 2 * program.weights[op.downs[0]][0]
    return 0
