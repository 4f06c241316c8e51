"""The demo model, dequantised by us and by transformers: the same logits in float32."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import open_checkpoint
from headway.executor.torch import TorchExecutor
from headway.model import make_program
from oracles import demo_model

TOLERANCE = 1e-4
IDS = np.random.default_rng(5).integers(0, 49152, size=32).tolist()


@pytest.fixture(scope="module")
def demo_file() -> Path:
    return demo_model()


@pytest.fixture(scope="module")
def wanted(demo_file: Path) -> np.ndarray:
    """transformers' logits, [32, 49152]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_file.parent, gguf_file=demo_file.name, dtype=torch.float32)
    with torch.inference_mode():
        logits: np.ndarray = model.eval()(torch.tensor([IDS])).logits[0].numpy()
    return logits


@pytest.mark.filterwarnings("default")  # transformers' GGUF reader warns of itself
def test_the_demo_model_gives_transformers_logits_whole_and_in_chunks(demo_file, wanted, sequences_of):
    checkpoint = open_checkpoint(demo_file)
    program = make_program(checkpoint.shape)
    kv = KVStore(program.caches, num_blocks=64, block_size=16, dtype="float32")
    executor = TorchExecutor(program, checkpoint.weights, kv, dtype="float32", threads=1)
    sequences = sequences_of(2, block_size=16)
    # One sequence whole, then the other in chunks of 20 and 12 and a token more of the first.
    np.testing.assert_allclose(executor.execute(sequences.step({0: IDS[:-1]})), wanted[:-1], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(executor.execute(sequences.step({1: IDS[:20]})), wanted[:20], atol=TOLERANCE, rtol=0)
    ours = executor.execute(sequences.step({0: IDS[-1:], 1: IDS[20:]}))
    np.testing.assert_allclose(ours, np.concatenate([wanted[-1:], wanted[20:]]), atol=TOLERANCE, rtol=0)
