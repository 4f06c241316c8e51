"""Headway inside your own FastAPI application: its routes under /llm, yours beside them.

Run: uvicorn mounted_app:app    Ask: http://127.0.0.1:8000/llm/v1/chat/completions
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig, default_cache_dir
from headway.server.app import lifespan_of, make_app
from headway.service.local import LocalService

model = ModelConfig(source=os.environ.get("MODEL", "demo"), served_names=("demo",))
checkpoint = CheckpointConfig(cache_dir=default_cache_dir())
llm = make_app(LocalService([model], PoolConfig(), ServerConfig(), checkpoint))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with lifespan_of(llm):  # a mounted application's own lifespan is never run
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/llm", llm)


@app.get("/")
def home() -> dict[str, str]:
    return {"chat": "/llm/v1/chat/completions"}
