"""Mixtures of experts and latent attention, read from folders that transformers saved, give transformers' logits."""

from typing import Any

import numpy as np
import pytest

from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import open_checkpoint
from headway.executor.fuse import ALL_FUSIONS
from headway.executor.torch import TorchExecutor
from headway.model import make_program
from mixtures import MODELS, logits_of, make_model, save

TOLERANCE = 1e-4
RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 128, size=size).tolist() for size in (37, 1, 16, 23)]


class Mixture:
    """A model of transformers, and ours over the folder that it was saved to."""

    def __init__(self, name: str, folder: Any) -> None:
        self.model = make_model(name)
        self.checkpoint = open_checkpoint(save(self.model, folder))
        self.program = make_program(self.checkpoint.shape)

    def on_torch(self, **options: Any) -> TorchExecutor:
        kv = KVStore(self.program.caches, num_blocks=64, block_size=4, dtype="float32")
        return TorchExecutor(self.program, self.checkpoint.weights, kv, dtype="float32", threads=1, **options)

    def logits(self, ids: list[int]) -> np.ndarray:
        return logits_of(self.model, ids)


@pytest.fixture(scope="module", params=MODELS)
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    return Mixture(request.param, tmp_path_factory.mktemp("mixture"))


def test_every_weight_of_the_folder_is_the_program_s(mixture: Mixture) -> None:
    assert mixture.checkpoint.weights.shapes() == mixture.program.weights


def test_torch_gives_transformers_logits_whole_in_chunks_cached_and_batched(
    mixture: Mixture, sequences_of: Any
) -> None:
    wanted = [mixture.logits(prompt) for prompt in PROMPTS]
    whole = mixture.on_torch().execute(sequences_of(1).step({0: PROMPTS[0]}))
    np.testing.assert_allclose(whole, wanted[0], atol=TOLERANCE, rtol=0)
    for chunk in (1, 5):
        executor, sequences = mixture.on_torch(), sequences_of(1)
        parts = [PROMPTS[0][at : at + chunk] for at in range(0, len(PROMPTS[0]), chunk)]
        ours = np.concatenate([executor.execute(sequences.step({0: part})).copy() for part in parts])
        np.testing.assert_allclose(ours, wanted[0], atol=TOLERANCE, rtol=0)
    executor, sequences = mixture.on_torch(), sequences_of(4)
    executor.execute(sequences.step({0: PROMPTS[0][:-1], 2: PROMPTS[2][:5]}))
    mixed = sequences.step({0: PROMPTS[0][-1:], 1: PROMPTS[1], 2: PROMPTS[2][5:], 3: PROMPTS[3]}, all_logits=False)
    np.testing.assert_allclose(
        executor.execute(mixed), np.stack([logits[-1] for logits in wanted]), atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize("left_out", [*((name,) for name in ALL_FUSIONS), ALL_FUSIONS], ids=str)
def test_each_fusion_can_be_left_out(mixture: Mixture, sequences_of: Any, left_out: tuple[str, ...]) -> None:
    kept = tuple(name for name in ALL_FUSIONS if name not in left_out)
    ours = mixture.on_torch(fusions=kept).execute(sequences_of(1).step({0: PROMPTS[3]}))
    np.testing.assert_allclose(ours, mixture.logits(PROMPTS[3]), atol=TOLERANCE, rtol=0)
