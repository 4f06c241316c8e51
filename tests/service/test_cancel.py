"""A caller may be cancelled at each of its awaits: nothing stays leased, open, running or waiting."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headway.core.request import GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams
from headway.testing.script import Script, say
from headway.testing.scripted_service import ScriptedService
from headway.worker.prompt import LONG_TEXT_CHARACTERS


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    service = ScriptedService(Script(reply=say("abcdefgh"), max_model_len=200_000))
    await service.start()
    yield service
    await service.aclose()


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("text", ["hi", "word " * LONG_TEXT_CHARACTERS], ids=["short", "in a thread"])
async def test_a_caller_that_is_cancelled_after_any_number_of_turns_leaves_nothing(
    service: ScriptedService, text: str, is_loaded: bool
) -> None:
    if is_loaded:
        await service.until_ready()
    reached = set()

    async def ask() -> None:
        sampling = SamplingParams(n=2, timeout_s=1000.0)
        async with await service.generate(GenerateRequest("r", "scripted", TextPrompt(text), sampling)) as stream:
            reached.add("stream")
            async for _ in stream:
                reached.add("text")
        reached.add("end")

    for num_turns in [*range(12), 10**6]:
        task = asyncio.create_task(ask())
        for _ in range(num_turns):
            if task.done():
                break
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    assert reached == {"stream", "text", "end"}
    await service.until_idle()
    assert service.stats()["pool"]["pool"]["leases"] == 0
    assert not service._residents._waiting
