"""A catalog over scripted models: each says what stands in the file that is its source, or the source's own name."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import headway_wire as wire
from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.catalog import CatalogEntry
from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt
from headway.core.sampling import SamplingParams
from headway.service.catalog import Catalog
from headway.service.catalog_store import CatalogStore, MemoryStore
from headway.service.local import LocalService
from headway.testing.script import Script, say
from headway.testing.scripted_service import ScriptedLoader

WAIT_S = 30.0


class Scripts(dict[str, Script]):
    """By source; a text that begins with broken can not be loaded."""

    def __missing__(self, source: str) -> Script:
        path = Path(source)
        path = path / "model.txt" if path.is_dir() else path
        text = path.read_text() if path.is_file() else source
        error = wire.Error(kind="CorruptCheckpoint", message=f"{text} can not be read") if "broken" in text else None
        return Script(reply=say(text), load_error=error, reasoning_parser="qwen3" if "reason" in text else "none")


class CatalogRig:
    """A service, its catalog, and questions to it."""

    def __init__(self, store: CatalogStore, models: list[ModelConfig], pool: PoolConfig) -> None:
        self.loader = ScriptedLoader({})
        self.loader.scripts = Scripts()
        checkpoint = CheckpointConfig(cache_dir=Path())
        self.service = LocalService(models, pool, ServerConfig(), checkpoint, loader=self.loader, keeps_first=False)
        self.catalog = Catalog(store, self.service, poll_s=3600)

    async def ask(self, model: str, prompt: str | Prompt = "hi", **sampling: Any) -> str:
        prompt = TextPrompt(prompt) if isinstance(prompt, str) else prompt
        request = GenerateRequest("r", model, prompt, SamplingParams(**sampling))
        async with await self.service.generate(request) as stream:
            assert stream.model == model
            return "".join([delta.text async for delta in stream])

    async def chat_ids(self, model: str, **switches: Any) -> list[int]:
        return await self.service.tokenize(
            model, ChatPrompt([{"role": "user", "content": "x"}], template_kwargs=switches)
        )

    def num_starts(self) -> int:
        return int(self.service.stats()["pool"]["pool"]["worker_starts_total"])

    async def until(self, is_there: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while True:
                if is_there():
                    return
                await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Looks twice, as a version has to be seen twice, and waits for what that began."""
        for _ in range(2):
            await self.catalog.look()
        await self.catalog.settled()


@asynccontextmanager
async def catalog_rig(
    *entries: CatalogEntry,
    store: CatalogStore | None = None,
    models: list[ModelConfig] | None = None,
    pool: PoolConfig | None = None,
) -> AsyncIterator[CatalogRig]:
    """Started."""
    rig = CatalogRig(store or MemoryStore(), models or [], pool or PoolConfig())
    await rig.service.start()
    try:
        await rig.catalog.start()
        for entry in entries:
            await rig.catalog.add(entry)
        yield rig
    finally:
        await rig.catalog.aclose()
        await rig.service.aclose()
