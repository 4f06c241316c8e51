"""The native door against clients that mean harm, and against changes at the worst moment."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.server.conftest import until
from tests.server.native_door_rig import Served, both, infer_body, post, predict, serving, told

from headway._native import Door, DoorConnection, Outlet
from headway.config import InferConfig, ServerConfig

BODY = infer_body()
HELD = infer_body([888, 1, 2, 3])


class Protocol:
    """What a DoorConnection tells."""

    def __init__(self) -> None:
        self.fed = b""

    def feed(self, data: bytes) -> None:
        self.fed += data


def door_of(server: Served) -> Door:
    """With the path of the model known."""
    door = cast(Any, server.door)._door
    assert door.num_entries
    return cast(Door, door)


def connect(server: Served) -> tuple[DoorConnection, Protocol]:
    """A connection without a socket."""
    protocol = Protocol()
    return DoorConnection(door_of(server), Outlet(object(), -1), protocol), protocol


async def test_what_comes_of_a_long_body_byte_by_byte_costs_no_more_than_those_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.ask(post(BODY))
        sent = post(BODY + b" " * 900_000)
        connection, _ = connect(server)
        assert connection.take(sent[:880_000]) is None
        began_s = time.process_time()
        for place in range(880_000, 882_000):
            assert connection.take(sent[place : place + 1]) is None
        assert time.process_time() - began_s < 0.1
        assert connection.is_gathering
        assert door_of(server).num_held_bytes == 882_000
        assert connection.release() == sent[:882_000]
        assert door_of(server).num_held_bytes == 0


async def test_all_connections_together_hold_no_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.native_door.MAX_HELD_BYTES", 100_000)
    async with serving(tmp_path) as server:
        await server.ask(post(BODY))
        part, padded = post(BODY + b" " * 100_000)[:30_000], post(BODY + b" " * 20_000)
        several = [connect(server)[0] for _ in range(3)]
        assert [each.take(part) for each in several] == [None] * 3
        late, _ = connect(server)
        assert late.take(part) == part  # to Python
        assert late.take(padded) == padded
        assert several[0].take(part) == part + part
        assert several[1].take(part) is None
        assert door_of(server).num_held_bytes == 90_000
        for each in several[1:]:
            each.lose()
        assert door_of(server).num_held_bytes == 0
        before = await server.num_native()
        assert (await server.ask(padded))[0].startswith(b"HTTP/1.1 200")
        assert await server.num_native() == before + 1
        assert door_of(server).num_held_bytes == 0


async def test_nothing_is_held_of_who_has_no_key(tmp_path: Path) -> None:
    async with serving(tmp_path, config=ServerConfig(api_keys=("secret",))) as server:
        await server.ask(post(BODY, "X-Api-Key: secret"))
        mine, other = [post(BODY, f"X-Api-Key: {key}")[:-10] for key in ("secret", "secreT")]
        assert connect(server)[0].take(other) == other
        assert door_of(server).num_held_bytes == 0
        connection, _ = connect(server)
        assert connection.take(mine) is None
        assert door_of(server).num_held_bytes == len(mine)


async def test_a_request_whose_client_left_is_held_no_longer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.ask(post(BODY))
        async with await server.connect() as wire:
            wire.writer.write(post(HELD))
            await server.wait_held()
            assert door_of(server).num_held_bytes == len(post(HELD))
        await until(lambda: door_of(server).num_held_bytes == 0)
        assert server.num_open()[:2] == (1, 1)
        server.let_go()
        await until(lambda: server.num_open() == (0, 0, 0))


async def test_a_body_over_the_servers_limit_is_refused_as_in_python(tmp_path: Path) -> None:
    long = [post(BODY + b" " * 2_000), predict("x" * 2_000)]
    answers = []
    async with both(tmp_path, config=ServerConfig(max_body_bytes=1024)) as servers:
        for server in servers:
            await server.ask(post(BODY), predict(1))
            answers.append([told((await server.ask(each))[0]) for each in long])
        assert await servers[0].num_native() == 0
    assert answers[0] == answers[1]
    assert [answer.split(b" ")[1] for answer in answers[0]] == [b"413"] * 2


async def test_an_output_is_told_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    """A body of 1 MiB could ask for one of a few hundred kilobytes some 70,000 times."""
    once, twice, many = [
        post(infer_body(outputs=[{"name": name} for name in names])) for names in ("yn", "yny", "yy" * 99)
    ]
    answers = []
    async with both(tmp_path) as servers:
        for server in servers:
            answers.append([told(answer) for answer in await server.ask(once, once, twice, many)])
        assert await servers[0].num_native() == 1
    assert answers[0] == answers[1]
    assert [answer.split(b" ")[1] for answer in answers[0]] == [b"200", b"200", b"400", b"400"]
    assert b"outputs has 'y' twice; ask for each output once" in answers[0][2]


@pytest.mark.parametrize("held", [post(HELD), predict({"x": {"data": [[888, 1, 2, 3]]}})], ids=["v2", "predict"])
async def test_a_name_that_leads_elsewhere_by_the_time_of_the_answer_is_learned_as_it_is_then(
    tmp_path: Path, held: bytes
) -> None:
    async with serving(tmp_path) as server, await server.connect() as wire:
        wire.writer.write(held)  # in Python: nothing is known yet
        await server.wait_held()
        roster = server.service.roster
        (old,) = roster.models
        new = roster.prepare(replace(old.config, version="2"))
        loading = asyncio.ensure_future(roster.load(new))
        async with asyncio.timeout(20):
            await loading
        roster.swap(old, new)
        server.let_go()
        assert (await wire.answer()).startswith(b"HTTP/1.1 200")
        asked = held.replace(b"888", b"111")
        answers = await server.ask(asked, asked, asked)
        assert [json.loads(answer.partition(b"\r\n\r\n")[2])["model_version"] for answer in answers] == ["2"] * 3
        assert await server.num_native() >= 2


async def test_a_time_out_that_is_changed_while_the_model_stays_holds_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.ask(post(BODY))
        (model,) = server.service.roster.models
        short = InferConfig(max_batch_size=8, timeout_s=0.2)
        server.service.roster.change(model, replace(model.config, infer=short))
        await server.ask(post(BODY), post(BODY))
        async with await server.connect() as wire:
            wire.writer.write(post(HELD))
            await until(lambda: server.num_open()[1] == 1)
            assert (await wire.answer()).startswith(b"HTTP/1.1 504")
        server.let_go()


async def test_nothing_is_learned_of_a_model_that_has_to_go(tmp_path: Path) -> None:
    """A request in Python that ends just then would let others hold it for ever."""
    async with serving(tmp_path) as server:
        await server.ask(post(BODY))
        (model,) = server.service.roster.models
        async with await server.connect() as wire:
            wire.writer.write(post(HELD))
            await server.wait_held()
            assert server.service.standing_lease("m") is not None
            unloading = asyncio.ensure_future(server.service.unload("m"))
            await until(lambda: server.service._residents.residency(model).is_leaving)
            assert server.service.standing_lease("m") is None
            server.let_go()
            assert (await wire.answer()).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(10):
            await unloading


async def test_a_request_that_is_not_whole_when_the_server_ends_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.ask(post(BODY))
        async with await server.connect() as wire:
            wire.writer.write(post(BODY)[:-10])
            await until(lambda: door_of(server).num_held_bytes == len(post(BODY)) - 10)
            server.http.stop()
            wire.writer.write(post(BODY)[-10:])
            assert (await wire.answer()).startswith(b"HTTP/1.1 503")


async def test_a_model_that_fails_while_the_connection_closes_is_counted(tmp_path: Path) -> None:
    """A transport closes only once its client has read what was written before."""
    async with serving(tmp_path) as server:
        await server.ask(post(BODY))
        async with await server.connect() as wire:
            wire.writer.write(post(HELD))
            await server.wait_held()
            await until(lambda: len(server.http._uvicorn.server_state.connections) == 1)
            (protocol,) = server.http._uvicorn.server_state.connections
            cast(Any, protocol).transport._is_closing = True
            (model,) = server.service.roster.models
            cast(Any, model.client)._instances[0].channel.kill("was killed by the test")
            line = 'handler="/v2/models/{model:path}/infer",method="POST",status="503"} 1.0'
            async with asyncio.timeout(10):
                while line not in await server.metrics():
                    pass


async def test_the_time_for_a_head_is_over_where_much_comes_behind_a_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.ask(post(BODY))
        async with await server.connect():
            await until(lambda: len(server.http._uvicorn.server_state.connections) == 1)
            protocol = cast(Any, next(iter(server.http._uvicorn.server_state.connections)))
            assert protocol._head_timer is not None
            protocol.data_received(post(HELD) + post(BODY + b" " * 70_000))
            assert protocol._native.is_busy
            assert protocol.flow.read_paused
            assert protocol._head_timer is None
            server.let_go()
            await until(lambda: not protocol.flow.read_paused)


async def test_empty_lines_do_not_keep_a_connection_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.server.connection.HEAD_TIMEOUT_S", 0.2)
    async with serving(tmp_path) as server, await server.connect() as wire:
        assert (await wire.ask(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 200")
        wire.writer.write(b"\r\n")
        assert (await wire.answer()).startswith(b"<end>")
