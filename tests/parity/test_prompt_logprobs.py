"""Log-probabilities of prompts: transformers' over the same weights, and the same bits however a prompt is computed."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import headway_wire as wire
from headway.config import EngineConfig
from headway.engine.engine import Engine
from headway.engine.loading import load_engine
from parity.architectures import CASES, Case, Saved, save_model

PROMPT = np.random.default_rng(4).integers(3, 128, size=45).tolist()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Saved, Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("prompt-logprobs")
    return Saved(CASES["olmo2"], folder), folder


def scores(engine: Engine, prompt: list[int], request_id: str = "a", **sampling: object) -> list[wire.TokenLogprobs]:
    """Of all tokens but the first."""
    wanted = wire.Sampling(**{"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 3, **sampling})
    answer = engine.submit(wire.Submit(request_id=request_id, prompt_token_ids=prompt, sampling=wanted))
    assert isinstance(answer, wire.Accepted), answer
    told: list[wire.TokenLogprobs] = []
    while engine.has_work():
        engine.step()
        for message in engine.take_prompt_logprobs():
            if message.request_id == request_id:
                assert message.start == len(told) + 1
                told += message.logprobs
    assert len(told) == len(prompt) - 1
    return told


@pytest.mark.parametrize("num_seqs", [4, 64])
def test_torch_gives_transformers(saved: tuple[Saved, Path], num_seqs: int) -> None:
    model, folder = saved
    config = EngineConfig(executor="torch", dtype="float32", threads=1, max_num_seqs=num_seqs, kv_cache_memory=2**22)
    engine, _ = load_engine(folder, config, lambda _: None)
    ours = scores(engine, PROMPT)
    wanted = torch.log_softmax(torch.from_numpy(model.logits(PROMPT)).double(), -1).numpy()[:-1]
    np.testing.assert_allclose([s.logprob for s in ours], wanted[range(44), PROMPT[1:]], atol=1e-4)
    order = np.argsort(-wanted, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal([s.top_ids for s in ours], order)
    np.testing.assert_allclose([s.top_logprobs for s in ours], np.take_along_axis(wanted, order, 1), atol=1e-4)


def test_the_native_executor_changes_no_bit_by_chunks_a_cached_prefix_or_company(saved: tuple[Saved, Path]) -> None:
    _, folder = saved
    flags = {"executor": "native", "kv_cache_memory": 2**23}

    def open_engine(**more: object) -> Engine:
        return load_engine(folder, EngineConfig(**{**flags, **more}), lambda _: None)[0]

    whole = scores(open_engine(threads=1, max_num_seqs=128, enable_prefix_caching=False), PROMPT)
    engine = open_engine(threads=2, max_num_seqs=3)
    assert scores(engine, PROMPT, "cold") == whole
    assert scores(engine, PROMPT, "cached") == whole
    for number in range(2):
        others = wire.Sampling(
            max_tokens=20, ignore_eos=True, seed=number, allowed_token_ids=[5, 6, 7], prompt_logprobs=1
        )
        engine.submit(wire.Submit(request_id=f"o{number}", prompt_token_ids=PROMPT[number:30], sampling=others))
    assert scores(engine, PROMPT, "beside") == whole
    assert scores(engine, PROMPT, "several", n=3) == whole


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [each.numel() for each in (made if isinstance(made, tuple | list) else [made]) if torch.is_tensor(each)]
        self.numel = max([self.numel, *sizes])
        return made


WIDE = Case("LlamaForCausalLM", {"vocab_size": 20_000, "hidden_size": 32, "max_position_embeddings": 1024})
LONG = np.random.default_rng(5).integers(3, 20_000, size=600).tolist()


@pytest.mark.parametrize("executor", ["native", "torch"])
def test_no_memory_is_ever_taken_for_the_scores_of_a_whole_prompt(tmp_path: Path, executor: str) -> None:
    """600 tokens of 20,000 scores are 48 MB, and 12 MB for a quarter of them: nothing that large is made, neither by
    numpy and Python nor by torch; the native executor's memory is all there before."""
    save_model(WIDE, tmp_path)
    limits = {"max_num_seqs": 8, "kv_cache_memory": 2**22, "threads": 1}
    engine, info = load_engine(tmp_path, EngineConfig(executor=executor, **limits), lambda _: None)
    largest = LargestTensor()
    tracemalloc.start()
    try:
        with largest:
            scores(engine, LONG, prompt_logprobs=5)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    quarter = len(LONG) // 4 * 20_000
    assert peak_bytes < 4 * quarter
    assert largest.numel < quarter
    if executor == "native":
        assert info["workspace_bytes"] < 4 * quarter
