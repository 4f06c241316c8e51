"""What the native executor makes of a Program: packed matrices, float32 values, K and V in bfloat16 or int8.

Its values lie in one arena that is shared by lifetime (executor/native_layout.py). What is counted here is the widest
moment of the Program's ops as they stand, which the fused ones stay under: a gate and its up matrix are counted as two
values, and what an op can overwrite as one.
"""

from collections import Counter
from collections.abc import Mapping
from math import prod

from headway.config import EngineConfig
from headway.model.ops import Activation, Add, Attention, Embed, Linear, Logits, Mul, Rope, Scale, SelectRows
from headway.model.program import CacheSpec, Program
from headway.planner.costs import Costs, size_text
from headway.planner.run_form import RunForm, choose_run_form

_LANES = 16
_GROUP_COLS = 32
_ATTENTION_CHUNK = 256
_ATTENTION_TOKENS = 32
_PREPARED_BYTES = 1 + 4 / _GROUP_COLS + 8 / _GROUP_COLS
"""Of a column made ready for matrices of 8 and 4 bits: an int8, and a scale and two sums for each group."""
_WIDE_BYTES = 4
"""... for bf16 matrices, where the machine does not multiply bfloat16."""


def matrix_forms(program: Program, types: Mapping[str, str], config: EngineConfig) -> dict[str, RunForm]:
    """The run form of each weight that a product or a lookup reads, by name. Raises as choose_run_form.

    Args:
        types: ggml's name of each weight's type in its file.
        config: quantization is read.
    """
    vocabulary = vocabulary_names(program)
    names = {op.weight for op in program.ops if isinstance(op, Linear)} | vocabulary
    return {
        name: choose_run_form(types[name], config.quantization, is_vocabulary=name in vocabulary)
        for name in sorted(names)
    }


def vocabulary_names(program: Program) -> frozenset[str]:
    """Weights whose rows are tokens or positions: embedding tables, and the head."""
    tables = {op.table for op in program.ops if isinstance(op, Embed)}
    heads = {op.weight for op in program.ops if isinstance(op, Linear) and op.out == program.ops[-1].inputs[0]}
    return frozenset(tables | heads)


def native_costs(program: Program, types: Mapping[str, str], config: EngineConfig, threads: int) -> Costs:
    """The costs of a model whose weights have these types in the file.

    Args:
        config: max_model_len, max_num_seqs, max_num_batched_tokens, quantization and kv_cache_dtype are read.
        threads: that compute.

    Raises:
        UnsupportedModel: a matrix of a type that cannot be run.
        InvalidConfig: quantization of what is quantised.
    """
    sizes = _weights_bytes(program, matrix_forms(program, types, config))
    kv_dtype = "bfloat16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    return Costs(
        dtype=max(sizes, key=lambda name: sizes[name]),
        weights_text=", ".join(f"{name} ({size_text(size)})" for name, size in sizes.most_common()),
        weights_bytes=sizes.total(),
        workspace_bytes=_workspace_bytes(program, config, threads),
        kv_dtype=kv_dtype,
        kv_bytes_per_token=sum(_token_bytes(cache, kv_dtype) for cache in program.caches),
    )


def _weights_bytes(program: Program, forms: Mapping[str, RunForm]) -> Counter[str]:
    """Bytes by run form; a matrix that several ops use is held once, what is no matrix is float32."""
    sizes: Counter[str] = Counter()
    for name, shape in program.weights.items():
        if name in forms:
            sizes[forms[name].form] += forms[name].num_bytes(*shape)
        else:
            sizes["float32"] += 4 * prod(shape)
    return sizes


def _token_bytes(cache: CacheSpec, kv_dtype: str) -> int:
    """Of K and V of one token: kv_cache.h's layouts; int8 has a float32 scale each."""
    if kv_dtype == "int8":
        return cache.num_kv_heads * (_up(cache.qk_dim, 4) + cache.v_dim + 2 * 4)
    return cache.num_kv_heads * (_up(cache.qk_dim, 2) + cache.v_dim) * 2


def _workspace_bytes(program: Program, config: EngineConfig, threads: int) -> int:
    max_context = config.max_model_len or program.max_position
    max_selected = min(config.max_num_seqs, config.max_num_batched_tokens)
    values = config.max_num_batched_tokens * _token_peak_bytes(program) + max_selected * _selected_bytes(program)
    sampling = threads * program.vocab_size * 2 * 4
    return values + sampling + _attention_bytes(program, max_context, threads) + _rope_bytes(program, max_context)


def _token_peak_bytes(program: Program) -> int:
    """Of one token's row at the widest moment: live values, and the input of a product made ready for it."""
    widths = {name: _up(width, _LANES) for name, width in program.token_widths().items()}
    last_use = {name: at for at, op in enumerate(program.ops) for name in op.inputs}
    live = peak = 0
    for at, op in enumerate(program.ops):
        dying = {name for name in op.inputs if last_use[name] == at}
        overwrites = isinstance(op, Activation | Add | Mul | Rope | Scale) and op.inputs[0] in dying
        live += 0 if overwrites else widths.get(op.out, 0)
        ready = _prepared_bytes(widths.get(op.input, 0)) if isinstance(op, Linear) else 0
        peak = max(peak, live * 4 + ready)
        live -= sum(widths.get(name, 0) for name in dying)
        live += widths.get(op.out, 0) if overwrites else 0
    return peak


def _selected_bytes(program: Program) -> int:
    """Of one row whose logits are wanted: what comes behind SelectRows, all at once."""
    return sum(
        _up(program.hidden_size, _LANES) * 4 + _prepared_bytes(program.hidden_size)
        if not isinstance(op, Linear)
        else _up(program.vocab_size, _LANES) * 4
        for op in program.ops[_first_selected(program) :]
        if not isinstance(op, Logits)  # in the head's place
    )


def _first_selected(program: Program) -> int:
    return next((at for at, op in enumerate(program.ops) if isinstance(op, SelectRows)), len(program.ops) - 2)


def _prepared_bytes(width: int) -> int:
    return int(_up(width, _GROUP_COLS) * (_PREPARED_BYTES + _WIDE_BYTES))


def _attention_bytes(program: Program, max_context: int, threads: int) -> int:
    """Scratch of each thread and room for the parts of one long sequence: native/src/exec/attention_scratch.h."""
    needed = 0
    for op in {(op.num_heads, op.num_kv_heads, op.qk_dim, op.v_dim) for op in program.ops if isinstance(op, Attention)}:
        num_heads, num_kv_heads, qk_dim, v_dim = op
        group, query_ld, value_ld = num_heads // num_kv_heads, _up(qk_dim, _LANES), _up(v_dim, _GROUP_COLS)
        rows = _ATTENTION_TOKENS * group
        scratch = rows * (query_ld + _ATTENTION_CHUNK + 2 * value_ld + 4) + 2 * _ATTENTION_CHUNK
        scratch += max(query_ld, _ATTENTION_CHUNK) * _GROUP_COLS
        parts = -(-max_context // _ATTENTION_CHUNK) * num_kv_heads * _up(group * (2 + v_dim), _LANES)
        needed += 4 * (threads * _up(scratch, _LANES) + parts)
    return needed


def _rope_bytes(program: Program, max_context: int) -> int:
    """Cosines and sines, a table for layers that turn alike."""
    tables = {(op.frequencies, op.magnitude) for op in program.ops if isinstance(op, Rope)}
    return sum(2 * 4 * max_context * len(frequencies) for frequencies, _ in tables)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
