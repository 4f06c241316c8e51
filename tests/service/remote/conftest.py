"""Services in front of a scripted upstream."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headway.config import CheckpointConfig, InferConfig, ModelConfig, PoolConfig, ServerConfig
from headway.service.local import LocalService
from headway.testing.scripted_upstream import ScriptedUpstream

Serve = Callable[..., Awaitable[LocalService]]
WAIT_S = 30.0


async def until(is_there: Callable[[], object]) -> None:
    """Looks again and again: for what is seen from outside only."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if is_there():
                return
            await asyncio.sleep(0.002)


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as server:
        yield server


@pytest.fixture
async def serve(upstream: ScriptedUpstream, tmp_path: Path) -> AsyncIterator[Serve]:
    """Makes services whose model "far" is one of the upstream."""
    services: list[LocalService] = []

    async def make(
        *,
        framework: str = "openai",
        source: str | None = None,
        infer: InferConfig | None = None,
        server: ServerConfig | None = None,
        clock: Any = None,
        **options: Any,
    ) -> LocalService:
        model = ModelConfig(
            source=source or f"{upstream.url}/v1",
            served_names=("far",),
            framework=framework,
            options=options,
            infer=infer or InferConfig(),
        )
        service = LocalService(
            [model], PoolConfig(), server or ServerConfig(), CheckpointConfig(cache_dir=tmp_path), clock=clock
        )
        services.append(service)
        return service

    yield make
    for service in services:
        await service.aclose()
