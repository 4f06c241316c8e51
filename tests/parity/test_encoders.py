"""Encoders of transformers' folders: vectors and scores of whole texts in mixed batches, on both executors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.checkpoint.checkpoint import Checkpoint, open_checkpoint
from headway.checkpoint.match import match_tensors
from headway.executor.base import EncoderStep
from headway.executor.encoder_step import StepKV, num_step_blocks
from headway.executor.native import NativeExecutor
from headway.executor.native_writer import ALL_NATIVE_FUSIONS, PlanLimits
from headway.executor.torch import TorchExecutor
from headway.model import make_program
from headway.model.program import Program, describe
from parity.encoders import ARCHITECTURES, VOCAB, reference_score, reference_vector, save_encoder

LENGTHS = (5, 40, 1, 16, 17, 62, 2, 33)
RNG = np.random.default_rng(5)
# Not 0 and 1: transformers' RoBERTa counts positions past its padding tokens.
TEXTS = [RNG.integers(2, VOCAB, size=size).tolist() for size in LENGTHS]
TORCH, NATIVE, IN_BFLOAT16 = 2e-6, 1e-4, 2e-3
POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}


@dataclass
class Saved:
    """A model of transformers, and what we make of its folder."""

    name: str
    model: torch.nn.Module
    checkpoint: Checkpoint
    program: Program

    @property
    def is_reranker(self) -> bool:
        return "reranker" in self.name

    def types(self, ids: Sequence[int]) -> list[int]:
        """The second half of a pair is of another type, where there is one."""
        encoder = self.checkpoint.shape.encoder
        assert encoder is not None
        is_pair = self.is_reranker and encoder.num_token_types > 1
        return [int(is_pair and place > len(ids) // 2) for place in range(len(ids))]

    def step(self, texts: Sequence[Sequence[int]]) -> EncoderStep:
        return EncoderStep(
            token_ids=np.concatenate([np.array(ids, np.int32) for ids in texts]),
            token_types=np.concatenate([np.array(self.types(ids), np.int32) for ids in texts]),
            query_starts=np.cumsum([0, *map(len, texts)], dtype=np.int32),
        )

    def wanted(self) -> np.ndarray:
        if self.is_reranker:
            return np.array([[reference_score(self.model, ids, self.types(ids))] for ids in TEXTS])
        return np.array([reference_vector(self.model, ids) for ids in TEXTS])

    def torch(self, **options: Any) -> TorchExecutor:
        kv = StepKV(self.program, num_blocks=1, block_size=16, dtype="float32")
        return TorchExecutor(self.program, self.checkpoint.weights, kv, dtype="float32", threads=1, **options)

    def native(self, *, threads: int = 1, kv_dtype: str = "float16", **options: Any) -> NativeExecutor:
        limits = PlanLimits(max_tokens=256, max_selected=8, max_seqs=8, max_context=62)
        num_blocks = num_step_blocks(max_tokens=256, max_seqs=8, block_size=16)
        kv = StepKV(self.program, num_blocks=num_blocks, block_size=16, dtype=kv_dtype)
        return NativeExecutor(self.program, self.checkpoint.weights, kv, threads=threads, limits=limits, **options)


def load(folder: Path, name: str, model: torch.nn.Module) -> Saved:
    checkpoint = open_checkpoint(folder)
    program = make_program(checkpoint.shape)
    match_tensors(program.weights, checkpoint.weights, strict=True)
    return Saved(name, model, checkpoint, program)


@pytest.fixture(params=ARCHITECTURES, scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    made = load(folder, request.param, save_encoder(folder, request.param))
    yield made
    made.checkpoint.weights.close()


@pytest.fixture
def bert(tmp_path: Path) -> Saved:
    return load(tmp_path, "bert", save_encoder(tmp_path, "bert"))


def test_torch_gives_transformers_vectors_and_scores_in_one_mixed_batch(saved: Saved) -> None:
    ours = saved.torch().encode(saved.step(TEXTS))
    np.testing.assert_allclose(ours, saved.wanted(), atol=TORCH, rtol=0)


@pytest.mark.parametrize(("kv_dtype", "close"), [("float16", NATIVE), ("bfloat16", IN_BFLOAT16)])
def test_native_gives_them_within_what_16_bit_keys_and_values_make(saved: Saved, kv_dtype: str, close: float) -> None:
    ours = saved.native(kv_dtype=kv_dtype).encode(saved.step(TEXTS))
    np.testing.assert_allclose(ours, saved.wanted(), atol=close, rtol=0)


def test_native_gives_a_text_the_same_bits_alone_and_in_any_batch(saved: Saved) -> None:
    executor = saved.native(threads=2)
    alone = [executor.encode(saved.step([ids]))[0].copy() for ids in TEXTS]
    for order in (range(8), reversed(range(8)), (5, 2, 7), (3, 3, 3)):
        places = list(order)
        batch = executor.encode(saved.step([TEXTS[place] for place in places]))
        for row, place in zip(batch, places, strict=True):
            np.testing.assert_array_equal(row, alone[place])


def test_native_gives_the_same_bits_without_any_fusion_and_on_more_threads(bert: Saved) -> None:
    wanted = bert.native().encode(bert.step(TEXTS)).copy()
    for options in ({"threads": 3}, {"fusions": ()}, *({"fusions": (one,)} for one in ALL_NATIVE_FUSIONS)):
        np.testing.assert_array_equal(bert.native(**options).encode(bert.step(TEXTS)), wanted, err_msg=str(options))


@pytest.mark.parametrize("is_normalised", [True, False])
@pytest.mark.parametrize("mode", POOLINGS)
def test_each_pooling_of_the_folders_files(tmp_path: Path, mode: str, is_normalised: bool) -> None:
    saved = load(tmp_path, "bert", save_encoder(tmp_path, pooling=mode, is_normalised=is_normalised))
    wanted = [reference_vector(saved.model, ids, POOLINGS[mode], is_normalised=is_normalised) for ids in TEXTS]
    np.testing.assert_allclose(saved.torch().encode(saved.step(TEXTS)), wanted, atol=2e-5, rtol=0)
    scale = 1.0 if is_normalised else float(np.abs(wanted).max())
    np.testing.assert_allclose(saved.native().encode(saved.step(TEXTS)), wanted, atol=1e-2 * scale, rtol=0)


def test_the_steps_keys_may_lie_in_int8(bert: Saved) -> None:
    ours = bert.native(kv_dtype="int8").encode(bert.step(TEXTS))
    np.testing.assert_allclose(ours, bert.wanted(), atol=2e-2, rtol=0)


def test_a_long_text_beside_many_short_ones_is_cut_into_calls_on_torch(bert: Saved, monkeypatch: Any) -> None:
    monkeypatch.setattr("headway.executor.torch_encoder.MAX_ATTENTION_SCORES", 1024)
    ours = bert.torch().encode(bert.step(TEXTS))
    np.testing.assert_allclose(ours, bert.wanted(), atol=TORCH, rtol=0)


def test_the_program_has_no_cache_and_says_so(bert: Saved) -> None:
    assert bert.program.caches == ()
    assert bert.program.is_encoder
    assert "no cache" in describe(bert.program)
    assert "Pool(layers.1.mlp_norm, kind=mean, normalise=True)" in describe(bert.program)
