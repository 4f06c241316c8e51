"""An encoder's texts, natively and in Python: the same answers, errors and counts, whoever leaves meanwhile."""

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.server.conftest import listening, until
from tests.server.native_door_rig import Served, post, told

from headway.config import CheckpointConfig, EngineConfig, ModelConfig, PoolConfig, ServerConfig
from headway.server.app import make_app
from headway.service.local import LocalService
from headway.worker.client import WorkerClient
from parity.encoders import save_encoder

pytestmark = pytest.mark.asyncio(loop_scope="module")


def ask(value: Any, **fields: Any) -> bytes:
    return post(json.dumps({"model_id": "e", "input_data": value, **fields}).encode(), path="/predict")


@asynccontextmanager
async def encoding(folder: Path, *, native_door: bool) -> AsyncIterator[Served]:
    config = ServerConfig(port=0, drain_timeout_s=5, native_door=native_door)
    model = ModelConfig(source=str(folder), served_names=("e",), engine=EngineConfig(threads=1))
    service = LocalService([model], PoolConfig(), config, CheckpointConfig(cache_dir=folder))
    async with listening(make_app(service, config)) as server:
        await until(lambda: service.is_ready()[0], 30)
        yield Served(server, service, folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Served, Served]]:
    folder = tmp_path_factory.mktemp("encoder")
    save_encoder(folder, max_seq_length=40)
    async with encoding(folder, native_door=True) as native, encoding(folder, native_door=False) as plain:
        for server in (native, plain):
            await server.ask(ask("one"))  # from here on the model is known
        while not await native.num_native():  # ... and its process reads its tokenizer
            for server in (native, plain):
                await server.ask(ask("one"))
        yield native, plain


PLAIN = {
    "a text": ask("the quick brown fox"),
    "one in a list": ask(["one"]),
}
OTHER = {
    "texts": ask(["one", "two words", "\u00e9\u4e2d"]),
    "an empty text": ask(""),
    "an empty list": ask([]),
    "a number": ask(1),
    "a list with a number": ask(["a", 1]),
    "too long": ask("word " * 400),
    "parameters": ask("a", parameters={"a": 1}),
    "a time-out": ask("a", timeout_s=5),
}


@pytest.mark.parametrize("name", PLAIN)
async def test_texts_are_answered_natively_as_in_python(servers: tuple[Served, Served], name: str) -> None:
    native, _ = servers
    before = await native.num_native()
    got, wanted = [[told(answer) for answer in await server.ask(PLAIN[name], PLAIN[name])] for server in servers]
    assert got == wanted
    assert got[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert await native.num_native() == before + 2


@pytest.mark.parametrize("name", OTHER)
async def test_all_else_is_answered_in_python(servers: tuple[Served, Served], name: str) -> None:
    native, _ = servers
    before = await native.num_native()
    got, wanted = [[told(answer) for answer in await server.ask(OTHER[name], ask("a"))] for server in servers]
    assert got == wanted
    assert await native.num_native() == before + 1


async def test_what_is_counted_is_the_same(servers: tuple[Served, Served]) -> None:
    for server in servers:
        await server.ask(*PLAIN.values(), *OTHER.values())
    counted = [counts_of(await server.metrics()) for server in servers]
    assert counted[0] == counted[1]


def counts_of(metrics: str) -> list[str]:
    names = ("headway_http_requests_total", "headway_http_requests_open", "headway_encoder", "headway_embedding")
    lines = [line for line in metrics.splitlines() if line.startswith(names)]
    timed = ("/metrics", "_sum{", "_bucket{", "_created{")
    return sorted(line for line in lines if not any(each in line for each in timed))


async def test_one_text_goes_to_the_process_as_it_is(servers: tuple[Served, Served]) -> None:
    native = servers[0]
    native.door.forget()  # type: ignore[union-attr]
    for server in servers:
        await server.ask(ask("learned"))
    before = await native.num_native()
    for server in servers:
        await server.ask(ask("one"), ask(["one in a list"]), ask("two words"), ask(["a", "b"]), ask("ab " * 6000))
    assert await native.num_native() == before + 3  # several texts, and one of over 16 KiB, are left to Python


@contextmanager
def stopped(server: Served) -> Iterator[WorkerClient]:
    """Its encoder's process does nothing meanwhile."""
    client: Any = server.service.roster.models[0].client
    os.kill(client.pid, signal.SIGSTOP)
    try:
        yield client
    finally:
        if client.num_open:
            os.kill(client.pid, signal.SIGCONT)


def num_open(server: Served) -> float:
    return server.service.stats()["models"]["e"]["client_open_requests"]


async def test_a_client_that_leaves_its_one_text_is_counted_as_in_python(servers: tuple[Served, Served]) -> None:
    for server in servers:
        before = await server.num_native()
        with stopped(server):
            async with await server.connect() as wire:
                wire.writer.write(ask("one"))
                await until(lambda server=server: num_open(server) == 1)
            counted = 'headway_encoder_requests_total{model_name="e",outcome="abort",task="embeddings"} 1.0'
            while counted not in await server.metrics():
                pass
        await until(lambda server=server: num_open(server) == 0)
        assert await server.num_native() == before
    assert counts_of(await servers[0].metrics()) == counts_of(await servers[1].metrics())


async def test_a_client_that_leaves_ends_its_request(servers: tuple[Served, Served]) -> None:
    for server in servers:
        async with await server.connect() as wire:
            wire.writer.write(ask(["the quick brown fox"] * 3000))
            await until(lambda server=server: num_open(server) > 0)
        await until(lambda server=server: num_open(server) == 0)
        text = await server.metrics()
        assert 'handler="/predict",method="POST",status="499"} 2.0' in text
        assert "headway_http_requests_open 1.0" in text
        assert (await server.ask(ask("a")))[0].startswith(b"HTTP/1.1 200")


async def test_a_worker_that_dies_is_told_as_in_python(servers: tuple[Served, Served]) -> None:
    answers = []
    for server in servers:
        async with await server.connect() as wire:
            wire.writer.write(ask(["the quick brown fox"] * 3000))
            await until(lambda server=server: num_open(server) > 0)
            (model,) = server.service.roster.models
            client: Any = model.client
            client._channel.kill("was killed by the test")
            answers.append(told(await wire.answer()))
        assert (await server.ask(ask("a")))[0].startswith(b"HTTP/1.1 200")
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 503")


async def test_a_process_that_dies_with_one_text_is_told_as_in_python(servers: tuple[Served, Served]) -> None:
    while True:  # until its new process has read its tokenizer
        before = await servers[0].num_native()
        for server in servers:
            await server.ask(ask("one"))
        if await servers[0].num_native() > before:
            break
    answers = []
    for server in servers:
        async with await server.connect() as wire:
            with stopped(server) as client:
                wire.writer.write(ask("one"))
                await until(lambda server=server: num_open(server) == 1)
                assert client._num_plain == (server is servers[0])
                client._channel.kill("was killed by the test")
                answers.append(told(await wire.answer()))
        assert (await server.ask(ask("a")))[0].startswith(b"HTTP/1.1 200")
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 503")
