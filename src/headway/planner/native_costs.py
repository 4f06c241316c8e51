"""What the native executor makes of a Program: packed matrices, float32 values, K and V in 16 or 8 bits.

Its values lie in one arena that is shared by lifetime: planner/native_arena.py lays it out as the executor will.
"""

from collections import Counter
from collections.abc import Mapping
from math import prod

from headway.config import EngineConfig
from headway.model.ops import Attention, Embed, Experts, HeadLinear, Linear, Rope, Route
from headway.model.program import CacheSpec, Program
from headway.observe.sizes import size_text
from headway.planner.costs import Costs
from headway.planner.limits import head_parts
from headway.planner.native_arena import arena_bytes
from headway.planner.run_form import RunForm, choose_run_form

DEFAULT_KV_DTYPE = "float16"
"""Three bits more than bfloat16 has, in as many bytes; the range is enough for keys and values, and what exceeds it
becomes its largest."""
_LANES = 16
_GROUP_COLS = 32
_ATTENTION_CHUNK = 256
_ATTENTION_TOKENS = 32
_EXPERT_BLOCK = (96 + 16) * 16 * 16
"""Floats: rows with a tile more, of 16 panels."""


def matrix_forms(program: Program, types: Mapping[str, str], config: EngineConfig) -> dict[str, RunForm]:
    """The run form of each weight that a product or a lookup reads, by name. Raises as choose_run_form.

    Args:
        types: ggml's name of each weight's type in its file.
        config: quantization is read.
    """
    vocabulary, routers = vocabulary_names(program), router_names(program)
    names = {op.weight for op in program.ops if isinstance(op, Linear | HeadLinear)} | vocabulary
    names.update(name for op in program.ops if isinstance(op, Experts) for name in op.weights)
    return {
        name: choose_run_form(
            types[name],
            None if name in routers else config.quantization,
            is_vocabulary=name in vocabulary,
            keeps_floats=program.is_encoder,
        )
        for name in sorted(names)
    }


def describe_forms(program: Program, types: Mapping[str, str], config: EngineConfig) -> list[str]:
    """A line for each pair of a file's type and a run form, most bytes first. Raises as choose_run_form."""
    counts: Counter[tuple[str, RunForm]] = Counter()
    sizes: Counter[tuple[str, RunForm]] = Counter()
    for name, form in matrix_forms(program, types, config).items():
        counts[types[name], form] += 1
        sizes[types[name], form] += _matrix_bytes(form, program.weights[name])
    return [
        f"{kind:<5} runs as {form.form:<5} {counts[kind, form]:>5} matrices, {size_text(size)}{_note(form)}"
        for (kind, form), size in sizes.most_common()
    ]


def _note(form: RunForm) -> str:
    if form.is_exact:
        return ", no value changes"
    return ", values are rounded" if form.form == "bf16" else ", values are quantised"


def vocabulary_names(program: Program) -> frozenset[str]:
    """Weights whose rows are tokens or positions: embedding tables, and the head."""
    tables = {op.table for op in program.ops if isinstance(op, Embed)}
    heads = {op.weight for op in program.ops if isinstance(op, Linear) and op.out == program.ops[-1].inputs[0]}
    return frozenset(tables | heads)


def router_names(program: Program) -> frozenset[str]:
    """Weights whose products choose experts: they are never narrowed, since a choice has no small errors."""
    scores = {op.input for op in program.ops if isinstance(op, Route)}
    return frozenset(op.weight for op in program.ops if isinstance(op, Linear) and op.out in scores)


def native_costs(program: Program, types: Mapping[str, str], config: EngineConfig, threads: int) -> Costs:
    """The costs of a model whose weights have these types in the file.

    Args:
        config: max_model_len, max_num_seqs, max_num_batched_tokens, quantization and kv_cache_dtype are read.
        threads: that compute.

    Raises:
        UnsupportedModel: a matrix of a type that cannot be run.
        InvalidConfig: quantization of what is quantised.
    """
    forms = matrix_forms(program, types, config)
    sizes = _weights_bytes(program, forms)
    kv_dtype = DEFAULT_KV_DTYPE if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    return Costs(
        dtype=max(sizes, key=lambda name: sizes[name]),
        weights_text=", ".join(f"{name} ({size_text(size)})" for name, size in sizes.most_common()),
        weights_bytes=sizes.total(),
        workspace_bytes=_workspace_bytes(program, forms, config, threads),
        kv_dtype=kv_dtype,
        kv_bytes_per_token=sum(token_bytes(cache, kv_dtype) for cache in program.caches),
    )


def _weights_bytes(program: Program, forms: Mapping[str, RunForm]) -> Counter[str]:
    """Bytes by run form; a matrix that several ops use is held once, what is no matrix is float32."""
    sizes: Counter[str] = Counter()
    for name, shape in program.weights.items():
        if name in forms:
            sizes[forms[name].form] += _matrix_bytes(forms[name], shape)
        else:
            sizes["float32"] += 4 * prod(shape)
    return sizes


def _matrix_bytes(form: RunForm, shape: tuple[int, ...]) -> int:
    """Of a matrix, or of as many as there are heads."""
    *heads, height, width = shape
    return prod(heads) * form.num_bytes(height, width)


def token_bytes(cache: CacheSpec, kv_dtype: str) -> int:
    """Of K and V of one token and layer: exec_kernels.h's layouts; int8 has a float32 scale each."""
    if kv_dtype == "int8":
        num_scales = 1 if cache.v_in_k else 2
        return cache.num_kv_heads * (_up(cache.qk_dim, 4) + cache.own_v_dim + num_scales * 4)
    k_dim = _up(cache.qk_dim, 2) if kv_dtype == "bfloat16" else cache.qk_dim
    return cache.num_kv_heads * (k_dim + cache.own_v_dim) * 2


def _workspace_bytes(program: Program, forms: Mapping[str, RunForm], config: EngineConfig, threads: int) -> int:
    max_context = config.max_model_len or program.max_position
    max_tokens = config.max_num_batched_tokens
    max_selected = min(config.max_num_seqs, max_tokens)
    values = arena_bytes(program, forms, max_tokens=max_tokens, max_selected=max_selected)
    sampling = threads * program.vocab_size * 2 * 4
    scratch = _attention_bytes(program, max_context, threads) + threads * _expert_scratch_bytes(program)
    return values + sampling + scratch + _rope_bytes(program, max_context)


def _expert_scratch_bytes(program: Program) -> int:
    """Of a thread: a tile of gathered rows, or a block of results (native/src/exec/expert_stage.h)."""
    widths = [program.weights[op.gates[0]][1] for op in program.ops if isinstance(op, Experts)]
    return max((4 * max(_LANES * width, _EXPERT_BLOCK) for width in widths), default=0)


def _attention_bytes(program: Program, max_context: int, threads: int) -> int:
    """Scratch of each thread and room for the parts of one long sequence: native/src/exec/attention_scratch.h."""
    needed = 0
    for op in {(op.num_heads, op.num_kv_heads, op.qk_dim, op.v_dim) for op in program.ops if isinstance(op, Attention)}:
        num_heads, num_kv_heads, qk_dim, v_dim = op
        num_parts = num_kv_heads * head_parts(num_heads, num_kv_heads)
        group, query_ld, value_ld = num_heads // num_parts, _up(qk_dim, _LANES), _up(v_dim, _GROUP_COLS)
        rows = _ATTENTION_TOKENS * group
        scratch = rows * (query_ld + _ATTENTION_CHUNK + 2 * value_ld + 4) + 2 * _ATTENTION_CHUNK
        scratch += max(query_ld, _ATTENTION_CHUNK) * _GROUP_COLS
        parts = -(-max_context // _ATTENTION_CHUNK) * num_parts * _up(group * (2 + v_dim), _LANES)
        needed += 4 * (threads * _up(scratch, _LANES) + parts)
    return needed


def _rope_bytes(program: Program, max_context: int) -> int:
    """Cosines and sines, a table for layers that turn alike."""
    tables = {(op.frequencies, op.magnitude) for op in program.ops if isinstance(op, Rope)}
    return sum(2 * 4 * max_context * len(frequencies) for frequencies, _ in tables)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
