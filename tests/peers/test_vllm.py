"""A real vLLM (its build for the CPU) behind Headway: its server launched, and its engine embedded in a worker.

What both answer is compared with transformers over the same weights in float32.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headway.core.output import TextDelta
from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TokensPrompt
from headway.core.sampling import SamplingParams
from headway.core.structured import StructuredOutputsParams
from headway.errors import ContextLengthExceeded, InvalidRequest, UnsupportedFeature
from headway.service.local import LocalService
from oracles import cache_dir, demo_model
from peers.frameworks import serving

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

ARGUMENTS = [
    *("--dtype", "float32"),
    "--enforce-eager",
    *("--max-model-len", "512"),
    *("--max-num-seqs", "4"),
    # What it measures its memory with: steps of thousands of tokens take minutes where they have no fast product.
    *("--max-num-batched-tokens", "512"),
]
NUM_TOKENS = 12
TOLERANCE = 2e-3
"""Of log-probabilities of two float32 implementations."""
PARIS = ChatPrompt([{"role": "user", "content": "What is the capital of France? Answer in one word."}])


@dataclass(frozen=True)
class Reference:
    """What transformers goes on with, greedily."""

    folder: Path
    prompt: list[int]
    greedy: list[int]
    logprobs: list[float]
    """Of each of them."""
    text: str


@pytest.fixture(scope="module")
def reference() -> Reference:
    folder = cache_dir() / "smollm2-135m-bf16"
    if not folder.is_dir():
        script = Path(__file__).parents[2] / "benchmarks" / "to_bf16.py"
        part = tempfile.mkdtemp(dir=cache_dir())
        subprocess.run([sys.executable, str(script), str(demo_model()), part], check=True)
        os.rename(part, folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("The three primary colours are red, blue and")["input_ids"]
    greedy, logprobs = [], []
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            rows = torch.log_softmax(model(torch.tensor([ids + greedy])).logits[0, -1], -1)
            greedy.append(int(rows.argmax()))
            logprobs.append(float(rows.max()))
    return Reference(folder, ids, greedy, logprobs, tokenizer.decode(greedy))


@asynccontextmanager
async def vllm(reference: Reference, cache: Path, mode: str) -> AsyncIterator[LocalService]:
    options: dict[str, Any] = {"mode": mode, "arguments": ARGUMENTS, "kv_cache_gib": 1}
    model = {"source": str(reference.folder), "served_names": ("v",), "framework": "vllm", "options": options}
    async with serving("vllm", cache, **model) as service:
        yield service


def request(prompt: Prompt, **sampling: Any) -> GenerateRequest:
    return GenerateRequest("r", "v", prompt, SamplingParams(**sampling))


async def ask(service: LocalService, prompt: Prompt, **sampling: Any) -> tuple[list[TextDelta], Any]:
    async with await service.generate(request(prompt, **sampling)) as stream:
        return [delta async for delta in stream], stream.usage


def text_of(deltas: list[TextDelta], choice: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.choice == choice)


async def check_answers(service: LocalService, reference: Reference) -> list[TextDelta]:
    """Greedy text, log-probabilities, counts, choices with a seed, stop strings: what both ways must do."""
    prompt = TokensPrompt(reference.prompt)
    deltas, usage = await ask(service, prompt, temperature=0.0, max_tokens=NUM_TOKENS, logprobs=1)
    assert text_of(deltas) == reference.text
    assert deltas[-1].finish_reason == "length"
    told = [entry.chosen.logprob for delta in deltas for entry in delta.logprobs]
    assert told == pytest.approx(reference.logprobs, abs=TOLERANCE)
    assert (usage.num_prompt_tokens, usage.num_output_tokens) == (len(reference.prompt), NUM_TOKENS)
    assert len(deltas) > 1

    several = [await ask(service, prompt, n=2, seed=7, temperature=1.0, max_tokens=8) for _ in range(2)]
    assert [text_of(several[0][0], choice) for choice in (0, 1)] == [
        text_of(several[1][0], choice) for choice in (0, 1)
    ]
    assert several[0][1].num_output_tokens == 16

    stop = reference.text[6:9]
    cut, _ = await ask(service, prompt, temperature=0.0, max_tokens=NUM_TOKENS, stop=(stop,))
    assert text_of(cut) == reference.text[: reference.text.index(stop)]
    assert cut[-1].finish_reason == "stop"

    chat, usage = await ask(service, PARIS, temperature=0.0, max_tokens=20)
    assert "Paris" in text_of(chat)
    assert (chat[-1].finish_reason, usage.num_output_tokens < 20) == ("stop", True)
    return deltas


async def check_leaving(service: LocalService, reference: Reference) -> None:
    """Who leaves is aborted, and the next one is answered."""
    endless = {"temperature": 0.0, "max_tokens": 400, "ignore_eos": True}
    async with await service.generate(request(TokensPrompt(reference.prompt), **endless)) as stream:
        await anext(aiter(stream))
    async with asyncio.timeout(60):
        while True:
            if not service.stats()["pool"]["pool"]["leases"]:
                break
            await asyncio.sleep(0.01)
    assert service.stats()["models"]["v"]["client_aborts_total"] == 1
    deltas, _ = await ask(service, TokensPrompt(reference.prompt), temperature=0.0, max_tokens=2)
    assert reference.text.startswith(text_of(deltas))


async def test_a_launched_server(reference: Reference, tmp_path: Path) -> None:
    async with vllm(reference, tmp_path, "launch") as service:
        await check_answers(service, reference)
        await check_leaving(service, reference)
        answer, _ = await ask(
            service,
            PARIS,
            temperature=0.0,
            max_tokens=60,
            structured_outputs=StructuredOutputsParams(regex=r"\{\"city\": \"[A-Z][a-z]{2,8}\"\}"),
        )
        assert text_of(answer).startswith('{"city": "')
        assert text_of(answer).endswith('"}')
        with pytest.raises(InvalidRequest, match="512"):
            await service.generate(request(TokensPrompt([5] * 600), max_tokens=4))
        (card,) = service.models()
        assert (card.max_model_len, card.state) == (512, "ready")
        assert card.num_bytes is not None
        assert card.num_bytes > 135e6 * 4
        (pid,) = service.worker_pids().values()
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        assert len(family) >= 3
    assert psutil.wait_procs(family, timeout=30)[1] == []


async def test_an_embedded_engine(reference: Reference, tmp_path: Path) -> None:
    async with vllm(reference, tmp_path, "embedded") as service:
        deltas = await check_answers(service, reference)
        assert [token_id for delta in deltas for token_id in delta.token_ids] == reference.greedy
        await check_leaving(service, reference)
        together = await asyncio.gather(
            *(ask(service, TokensPrompt(reference.prompt), temperature=0.0, max_tokens=n) for n in (3, 6, 9))
        )
        assert [usage.num_output_tokens for _, usage in together] == [3, 6, 9]
        for answered, _ in together:
            assert reference.text.startswith(text_of(answered))
        with pytest.raises(UnsupportedFeature, match="mode launch"):
            await service.generate(request(PARIS, structured_outputs=StructuredOutputsParams(regex="a+")))
        with pytest.raises(ContextLengthExceeded, match="512"):
            await service.generate(request(TokensPrompt([5] * 600), max_tokens=4))
        (pid,) = service.worker_pids().values()
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert psutil.wait_procs(family, timeout=30)[1] == []
