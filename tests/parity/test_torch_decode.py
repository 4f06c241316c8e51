"""Steps of one token a sequence, captured and replayed, give the logits of the same steps run op by op, and those of
transformers; so does a cache in memory of the executor's own. On every family, latent attention and experts too."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import Checkpoint, open_checkpoint
from headway.executor.torch import DecodePlan, TorchExecutor
from headway.model import make_program
from headway.model.ops import Experts
from mixtures import logits_of, make_model, save
from parity.architectures import CASES, save_model
from recorded_capture import RecordedCapture

PROMPTS = {0: list(range(3, 24)), 1: [40, 41], 2: [7] * 9, 3: [90, 8, 7]}
NUM_SEQS, MAX_CONTEXT, BLOCK = 4, 64, 4
# The prompts, one in two chunks beside the others' tokens; then tokens of one, of three, of all, of two, of one.
STEPS: list[dict[int, list[int]]] = [
    {0: PROMPTS[0][:13], 1: PROMPTS[1], 2: PROMPTS[2]},
    {0: PROMPTS[0][13:], 1: [5], 2: [6], 3: PROMPTS[3]},
    {2: [11]},
    {0: [1], 1: [2], 3: [4]},
    {0: [9], 1: [8], 2: [7], 3: [6]},
    {1: [3], 3: [3]},
    {0: [2]},
]
NUM_DECODES = 5
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral-window": {},
    "deepseek_v2": {},
    # Without experts: latent attention alone.
    "deepseek_v3-yarn": {"first_k_dense_replace": 2},
}


class Source:
    """A model of transformers, and what we make of its folder."""

    def __init__(self, model: torch.nn.Module, folder: Path) -> None:
        self.model = model
        self.checkpoint: Checkpoint = open_checkpoint(folder)
        self.program = make_program(self.checkpoint.shape)
        self.has_experts = any(isinstance(op, Experts) for op in self.program.ops)

    def executor(self, capture: RecordedCapture | None = None) -> TorchExecutor:
        kv = KVStore(self.program.caches, num_blocks=64, block_size=BLOCK, dtype="float32")
        decode = None if capture is None else DecodePlan(NUM_SEQS, MAX_CONTEXT, capture)
        return TorchExecutor(self.program, self.checkpoint.weights, kv, dtype="float32", threads=1, decode=decode)


def _architecture(name: str, folder: Path) -> torch.nn.Module:
    return save_model(CASES[name], folder)


def _mixture(name: str, folder: Path) -> torch.nn.Module:
    model = make_model(name, **MIXTURES[name])
    save(model, folder)
    return model


SOURCES = [(_architecture, name) for name in CASES] + [(_mixture, name) for name in MIXTURES]


@pytest.fixture(params=SOURCES, ids=lambda pair: pair[1], scope="module")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    torch.set_num_threads(1)
    make: Callable[[str, Path], torch.nn.Module] = request.param[0]
    folder = tmp_path_factory.mktemp("model")
    made = Source(make(request.param[1], folder), folder)
    yield made
    made.checkpoint.weights.close()


def test_replayed_steps_give_the_logits_of_steps_run_op_by_op(source: Source, sequences_of: Any) -> None:
    capture = RecordedCapture()
    plain, replayed = source.executor(), source.executor(capture)
    theirs, ours = sequences_of(NUM_SEQS), sequences_of(NUM_SEQS)
    texts: dict[int, list[int]] = {sequence: [] for sequence in PROMPTS}
    last: dict[int, np.ndarray] = {}
    for step in STEPS:
        wanted, made = plain.execute(theirs.step(step)), replayed.execute(ours.step(step))
        np.testing.assert_allclose(made, wanted, atol=2e-5, rtol=0)
        rows = np.cumsum([len(ids) for ids in step.values()]) - 1
        for sequence, row in zip(step, rows, strict=True):
            texts[sequence] += step[sequence]
            last[sequence] = made[row].copy()
    for sequence, text in texts.items():
        np.testing.assert_allclose(last[sequence], logits_of(source.model, text)[-1], atol=1e-4, rtol=0)
    # Which experts are called depends on who is chosen: these steps are not captured.
    assert capture.num_replays == (0 if source.has_experts else NUM_DECODES)
    assert (capture.num_captured > 0) is not source.has_experts
