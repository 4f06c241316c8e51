"""The native executor beside parity: every op at odd sizes, long contexts cut among threads, NaN, sampling in the same
call, what is refused and how."""

import dataclasses
import re

import numpy as np
import pytest

import headway_wire as wire
from headway import _native
from headway.cache.kv_store import KVStore
from headway.config import EngineConfig
from headway.engine.sampler import Sampler
from headway.errors import InvalidConfig, InvariantBroken, TensorMismatch, UnsupportedModel
from headway.executor.base import StepArrays
from headway.executor.factory import choose_executor, make_executor
from headway.executor.native import NativeExecutor
from headway.executor.native_writer import PlanLimits
from headway.model import make_program
from headway.model.ops import (
    Activation,
    Add,
    Attention,
    Embed,
    Linear,
    Logits,
    Mul,
    Norm,
    Rope,
    Scale,
    SelectRows,
)
from headway.model.program import CacheSpec, Program
from program_reference import reference_logits, to_bfloat16, to_float16
from small_shapes import TINY_LLAMA

BLOCK = 16
PROGRAM = make_program(TINY_LLAMA)


@pytest.fixture(params=_native.available_isas())
def isa(request, monkeypatch):
    monkeypatch.setenv("HEADWAY_ISA", request.param)


class RandomWeights:
    """Reproducible weights of a Program, its matrices such as bfloat16 holds; some may be replaced."""

    def __init__(self, program=PROGRAM, **replaced):
        rng = np.random.default_rng(0)
        drawn = {name: rng.normal(size=shape) * 0.3 for name, shape in program.weights.items()}
        self.arrays = {name: to_bfloat16(array).astype(np.float32) for name, array in drawn.items()}
        self.arrays |= {name.replace("__", "."): array for name, array in replaced.items()}

    def shapes(self):
        return {name: array.shape for name, array in self.arrays.items()}

    def read(self, name):
        return self.arrays[name].copy()


def make(program=PROGRAM, *, weights=None, threads=1, num_blocks=96, block_size=BLOCK, dtype="float16", **options):
    kv = KVStore(program.caches, num_blocks=num_blocks, block_size=block_size, dtype=dtype)
    limits = PlanLimits(max_tokens=1024, max_selected=64, max_seqs=8, max_context=768)
    return NativeExecutor(program, weights or RandomWeights(program), kv, threads=threads, limits=limits, **options)


def make_step(runs, *, tables=None, firsts=None, all_rows=False):
    """New tokens of some sequences; sequence s has 48 blocks from 48 * s on unless a table says otherwise."""
    lengths = np.array([len(run) for run in runs], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tables = np.arange(len(runs) * 48, dtype=np.int32).reshape(len(runs), 48) if tables is None else tables
    tables = np.array(tables, np.int32)
    firsts = np.zeros(len(runs), np.int64) if firsts is None else np.array(firsts, np.int64)
    positions = np.concatenate([first + np.arange(n) for first, n in zip(firsts, lengths, strict=True)])
    of = np.repeat(np.arange(len(runs)), lengths)
    return StepArrays(
        token_ids=np.array([token for run in runs for token in run], np.int32),
        positions=positions.astype(np.int32),
        query_starts=starts,
        context_lens=(firsts + lengths).astype(np.int32),
        block_tables=tables,
        slots=tables[of, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK,
        logit_rows=np.arange(starts[-1], dtype=np.int32) if all_rows else starts[1:] - 1,
    )


HIDDEN, HEADS, DIM, INNER, VOCAB = 40, 4, 10, 37, 43


def odd_program():
    """Every op, at sizes that are no multiples of lanes, groups or tiles: positions by table and by half a rope,
    a parallel residual, biases everywhere, a gate that the kernels have not, one that is one column wide."""
    turn = {"head_dim": DIM, "frequencies": (1.0, 0.25, 0.0625), "layout": "interleaved", "magnitude": 1.25}
    linear = [
        Linear(out="q", input="normed", weight="q.weight", bias="q.bias"),
        Linear(out="k", input="normed", weight="k.weight", bias="k.bias"),
        Linear(out="v", input="normed", weight="v.weight", bias="v.bias"),
    ]
    ops = (
        Embed(out="token", table="embed", scale=1.5),
        Embed(out="place", table="places", index="position", offset=2),
        Add(out="hidden", left="token", right="place"),
        Norm(out="normed", input="hidden", weight="n1", bias="n1b", kind="layer", eps=1e-5),
        *linear,
        Norm(out="kn", input="k", weight="kn.weight", bias="knb", over="head", one_plus=True, eps=1e-6),
        Rope(out="qt", input="q", **turn),
        Rope(out="kt", input="kn", **turn),
        Attention(
            out="mixed", q="qt", k="kt", v="v", cache_id=0, num_heads=HEADS, num_kv_heads=2, qk_dim=DIM, v_dim=6,
            scale=0.4, window=9, soft_cap=2.0,
        ),
        Linear(out="o", input="mixed", weight="o.weight", bias="o.bias"),
        Linear(out="gate", input="normed", weight="gate.weight", bias="gate.bias"),
        Linear(out="up", input="normed", weight="up.weight", bias="up.bias"),
        Activation(out="opened", input="gate", kind="sigmoid"),
        Mul(out="product", left="opened", right="up"),
        Linear(out="down", input="product", weight="down.weight"),
        Linear(out="share", input="normed", weight="share.weight"),
        Mul(out="shared", left="down", right="share"),
        Scale(out="halved", input="o", factor=0.5),
        Add(out="attended", left="hidden", right="halved"),
        Add(out="after", left="attended", right="shared"),
        Activation(out="bent", input="after", kind="tanh"),
        SelectRows(out="selected", input="bent"),
        Norm(out="last", input="selected", weight="n2", bias="n2b", eps=1e-5),
        Linear(out="scores", input="last", weight="head"),
        Logits(out="logits", input="scores", scale=0.75, soft_cap=3.0),
    )  # fmt: skip
    matrices = {
        "embed": (VOCAB, HIDDEN), "places": (800, HIDDEN), "q": (HEADS * DIM, HIDDEN), "k": (2 * DIM, HIDDEN),
        "v": (12, HIDDEN), "o": (HIDDEN, HEADS * 6), "gate": (INNER, HIDDEN), "up": (INNER, HIDDEN),
        "down": (HIDDEN, INNER), "share": (1, HIDDEN), "head": (VOCAB, HIDDEN),
    }  # fmt: skip
    tables = ("embed", "places", "head")
    weights = {name if name in tables else f"{name}.weight": shape for name, shape in matrices.items()}
    weights |= {f"{name}.bias": (matrices[name][0],) for name in ("q", "k", "v", "o", "gate", "up")}
    weights |= dict.fromkeys(("n1", "n1b", "n2", "n2b"), (HIDDEN,)) | {"kn.weight": (DIM,), "knb": (DIM,)}
    program = Program(
        architecture="odd", ops=ops, weights=weights, vocab_size=VOCAB, hidden_size=HIDDEN, max_position=790,
        caches=(CacheSpec(cache_id=0, num_kv_heads=2, qk_dim=DIM, v_dim=6, window=9),),
    )  # fmt: skip
    program.check()
    return program


@pytest.mark.parametrize(("keep", "dtype"), [(to_float16, "float16"), (to_bfloat16, "bfloat16")])
def test_every_op_at_odd_sizes_gives_the_float64_logits(isa, keep, dtype):
    program = odd_program()
    weights = RandomWeights(program)
    ids = np.random.default_rng(1).integers(0, VOCAB, size=37).tolist()
    wanted = reference_logits(program, weights.arrays, ids, keep=keep)
    for fusions in ({}, {"fusions": ()}):
        ours = make(program, weights=weights, dtype=dtype, **fusions).execute(make_step([ids], all_rows=True))
        assert np.abs(ours - wanted).max() < 2e-3 * wanted.std()


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_long_context_that_is_cut_among_threads_has_the_bits_of_one_thread(isa, dtype):
    ids = np.random.default_rng(2).integers(0, 40, size=600).tolist()

    def decode(threads):
        executor = make(threads=threads, dtype=dtype)
        executor.execute(make_step([ids, ids[:300]]))
        alone = executor.execute(make_step([[7]], firsts=[600])).copy()
        both = executor.execute(make_step([[7], [9]], firsts=[600, 300])).copy()
        return alone, both

    (alone, both), (alone_of_three, both_of_three) = decode(1), decode(3)
    assert alone.tobytes() == alone_of_three.tobytes() == both[:1].tobytes()
    assert both.tobytes() == both_of_three.tobytes()
    whole = make(dtype=dtype).execute(make_step([[*ids, 7]]))
    assert whole.tobytes() == alone.tobytes()


def test_a_sequence_that_became_nan_spoils_neither_its_neighbours_nor_who_gets_its_blocks(isa):
    embed = RandomWeights().arrays["embed.weight"].copy()
    embed[13] = np.nan
    poisoned = RandomWeights(embed__weight=embed)
    columns = [at for at in range(40) if at != 13]  # the head is the table: its row 13 is NaN for everybody
    executor, clean = make(weights=poisoned), make()
    prompt, tables = [3, 5, 7], [[0], [1]]
    logits = executor.execute(make_step([[13] * 16, prompt], tables=tables))
    assert np.isnan(logits[0]).all()
    wanted = clean.execute(make_step([[1] * 16, prompt], tables=tables))
    assert logits[1, columns].tobytes() == wanted[1, columns].tobytes()
    again = executor.execute(make_step([prompt], tables=[[0]])).copy()
    assert again[0, columns].tobytes() == wanted[1, columns].tobytes()
    after = executor.execute(make_step([[4]], tables=[[0]], firsts=[3]))
    fresh = make().execute(make_step([[*prompt, 4]], tables=[[0]]))
    assert after[0, columns].tobytes() == fresh[0, columns].tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_sampling_in_the_same_call_is_sampling_the_logits(isa, threads):
    embed = RandomWeights().arrays["embed.weight"].copy()
    embed[13] = np.inf
    head = to_bfloat16(np.random.default_rng(4).normal(size=(40, 32))).astype(np.float32)
    program = make_program(dataclasses.replace(TINY_LLAMA, is_tied=False))
    executor = make(program, weights=RandomWeights(program, embed__weight=embed, lm_head__weight=head), threads=threads)
    sampler = Sampler(max_num_seqs=8, vocab_size=40, max_model_len=64, threads=1)
    for row in range(4):
        sampling = wire.Sampling(temperature=0.9, top_p=0.9, logprobs=3 if row % 2 else None)
        sampler.set_row(row, sampling, seed=row, choice=0, end_token_ids=[], num_prompt_tokens=2)
    # Sequences 0, 2 and 4 are sampled, the third of which is not finite; 1 and 3 are behind, the last of which is not.
    step = make_step([[3, 5], [2, 4, 6], [9], [1, 13], [13, 2]], tables=[[0], [1], [2], [3], [4]])
    last = step.logit_rows
    rows, num_tokens = np.array([0, 1, 2], np.int32), np.array([2, 3, 2], np.int32)
    sampled, behind_is_finite = sampler.make_sampled(rows), np.zeros(2, np.bool_)
    executor.execute_and_sample(
        step, last[[0, 2, 4]], last[[1, 3]], behind_is_finite, sampler.native, rows, num_tokens, sampled
    )
    wanted = sampler.sample(executor.execute(step)[[0, 2, 4]], rows, num_tokens)
    for field in dataclasses.fields(sampled):
        ours, theirs = getattr(sampled, field.name), getattr(wanted, field.name)
        assert ours.tobytes() == theirs.tobytes(), field.name
    assert sampled.is_finite.tolist() == [True, True, False]
    assert behind_is_finite.tolist() == [True, False]


def test_a_step_of_nothing_gives_no_logits():
    nothing = dataclasses.replace(make_step([[1]]), logit_rows=np.zeros(0, np.int32))
    assert make().execute(nothing).shape == (0, 40)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": np.array([40], np.int32)}, "a token id is 40; it must be at least 0 and below 40"),
        ({"slots": np.array([96 * 16], np.int64)}, "a slot is 1536; it must be at least 0 and below 1536"),
        ({"block_tables": np.array([[-1]], np.int32)}, "a block is -1; it must be at least 0 and below 96"),
        ({"positions": np.array([768], np.int32)}, "a position is 768; it must be at least 0 and below 768"),
        ({"logit_rows": np.array([1], np.int32)}, "a logit row is 1; it must be at least 0 and below 1"),
        ({"context_lens": np.array([0], np.int32)}, "a context_len is 0; it must be at least 1"),
        ({"positions": np.zeros(2, np.int32)}, "token_ids, positions and slots differ in length"),
    ],
)
def test_a_step_that_cannot_be_is_refused_with_the_value_and_the_limit(changes, message):
    with pytest.raises(InvariantBroken, match=re.escape(message)):
        make().execute(dataclasses.replace(make_step([[1]]), **changes))


def test_what_the_cache_cannot_be_is_refused():
    with pytest.raises(InvalidConfig, match="block_size is 8; the native executor needs a multiple of 16"):
        make(block_size=8)
    with pytest.raises(InvalidConfig, match="the KV cache is float32"):
        make(dtype="float32")


def test_a_weight_of_another_shape_is_named_with_both_shapes():
    weights = RandomWeights(final_norm__weight=np.zeros(31, np.float32))
    with pytest.raises(TensorMismatch, match=re.escape("'final_norm.weight' is [31] in the checkpoint, must be [32]")):
        make(weights=weights)


def changed(kind, **changes):
    ops = tuple(dataclasses.replace(op, **changes) if isinstance(op, kind) else op for op in PROGRAM.ops)
    return dataclasses.replace(PROGRAM, ops=ops)


@pytest.mark.parametrize(
    ("program", "what"),
    [(changed(Attention, causal=False), "not causal"), (changed(Embed, index="token_type"), "token types")],
)
def test_what_is_not_run_is_refused_by_name_and_auto_takes_torch(program, what):
    with pytest.raises(UnsupportedModel, match=what):
        choose_executor(program, EngineConfig(executor="native"))
    with pytest.raises(UnsupportedModel, match=what):
        make(program)
    assert choose_executor(program, EngineConfig()) == "torch"


def test_auto_is_native_unless_a_type_is_asked_for_that_it_does_not_compute_in():
    assert choose_executor(PROGRAM, EngineConfig()) == "native"
    assert choose_executor(PROGRAM, EngineConfig(dtype="float32")) == "torch"
    assert choose_executor(PROGRAM, EngineConfig(executor="torch")) == "torch"
    with pytest.raises(InvalidConfig, match="dtype is float32"):
        choose_executor(PROGRAM, EngineConfig(executor="native", dtype="float32"))
    kv = KVStore(PROGRAM.caches, num_blocks=4, block_size=BLOCK, dtype="bfloat16")
    assert isinstance(make_executor(PROGRAM, RandomWeights(), kv, EngineConfig(threads=2)), NativeExecutor)


def test_an_instruction_set_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv("HEADWAY_ISA", "mmx")
    with pytest.raises(InvalidConfig, match="HEADWAY_ISA is 'mmx'"):
        make()
