"""The torch executor beside parity: one step's call count, steps that touch nothing else, NaN, dtypes, bad weights."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from headway.cache.kv_store import KVStore
from headway.config import EngineConfig
from headway.errors import InvalidConfig, TensorMismatch, UnsupportedModel
from headway.executor import make_executor
from headway.executor.base import StepArrays
from headway.executor.groups import MAX_SLICES
from headway.executor.torch import TorchExecutor
from headway.model import make_program
from headway.model.ops import Attention, Logits, Rope
from small_shapes import TINY_LLAMA

BLOCK = 16
PROGRAM = make_program(TINY_LLAMA)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class RandomWeights:
    """Reproducible weights of a Program; some may be replaced."""

    def __init__(self, program=PROGRAM, **replaced):
        rng = np.random.default_rng(0)
        self.arrays = {
            name: rng.normal(size=shape).astype(np.float32) * 0.3 for name, shape in program.weights.items()
        } | {name.replace("__", "."): array for name, array in replaced.items()}

    def shapes(self):
        return {name: array.shape for name, array in self.arrays.items()}

    def read(self, name):
        return self.arrays[name].copy()


def make(program=PROGRAM, *, dtype="float32", weights=None, num_blocks=300, **options):
    kv = KVStore(program.caches, num_blocks=num_blocks, block_size=BLOCK, dtype=dtype)
    return TorchExecutor(program, weights or RandomWeights(program), kv, dtype=dtype, threads=1, **options)


def prompts(runs, *, tables=None, first_positions=None):
    """A step of whole prompts; sequence s has block s unless a table says otherwise."""
    lengths = np.array([len(run) for run in runs], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tables = np.arange(len(runs), dtype=np.int32)[:, None] if tables is None else np.array(tables, np.int32)
    firsts = np.zeros(len(runs), np.int64) if first_positions is None else np.array(first_positions)
    positions = np.concatenate([[], *(first + np.arange(n) for first, n in zip(firsts, lengths, strict=True))])
    of = np.repeat(np.arange(len(runs)), lengths)
    at = positions.astype(np.int64)
    return StepArrays(
        token_ids=np.array([token for run in runs for token in run], np.int32),
        positions=at.astype(np.int32),
        query_starts=starts,
        context_lens=(firsts + lengths).astype(np.int32),
        block_tables=tables,
        slots=tables[of, at // BLOCK].astype(np.int64) * BLOCK + at % BLOCK,
        logit_rows=starts[1:] - 1,
    )


def count_calls(executor, step):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        executor.execute(step)
    return sum(event.count for event in profile.key_averages() if "scaled_dot_product_attention" in event.key)


@pytest.mark.filterwarnings("default")  # torch's profiler warns of itself
def test_the_number_of_attention_calls_does_not_grow_with_the_number_of_sequences():
    executor = make()
    counts = [count_calls(executor, prompts([[1]] * num)) for num in (1, 16, 256)]
    assert counts[0] == len(PROGRAM.caches)
    assert max(counts) <= MAX_SLICES * len(PROGRAM.caches)


def test_a_step_without_wanted_logits_gives_none_and_writes_its_cache():
    executor, alone = make(), make()
    first = prompts([[3, 5, 7]])
    nothing = executor.execute(dataclasses.replace(first, logit_rows=np.zeros(0, np.int32)))
    assert nothing.shape == (0, 40)
    after = executor.execute(prompts([[9]], first_positions=[3]))
    np.testing.assert_allclose(after, alone.execute(prompts([[3, 5, 7, 9]])), atol=1e-5)


def test_an_empty_step_gives_no_logits():
    empty = prompts([])
    empty = dataclasses.replace(empty, block_tables=np.zeros((0, 1), np.int32))
    assert make().execute(empty).shape == (0, 40)


def test_a_sequence_that_became_nan_spoils_neither_its_neighbours_nor_who_gets_its_blocks():
    embed = RandomWeights().arrays["embed.weight"].copy()
    embed[13] = np.nan
    weights = RandomWeights(embed__weight=embed)
    executor, clean = make(weights=weights), make()
    prompt = [3, 5, 7]
    logits = executor.execute(prompts([[13] * 16, prompt]))
    assert np.isnan(logits[0]).all()
    wanted = clean.execute(prompts([[1] * 16, prompt]))[1]
    columns = [at for at in range(40) if at != 13]
    np.testing.assert_allclose(logits[1, columns], wanted[columns], atol=1e-5)
    # Block 0 is full of NaN now: the next sequence there uses three of its slots, and a neighbour pads with it.
    again = executor.execute(prompts([prompt, [2] * 20], tables=[[0, 0], [1, 2]]))
    fresh = clean.execute(prompts([prompt, [2] * 20], tables=[[0, 0], [1, 2]]))
    np.testing.assert_allclose(again[:, columns], fresh[:, columns], atol=1e-5)
    token = executor.execute(prompts([[4], [6]], tables=[[0, 0], [1, 2]], first_positions=[3, 20]))
    fresh = clean.execute(prompts([[4], [6]], tables=[[0, 0], [1, 2]], first_positions=[3, 20]))
    np.testing.assert_allclose(token[:, columns], fresh[:, columns], atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.15), ("float16", 0.02)])
def test_half_types_are_near_float32_and_give_float32_logits(dtype, tolerance):
    step = prompts([[3, 5, 7, 11], [2]])
    ours, wanted = make(dtype=dtype).execute(step), make().execute(step)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, wanted, atol=tolerance * float(np.abs(wanted).max()))


def test_a_soft_cap_on_scores_and_logits_bounds_them():
    def capped(op):
        if isinstance(op, Attention):
            return dataclasses.replace(op, soft_cap=0.5)
        return dataclasses.replace(op, soft_cap=0.25) if isinstance(op, Logits) else op

    program = dataclasses.replace(PROGRAM, ops=tuple(capped(op) for op in PROGRAM.ops))
    whole = make(program).execute(prompts([[3, 5, 7, 9]]))
    executor = make(program)
    executor.execute(prompts([[3, 5, 7]]))
    np.testing.assert_allclose(executor.execute(prompts([[9]], first_positions=[3])), whole, atol=1e-5)
    assert np.abs(whole).max() <= 0.25
    assert np.abs(whole - make().execute(prompts([[3, 5, 7, 9]]))).max() > 0.1


def turned(**changes):
    ops = tuple(dataclasses.replace(op, **changes) if isinstance(op, Rope) else op for op in PROGRAM.ops)
    return dataclasses.replace(PROGRAM, ops=ops)


def test_interleaved_pairs_over_permuted_rows_are_halves():
    order = np.arange(8).reshape(2, 4).T.reshape(-1)  # column of a half layout for each of an interleaved one
    half = RandomWeights()
    permuted = {
        name: half.arrays[name].reshape(-1, 8, 32)[:, order].reshape(half.arrays[name].shape)
        for name in half.arrays
        if name.endswith(("q.weight", "k.weight"))
    }
    weights = RandomWeights(**permuted)
    step = prompts([[3, 5, 7, 9]])
    interleaved = make(turned(layout="interleaved"), weights=weights).execute(step)
    np.testing.assert_allclose(interleaved, make().execute(step), atol=1e-5)


def test_columns_past_the_turned_ones_stay():
    # Two of eight columns turn at one radian a position; the same as four pairs of which the last three stand still,
    # once the columns are put where these pairs have them.
    order = np.array([0, 4, 1, 2, 3, 5, 6, 7])
    whole = RandomWeights()
    permuted = {
        name: whole.arrays[name].reshape(-1, 8, 32)[:, order].reshape(whole.arrays[name].shape)
        for name in whole.arrays
        if name.endswith(("q.weight", "k.weight"))
    }
    step = prompts([[3, 5, 7, 9]])
    partial = make(turned(frequencies=(1.0,)), weights=RandomWeights(**permuted)).execute(step)
    np.testing.assert_allclose(partial, make(turned(frequencies=(1.0, 0.0, 0.0, 0.0))).execute(step), atol=1e-5)


def test_attention_that_is_not_causal_is_refused():
    ops = tuple(dataclasses.replace(op, causal=False) if isinstance(op, Attention) else op for op in PROGRAM.ops)
    with pytest.raises(UnsupportedModel, match="not causal"):
        make(dataclasses.replace(PROGRAM, ops=ops))


def test_a_weight_of_another_shape_is_named_with_both_shapes():
    weights = RandomWeights(final_norm__weight=np.zeros(31, np.float32))
    with pytest.raises(TensorMismatch, match=re.escape("'final_norm.weight' is [31] in the checkpoint, must be [32]")):
        make(weights=weights)


def test_threads_are_those_of_the_config():
    kv = KVStore(PROGRAM.caches, num_blocks=4, block_size=BLOCK, dtype="float32")
    executor = make_executor(PROGRAM, RandomWeights(), kv, EngineConfig(executor="torch", threads=2))
    executor.execute(prompts([[1]]))
    assert torch.get_num_threads() == 2


def test_an_unknown_executor_is_refused_by_name():
    kv = KVStore(PROGRAM.caches, num_blocks=4, block_size=BLOCK, dtype="float32")
    with pytest.raises(InvalidConfig, match="'cuda'"):
        make_executor(PROGRAM, RandomWeights(), kv, EngineConfig(executor="cuda"))


def test_without_torch_the_extra_is_named(monkeypatch):
    def absent(name, *args, **kwargs):
        if name == "headway.executor.torch_making":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *args, **kwargs)

    import builtins

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", absent)
    kv = KVStore(PROGRAM.caches, num_blocks=4, block_size=BLOCK, dtype="float32")
    with pytest.raises(InvalidConfig, match=re.escape("headway[torch]")):
        make_executor(PROGRAM, RandomWeights(), kv, EngineConfig(executor="torch"))
