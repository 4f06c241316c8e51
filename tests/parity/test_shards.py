"""The parts of a model on several ranks give together what the whole gives, for every architecture."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import open_checkpoint
from headway.executor.base import StepArrays
from headway.executor.shard import shard_program
from headway.executor.shard_weights import ShardWeights
from headway.executor.torch import TorchExecutor
from headway.model import Program, make_program
from mixtures import MODELS, make_model, save
from parity.architectures import CASES, save_model
from ranks_of_threads import make_groups, run_ranks

TOLERANCE = 1e-4
RNG = np.random.default_rng(7)
FIRST, SECOND = (RNG.integers(0, 128, size=size).tolist() for size in (19, 5))
BLOCK = 4


def make_store(program: Program) -> KVStore:
    return KVStore(program.caches, num_blocks=16, block_size=BLOCK, dtype="float32")


def make_steps() -> list[StepArrays]:
    """Two prompts, one of them but for its end; then that, and a token behind the other."""
    tables = np.array([[0, 1, 2, 3, 4], [5, 6, 0, 0, 0]], np.int32)

    def step(runs: list[list[int]], firsts: list[int]) -> StepArrays:
        lengths = np.array([len(run) for run in runs])
        of = np.repeat(np.arange(2), lengths)
        positions = np.concatenate([first + np.arange(n) for first, n in zip(firsts, lengths, strict=True)])
        return StepArrays(
            token_ids=np.array([token for run in runs for token in run], np.int32),
            positions=positions.astype(np.int32),
            query_starts=np.array([0, *np.cumsum(lengths)], np.int32),
            context_lens=(np.array(firsts) + lengths).astype(np.int32),
            block_tables=tables,
            slots=(tables[of, positions // BLOCK] * BLOCK + positions % BLOCK).astype(np.int64),
            logit_rows=np.arange(len(of), dtype=np.int32),
        )

    return [step([FIRST[:14], SECOND], [0, 0]), step([FIRST[14:], [9]], [14, 5])]


STEPS = make_steps()


def check_ranks(folder: Path, size: int) -> None:
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(folder)
    program = make_program(checkpoint.shape)
    whole = TorchExecutor(program, checkpoint.weights, make_store(program), dtype="float32", threads=1)
    wanted = [whole.execute(step).copy() for step in STEPS]
    shards = [shard_program(program, rank, size) for rank in range(size)]
    groups = make_groups(size)

    def logits_of(rank: int) -> list[np.ndarray]:
        part, kv = shards[rank].program, make_store(shards[rank].program)
        weights = ShardWeights(checkpoint.weights, shards[rank].parts)
        executor = TorchExecutor(part, weights, kv, dtype="float32", threads=1, group=groups[rank])
        return [executor.execute(step).copy() for step in STEPS]

    for made in run_ranks(size, logits_of):
        for got, logits in zip(made, wanted, strict=True):
            np.testing.assert_allclose(got, logits, atol=TOLERANCE, rtol=0)
    checkpoint.weights.close()


@pytest.mark.parametrize("name", CASES)
def test_ranks_give_together_the_logits_of_the_whole(name: str, tmp_path: Path) -> None:
    save_model(CASES[name], tmp_path)
    check_ranks(tmp_path, 2)
    check_ranks(tmp_path, 4)  # more than there are key heads


@pytest.mark.parametrize("name", MODELS)
def test_ranks_of_a_mixture_give_together_the_logits_of_the_whole(name: str, tmp_path: Path) -> None:
    save(make_model(name), tmp_path)
    check_ranks(tmp_path, 2)
    check_ranks(tmp_path, 4)
