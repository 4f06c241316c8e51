"""The real loader, child and engine over the tiny model, whose every answer is known."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headway.config import CheckpointConfig, EngineConfig, ModelConfig, PoolConfig, ServerConfig, TextConfig
from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt
from headway.core.sampling import SamplingParams
from headway.errors import HeadwayError, InvalidConfig, WorkerDied
from headway.service.local import LocalService
from headway.testing.tiny_model import greedy_by_hand, logits_by_hand, write_tiny_model

WAIT_S = 60.0
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def make_service(folder: Path, *, text: TextConfig | None = None, **engine: object) -> LocalService:
    config = EngineConfig(dtype="float32", threads=1, kv_cache_memory=2**26, **engine)  # type: ignore[arg-type]
    model = ModelConfig(source=str(folder), engine=config, text=text or TextConfig())
    return LocalService([model], PoolConfig(), ServerConfig(), CheckpointConfig(cache_dir=folder / "cache"))


@pytest.fixture
async def service(folder: Path) -> AsyncIterator[LocalService]:
    service = make_service(folder)
    await service.start()
    yield service
    await service.aclose()


def request(prompt: str | Prompt, **sampling: object) -> GenerateRequest:
    prompt = TextPrompt(prompt) if isinstance(prompt, str) else prompt
    return GenerateRequest("r", "tiny", prompt, SamplingParams(temperature=0.0, **sampling))  # type: ignore[arg-type]


async def ask(service: LocalService, prompt: str | Prompt, **sampling: object) -> str:
    async with await service.generate(request(prompt, **sampling)) as stream:
        return "".join([delta.text async for delta in stream])


async def test_answers_logprobs_and_usage_are_those_worked_by_hand(service: LocalService) -> None:
    async with asyncio.timeout(WAIT_S):
        async with await service.generate(request("ab", logprobs=3)) as stream:
            deltas = [delta async for delta in stream]
        assert "".join(delta.text for delta in deltas) == ALPHABET[2:]
        assert deltas[-1].finish_reason == "stop"
        assert stream.usage.num_output_tokens == 25
        expected = greedy_by_hand(list(b"ab"), 100)
        assert [token_id for delta in deltas for token_id in delta.token_ids] == expected
        first = deltas[0].logprobs[0]
        # -0.3297 = ln(0.7191), the worked example of the tiny model.
        assert first.chosen.logprob == pytest.approx(-0.3297, abs=1e-3)
        assert [entry.token for entry in first.top] == ["c", "a", "b"]
        context = list(b"ab") + expected[:9]
        ranked = sorted(logits_by_hand(context), reverse=True)
        top = deltas[9].logprobs[0].top
        assert top[0].logprob - top[1].logprob == pytest.approx(ranked[0] - ranked[1], abs=1e-3)
        prompts = ["hello w", "x", "!", "zebra", "abc" * 20]
        answers = await asyncio.gather(*(ask(service, prompt) for prompt in prompts))
        assert answers == [bytes(greedy_by_hand(list(p.encode()), 100)[:-1]).decode() for p in prompts]
        assert await ask(service, ChatPrompt([{"role": "user", "content": "hi"}])) == ALPHABET
        assert await ask(service, "a", stop=("fg",)) == "bcde"
        card = service.models()[0]
        assert (card.id, card.max_model_len, card.state) == ("tiny", 512, "ready")


async def test_readers_that_leave_at_any_point_leave_no_block_behind(service: LocalService) -> None:
    prefix = "the same prefix for all of them " * 2

    async def read_some(number: int) -> None:
        prompt = prefix + "abc"[number % 3]
        async with await service.generate(request(prompt, n=1 + number % 3, ignore_eos=True, max_tokens=60)) as stream:
            deltas = aiter(stream)
            for _ in range(number * 3):
                if await anext(deltas, None) is None:
                    return

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*map(read_some, range(16)))
        # All of them may have entered in the same step, before there was a prefix to find.
        await ask(service, prefix + "a", max_tokens=1)
        assert await ask(service, "ab") == ALPHABET[2:]
        while True:
            stats = service.stats()["models"]["tiny"]
            if not any(stats[name] for name in ("client_open_requests", "num_requests", "num_running", "num_waiting")):
                break
            await asyncio.sleep(0.01)
    assert stats["num_used_blocks"] == 0
    assert stats["num_free_blocks"] + stats["num_cached_blocks"] == stats["num_blocks"]
    assert stats["prefix_cache_hits_total"] > 0


async def test_a_killed_engine_comes_back_with_the_same_answers(service: LocalService) -> None:
    async with asyncio.timeout(WAIT_S):
        stream = await service.generate(request("a", ignore_eos=True, max_tokens=400))
        await anext(aiter(stream))
        os.kill(service.worker_pids()["tiny"], signal.SIGKILL)
        killed_at = time.monotonic()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            [delta async for delta in stream]
        assert time.monotonic() - killed_at < 1.0
        assert await ask(service, "ab") == ALPHABET[2:]


@pytest.mark.parametrize(
    ("engine", "text", "words"),
    [
        ({"max_model_len": 10**9}, None, "max_model_len"),
        ({}, TextConfig(chat_template="{% broken"), "template"),
        ({}, TextConfig(generation_config="/no/such/folder"), "/no/such/folder"),
    ],
)
async def test_a_configuration_that_cannot_be_is_told(
    folder: Path, engine: dict[str, object], text: TextConfig | None, words: str
) -> None:
    service = make_service(folder, text=text, **engine)
    try:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(HeadwayError, match=words) as caught:
                await ask(service, "a")
        assert isinstance(caught.value, InvalidConfig)
    finally:
        await service.aclose()
