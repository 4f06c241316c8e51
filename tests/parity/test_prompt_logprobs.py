"""Log-probabilities of prompts: transformers' over the same weights, and the same bits however a prompt is computed."""

from pathlib import Path

import numpy as np
import pytest
import torch

import headway_wire as wire
from headway.config import EngineConfig
from headway.engine.engine import Engine
from headway.engine.loading import load_engine
from parity.architectures import CASES, Saved

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
