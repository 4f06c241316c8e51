"""A model in a process of its own behind two real servers, with the native door and without: raw bytes to both."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tests.server.conftest import listening, until

from headway.config import CheckpointConfig, InferConfig, ModelConfig, PoolConfig, ResidencyConfig, ServerConfig
from headway.server.app import make_app, server_state
from headway.server.native_door import NativeDoor
from headway.server.run import HttpServer
from headway.service.local import LocalService
from headway.worker.infer_client import InferClient

MODEL = """
import os, time
import numpy as np

FOLDER = os.path.dirname(os.path.abspath(__file__))

class Model:
    inputs = {"x": ("FP32", [-1, 4])}
    outputs = {"y": ("FP32", [-1, 4]), "n": ("INT64", [-1])}
    can_batch = True

    def predict(self, value):
        if value == "refuse":
            raise ValueError("refused")
        if value == "bytes":
            return b"bytes"
        if value == "nan":
            return float("nan")
        return {"got": value, "again": [value, None, True, 1.5e300, -0.0, 2**53]}

    def predict_tensors(self, arrays):
        x = arrays["x"]
        for code in x[:, 0].astype(int):
            if code == 666:
                raise ValueError("the devil's number")
            if code == 777:
                return {"y": x * np.nan, "n": np.arange(len(x))}
            if code == 888:
                open(os.path.join(FOLDER, "waits"), "w").close()
                while not os.path.exists(os.path.join(FOLDER, "go")):
                    time.sleep(0.002)
            if code == 999:
                os._exit(3)
        return {"y": x * 2, "n": np.arange(len(x))}
"""
PATH = "/v2/models/m/infer"
_ID = re.compile(rb"(?m)^(x-request-id|date): [^\r]*\r\n")


@dataclass
class Served:
    """One server and its service."""

    http: HttpServer
    service: LocalService
    folder: Path

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.http.url.removeprefix("http://").rsplit(":", 1)
        return host, int(port)

    @property
    def door(self) -> NativeDoor | None:
        return server_state(self.http._app).native_door

    async def connect(self) -> "Wire":
        return Wire(*await asyncio.open_connection(*self.address))

    async def ask(self, *requests: bytes) -> list[bytes]:
        """On one connection, one after the other."""
        async with await self.connect() as wire:
            return [await wire.ask(request) for request in requests]

    async def num_native(self, *headers: str) -> int:
        """Answers of native code so far."""
        text = await self.metrics(*headers)
        return int(sum(float(value) for value in re.findall(r"headway_http_native_requests_total\{.*\} (.*)", text)))

    async def metrics(self, *headers: str) -> str:
        lines = ["GET /metrics HTTP/1.1", "Host: localhost", *headers, "", ""]
        return (await self.ask("\r\n".join(lines).encode()))[0].decode()

    def num_open(self) -> tuple[int, int, int]:
        """At the model, on the native way, and in bytes."""
        (model,) = self.service.roster.models
        plain = cast(InferClient, model.client).plain
        return plain.num_at_work, plain.num_in_flight, plain.num_open_bytes

    async def wait_held(self) -> None:
        """A request with 888 is being computed."""
        await until(lambda: (self.folder / "waits").exists())

    def let_go(self) -> None:
        """It goes on."""
        (self.folder / "go").touch()


@dataclass
class Wire:
    """A client's connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()

    async def ask(self, request: bytes) -> bytes:
        self.writer.write(request)
        return await self.answer()

    async def answer(self) -> bytes:
        """Head and body of the next answer; what came where there is no more."""
        async with asyncio.timeout(20):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
                found = re.search(rb"(?m)^content-length: (\d+)", head)
                return head + (await self.reader.readexactly(int(found[1])) if found else b"")
            except asyncio.IncompleteReadError as error:
                return b"<end>" + error.partial


def told(answer: bytes) -> bytes:
    """Without what differs by nature: the date, and a made request id."""
    return _ID.sub(b"", answer)


def infer_body(*rows: list[float], **fields: Any) -> bytes:
    data = [number for row in rows or ([1, 2, 3, 4],) for number in row]
    inputs = [{"name": "x", "datatype": "FP32", "shape": [len(data) // 4, 4], "data": data}]
    return json.dumps({"inputs": inputs, **fields}).encode()


def predict(value: Any, **fields: Any) -> bytes:
    return post(json.dumps({"model_id": "m", "input_data": value, **fields}).encode(), path="/predict")


def post(body: bytes, *headers: str, path: str = PATH, host: str = "localhost") -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _write_model(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(MODEL)


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    config: ServerConfig | None = None,
    infer: InferConfig | None = None,
    pool: PoolConfig | None = None,
    residency: ResidencyConfig | None = None,
    names: Sequence[str] = ("m",),
) -> AsyncIterator[Served]:
    _write_model(folder)
    config = replace(config or ServerConfig(), port=0, drain_timeout_s=5)
    models = [
        ModelConfig(
            source=str(folder),
            served_names=(name,),
            framework="python",
            type="tensor",
            infer=infer or InferConfig(max_batch_size=8),
            residency=residency or ResidencyConfig(),
        )
        for name in names
    ]
    service = LocalService(models, pool or PoolConfig(), config, CheckpointConfig(cache_dir=folder))
    async with listening(make_app(service, config)) as server:
        await until(lambda: service.is_ready()[0], 20)
        yield Served(server, service, folder)


@asynccontextmanager
async def both(folder: Path, **settings: Any) -> AsyncIterator[tuple[Served, Served]]:
    """With the native door, and without."""
    config = settings.pop("config", ServerConfig())
    async with AsyncExitStack() as stack:
        native = stack.enter_async_context(serving(folder / "a", config=config, **settings))
        plain = stack.enter_async_context(serving(folder / "b", config=replace(config, native_door=False), **settings))
        yield await native, await plain
