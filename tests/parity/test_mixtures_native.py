"""Mixtures of experts and latent attention on the native executor: against float64 and transformers, and against itself
bit for bit, whatever way the tokens came."""

from typing import Any

import numpy as np
import pytest

from headway import _native
from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import open_checkpoint
from headway.executor.native import NativeExecutor
from headway.executor.native_writer import ALL_NATIVE_FUSIONS, PlanLimits
from headway.model import make_program
from mixtures import logits_of, make_model, save
from program_reference import reference_logits, to_bfloat16, to_float16, to_int8

RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 128, size=size).tolist() for size in (37, 1, 16, 23)]
BLOCK = 16
NAMES = ("mixtral", "qwen2_moe-layers", "qwen3_moe", "deepseek_v2", "deepseek_v2-groups", "deepseek_v3")
# As test_native.py has them, of the logits' standard deviation.
CLOSE = 2e-3
ROUNDED_KV = 3e-2
FORMS = {
    "bf16": {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4", "kv_dtype": "int8"},
}


class Mixture:
    """A model of transformers, whose weights bfloat16 holds, and ours over its folder."""

    def __init__(self, name: str, folder: Any) -> None:
        self.model = make_model(name)
        self.checkpoint = open_checkpoint(save(self.model, folder))
        self.program = make_program(self.checkpoint.shape)
        self.weights = {name: self.checkpoint.weights.read(name) for name in self.program.weights}

    def native(self, *, threads: int = 1, kv_dtype: str = "float16", **options: Any) -> NativeExecutor:
        kv = KVStore(self.program.caches, num_blocks=64, block_size=BLOCK, dtype=kv_dtype)
        limits = PlanLimits(max_tokens=256, max_selected=256, max_seqs=8, max_context=128)
        return NativeExecutor(self.program, self.checkpoint.weights, kv, threads=threads, limits=limits, **options)


@pytest.fixture(scope="module", params=NAMES)
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    return Mixture(request.param, tmp_path_factory.mktemp("mixture"))


@pytest.fixture(params=_native.available_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADWAY_ISA", request.param)
    name: str = request.param
    return name


def spread_error(ours: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(ours - wanted).max() / wanted.std())


@pytest.mark.parametrize(("keep", "kv_dtype"), [(to_float16, "float16"), (to_bfloat16, "bfloat16"), (to_int8, "int8")])
def test_a_whole_prompt_gives_the_float64_logits_over_rounded_keys_and_values(
    mixture: Mixture, sequences_of: Any, isa: str, keep: Any, kv_dtype: str
) -> None:
    ours = mixture.native(kv_dtype=kv_dtype).execute(sequences_of(1, block_size=BLOCK).step({0: PROMPTS[0]}))
    wanted = reference_logits(mixture.program, mixture.weights, PROMPTS[0], keep=keep)
    errors = np.abs(ours - wanted).max(axis=1) / wanted.std()
    assert np.median(errors) < CLOSE
    assert errors.max() < ROUNDED_KV


def test_it_gives_transformers_logits_up_to_the_rounding_of_keys_and_values(
    mixture: Mixture, sequences_of: Any
) -> None:
    ours = mixture.native().execute(sequences_of(1, block_size=BLOCK).step({0: PROMPTS[0]}))
    assert spread_error(ours, logits_of(mixture.model, PROMPTS[0])) < 2 * ROUNDED_KV


@pytest.mark.parametrize("form", FORMS)
def test_chunks_batches_blocks_and_threads_change_no_bit(
    mixture: Mixture, sequences_of: Any, isa: str, form: str
) -> None:
    def new(threads: int = 1) -> NativeExecutor:
        return mixture.native(threads=threads, **FORMS[form])

    alone = [new().execute(sequences_of(1, block_size=BLOCK).step({0: prompt})).copy() for prompt in PROMPTS]
    for sizes in ([1] * 37, [16, 16, 5], [20, 17]):
        executor, sequences = new(), sequences_of(1, block_size=BLOCK)
        starts = np.cumsum([0, *sizes])
        parts = [PROMPTS[0][start : start + size] for start, size in zip(starts, sizes, strict=False)]
        chunked = np.concatenate([executor.execute(sequences.step({0: part})).copy() for part in parts])
        assert chunked.tobytes() == alone[0].tobytes(), sizes
    for threads in (1, 3):
        executor, sequences = new(threads), sequences_of(4, block_size=BLOCK)
        first = executor.execute(sequences.step({0: PROMPTS[0][:-1], 2: PROMPTS[2][:5]})).copy()
        assert first.tobytes() == np.concatenate([alone[0][:-1], alone[2][:5]]).tobytes()
        rest = executor.execute(
            sequences.step({3: PROMPTS[3], 0: PROMPTS[0][-1:], 1: PROMPTS[1], 2: PROMPTS[2][5:]})
        ).copy()
        wanted = np.concatenate([alone[3], alone[0][-1:], alone[1], alone[2][5:]])
        assert rest.tobytes() == wanted.tobytes(), threads


def test_without_any_fusion_no_bit_changes(mixture: Mixture, sequences_of: Any) -> None:
    step = sequences_of(1, block_size=BLOCK).step({0: PROMPTS[3]})
    wanted = mixture.native().execute(step).copy()
    for left_out in (*((name,) for name in ALL_NATIVE_FUSIONS), ALL_NATIVE_FUSIONS):
        kept = tuple(name for name in ALL_NATIVE_FUSIONS if name not in left_out)
        assert mixture.native(fusions=kept).execute(step).tobytes() == wanted.tobytes(), left_out
