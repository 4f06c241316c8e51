"""Each architecture from a folder of transformers: its logits on torch within 2e-5 and on the native executor within
what its rounding makes, whole, in chunks, cached and batched."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headway import _native
from headway.cache.kv_store import KVStore
from headway.executor.fuse import ALL_FUSIONS
from headway.executor.native import NativeExecutor
from headway.executor.native_writer import ALL_NATIVE_FUSIONS, PlanLimits
from headway.executor.torch import TorchExecutor
from parity.architectures import CASES, Saved
from program_reference import reference_logits, to_bfloat16, to_float16

TOLERANCE = 2e-5
RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 128, size=size).tolist() for size in (37, 1, 16, 23)]
BLOCK = 16
# Of the logits' spread, as in test_native.py.
CLOSE, ROUNDED_KV = 2e-3, 5e-2


@pytest.fixture(params=CASES, scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    torch.set_num_threads(1)
    made = Saved(CASES[request.param], tmp_path_factory.mktemp(request.param))
    yield made
    made.checkpoint.weights.close()


def torch_executor(saved: Saved, **options: Any) -> TorchExecutor:
    kv = KVStore(saved.program.caches, num_blocks=64, block_size=4, dtype="float32")
    return TorchExecutor(saved.program, saved.checkpoint.weights, kv, dtype="float32", threads=1, **options)


def native_executor(saved: Saved, *, threads: int = 1, kv_dtype: str = "float16", **options: Any) -> NativeExecutor:
    kv = KVStore(saved.program.caches, num_blocks=64, block_size=BLOCK, dtype=kv_dtype)
    limits = PlanLimits(max_tokens=256, max_selected=256, max_seqs=8, max_context=128)
    return NativeExecutor(saved.program, saved.checkpoint.weights, kv, threads=threads, limits=limits, **options)


def in_chunks(executor: Any, sequences: Any, sizes: list[int]) -> np.ndarray:
    made, at = [], 0
    for size in sizes:
        made.append(executor.execute(sequences.step({0: PROMPTS[0][at : at + size]})).copy())
        at += size
    return np.concatenate(made)


def batched(executor: Any, sequences: Any) -> np.ndarray:
    """The last logits of each prompt: two steps, of chunks, a decode and whole prompts."""
    executor.execute(sequences.step({0: PROMPTS[0][:-1], 2: PROMPTS[2][:5]}))
    step = sequences.step({0: PROMPTS[0][-1:], 1: PROMPTS[1], 2: PROMPTS[2][5:], 3: PROMPTS[3]}, all_logits=False)
    return executor.execute(step).copy()


def test_torch_gives_transformers_logits_whole_in_chunks_cached_and_batched(saved, sequences_of):
    wanted = [saved.logits(prompt) for prompt in PROMPTS]
    whole = torch_executor(saved).execute(sequences_of(1).step({0: PROMPTS[0]}))
    np.testing.assert_allclose(whole, wanted[0], atol=TOLERANCE, rtol=0)
    for sizes in ([36, 1], [3] * 12 + [1], [1] * 37):
        ours = in_chunks(torch_executor(saved), sequences_of(1), sizes)
        np.testing.assert_allclose(ours, wanted[0], atol=TOLERANCE, rtol=0, err_msg=str(sizes))
    ours = batched(torch_executor(saved), sequences_of(4))
    np.testing.assert_allclose(ours, np.stack([rows[-1] for rows in wanted]), atol=TOLERANCE, rtol=0)


def test_each_fusion_of_torch_can_be_left_out(saved, sequences_of):
    wanted = saved.logits(PROMPTS[3])
    for left_out in (*((name,) for name in ALL_FUSIONS), ALL_FUSIONS):
        kept = tuple(name for name in ALL_FUSIONS if name not in left_out)
        ours = torch_executor(saved, fusions=kept).execute(sequences_of(1).step({0: PROMPTS[3]}))
        np.testing.assert_allclose(ours, wanted, atol=TOLERANCE, rtol=0, err_msg=str(left_out))


def spread_error(ours: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(ours - wanted).max() / wanted.std())


@pytest.mark.parametrize("isa", _native.available_isas())
def test_native_gives_the_float64_logits_and_transformers_up_to_its_rounding(saved, sequences_of, isa, monkeypatch):
    monkeypatch.setenv("HEADWAY_ISA", isa)
    ours = native_executor(saved).execute(sequences_of(1, block_size=BLOCK).step({0: PROMPTS[0]}))
    weights = {
        name: to_bfloat16(array) if array.ndim == 2 else array
        for name, array in ((name, saved.checkpoint.weights.read(name)) for name in saved.program.weights)
    }
    assert spread_error(ours, reference_logits(saved.program, weights, PROMPTS[0], keep=to_float16)) < CLOSE
    assert spread_error(ours, saved.logits(PROMPTS[0])) < ROUNDED_KV


@pytest.mark.parametrize("options", [{}, {"quantization": "int4", "kv_dtype": "int8"}], ids=["bf16", "int4"])
def test_chunks_batches_threads_and_fusions_change_no_bit(saved, sequences_of, options):
    def alone(prompt: list[int], **more: Any) -> np.ndarray:
        step = sequences_of(1, block_size=BLOCK).step({0: prompt})
        return native_executor(saved, **options, **more).execute(step).copy()

    wanted = [alone(prompt) for prompt in PROMPTS]
    for sizes in ([36, 1], [3] * 12 + [1], [20, 17]):
        ours = in_chunks(native_executor(saved, **options), sequences_of(1, block_size=BLOCK), sizes)
        assert ours.tobytes() == wanted[0].tobytes(), sizes
    ours = batched(native_executor(saved, threads=2, **options), sequences_of(4, block_size=BLOCK))
    assert ours.tobytes() == np.stack([rows[-1] for rows in wanted]).tobytes()
    for left_out in (*((name,) for name in ALL_NATIVE_FUSIONS), ALL_NATIVE_FUSIONS):
        kept = tuple(name for name in ALL_NATIVE_FUSIONS if name not in left_out)
        assert alone(PROMPTS[3], fusions=kept).tobytes() == wanted[3].tobytes(), left_out
