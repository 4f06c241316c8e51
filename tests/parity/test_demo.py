"""The demo model, dequantised by us and by transformers: the same logits in float32, and on the native executor the
same log-probabilities of prompts up to its rounding."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headway import LLM, SamplingParams
from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import open_checkpoint
from headway.core.output import TokenLogprob
from headway.executor.torch import TorchExecutor
from headway.model import make_program
from oracles import demo_model

TOLERANCE = 1e-4
NATIVE_TOLERANCE = 0.2
"""8-bit activations against float32 ones: nats, root mean square over the tokens. One token alone may be 0.4 off by
chance (with K and V in int8, bfloat16 and float16 the root is 0.07, 0.08 and 0.09); a token read at the wrong place is
off by several."""
TEXT = "The ferry left at nine. It carried eleven people, two bicycles and a piano — and it came back empty. " * 2
WANTED = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=2)
IDS = np.random.default_rng(5).integers(0, 49152, size=32).tolist()


@pytest.fixture(scope="module")
def demo_file() -> Path:
    return demo_model()


@pytest.fixture(scope="module")
def reference(demo_file: Path) -> torch.nn.Module:
    """transformers' model, in float32."""
    from transformers import AutoModelForCausalLM

    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        demo_file.parent, gguf_file=demo_file.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="module")
def wanted(reference: torch.nn.Module) -> np.ndarray:
    """transformers' logits, [32, 49152]."""
    with torch.inference_mode():
        logits: np.ndarray = reference(torch.tensor([IDS])).logits[0].numpy()
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


def logprobs_of(entries: list[TokenLogprob | None] | None) -> np.ndarray:
    assert entries is not None
    assert entries[0] is None
    return np.array([entry.chosen.logprob for entry in entries[1:] if entry is not None])


@pytest.mark.filterwarnings("default")  # transformers' GGUF reader warns of itself
def test_prompt_logprobs_are_those_of_transformers_and_the_same_behind_a_cached_prefix(demo_file, reference):
    with LLM(str(demo_file), threads=2, kv_cache_memory=2**28) as llm:
        cold, cached = llm.generate(TEXT, WANTED)[0], llm.generate(TEXT, WANTED)[0]
        plain = llm.generate(TEXT, SamplingParams(temperature=0.0, max_tokens=3))[0]
    assert (cached.num_cached_tokens, plain.prompt_logprobs) == (0, None)
    assert plain.num_cached_tokens > 0
    assert cached.prompt_logprobs == cold.prompt_logprobs
    assert plain.outputs[0].token_ids == cached.outputs[0].token_ids == cold.outputs[0].token_ids
    ids, told = cold.prompt_token_ids, logprobs_of(cold.prompt_logprobs)
    with torch.inference_mode():
        wanted = torch.log_softmax(reference(torch.tensor([ids])).logits[0].double(), -1).numpy()
    assert told.shape == (len(ids) - 1,)
    off = told - wanted[range(len(ids) - 1), ids[1:]]
    assert np.sqrt(np.square(off).mean()) <= NATIVE_TOLERANCE, off
    assert np.abs(off).max() <= 5 * NATIVE_TOLERANCE, off
    entries = [entry for entry in cold.prompt_logprobs or () if entry is not None]
    assert all(len(entry.top) == 2 for entry in entries)
    first = llm.get_tokenizer().token_bytes(ids[0])
    assert (first + b"".join(entry.chosen.bytes for entry in entries)).decode() == TEXT
