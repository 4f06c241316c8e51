"""The native door while things change: clients that leave, processes that die, models that go, servers that end."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import until
from tests.server.native_door_rig import Served, Wire, both, infer_body, post, serving, told

from headway.config import InferConfig, PoolConfig, ResidencyConfig
from headway.observe.logs import set_up_logs

BODY = infer_body()
HELD = infer_body([888, 1, 2, 3])


@asynccontextmanager
async def known(folder: Path, **settings: Any) -> AsyncIterator[Served]:
    """A server whose model has been asked, so that its path is known."""
    async with serving(folder, **settings) as server:
        await server.ask(post(BODY))
        yield server
        await until(lambda: server.num_open() == (0, 0, 0)) if server.service.roster.models[0].client else None


@asynccontextmanager
async def holding(server: Served) -> AsyncIterator[Wire]:
    """A native request that its model computes until let_go()."""
    async with await server.connect() as wire:
        wire.writer.write(post(HELD))
        await server.wait_held()
        assert server.num_open()[1] == 1
        yield wire


async def test_a_client_that_leaves_is_counted_and_its_request_is_owed(tmp_path: Path) -> None:
    async with known(tmp_path) as server:
        async with holding(server):
            assert "headway_http_requests_open 2.0" in await server.metrics()
        await until(lambda: not server.http._uvicorn.server_state.connections)
        assert server.num_open()[:2] == (1, 1)
        text = await server.metrics()
        assert 'handler="/v2/models/{model:path}/infer",method="POST",status="499"} 1.0' in text
        assert "headway_http_disconnects_total 1.0" in text
        assert 'headway_infer_requests_total{model_name="m",outcome="abort"} 1.0' in text
        assert "headway_http_requests_open 1.0" in text
        server.let_go()
        assert (await server.ask(post(BODY)))[0].startswith(b"HTTP/1.1 200")


async def test_a_process_that_dies_is_told_as_in_python_and_the_next_one_is_asked(tmp_path: Path) -> None:
    answers = []
    async with both(tmp_path) as servers:
        for server in servers:
            await server.ask(post(BODY))
            got = await server.ask(post(infer_body([999, 1, 2, 3])), post(BODY), post(BODY), post(BODY))
            answers.append([told(answer) for answer in got[:1]])
            assert [answer.split(b" ")[1] for answer in got[1:]] == [b"200"] * 3
        assert answers[0] == answers[1]
        assert answers[0][0].startswith(b"HTTP/1.1 503")
        assert await servers[0].num_native() >= 2


async def test_a_call_whose_process_died_is_made_again_where_that_is_wished(tmp_path: Path) -> None:
    async with known(tmp_path, infer=InferConfig(max_retries=1)) as server, holding(server) as wire:
        (model,) = server.service.roster.models
        server.let_go()
        client: Any = model.client
        client._instances[0].channel.kill("was killed by the test")
        assert (await wire.answer()).startswith(b"HTTP/1.1 200")


async def test_an_unload_waits_for_what_runs_and_the_next_request_loads_again(tmp_path: Path) -> None:
    async with known(tmp_path) as server:
        async with holding(server) as wire:
            unloading = asyncio.ensure_future(server.service.unload("m"))
            await until(lambda: server.service._residents.residency(server.service.roster.models[0]).is_leaving)
            server.let_go()
            assert (await wire.answer()).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(10):
            await unloading
        assert server.service.card("m").state == "cold"
        before = await server.num_native()
        assert [answer.split(b" ")[1] for answer in await server.ask(*[post(BODY)] * 3)] == [b"200"] * 3
        assert await server.num_native() == before + 2


async def test_the_lease_ends_when_nobody_asks_and_tells_how_often_it_was_used(tmp_path: Path) -> None:
    async with known(tmp_path) as server:
        (model,) = server.service.roster.models

        def residency() -> Any:
            return server.service._residents.residency(model)

        await until(lambda: residency().num_leases == 0)
        before = residency().num_uses
        await server.ask(*[post(BODY)] * 5)
        await until(lambda: residency().num_leases == 0 and residency().num_uses == before + 5)


async def test_a_model_that_is_asked_all_the_time_makes_room_for_another(tmp_path: Path) -> None:
    async with serving(tmp_path, names=("m", "other"), pool=PoolConfig(max_models=1)) as server:
        await server.ask(post(BODY))
        is_over, num_answers = False, 0

        async def ask() -> None:
            nonlocal num_answers
            async with await server.connect() as wire:
                while not is_over:
                    assert (await wire.ask(post(BODY))).startswith(b"HTTP/1.1 200")
                    num_answers += 1

        asking = [asyncio.ensure_future(ask()) for _ in range(3)]
        await until(lambda: num_answers > 50)
        for _ in range(2):
            (answer,) = await server.ask(post(BODY, path="/v2/models/other/infer"))
            assert answer.startswith(b"HTTP/1.1 200")
        num_before = num_answers
        await until(lambda: num_answers > num_before + 20)
        is_over = True
        await asyncio.gather(*asking)


async def test_a_name_that_leads_elsewhere_is_looked_up_again(tmp_path: Path) -> None:
    async with known(tmp_path) as server:
        await server.ask(post(BODY))
        (model,) = server.service.roster.models
        server.service.roster.change(model, replace(model.config, served_names=("renamed",)))
        old, new = await server.ask(post(BODY), post(BODY, path="/v2/models/renamed/infer"))
        assert old.startswith(b"HTTP/1.1 404")
        assert new.startswith(b"HTTP/1.1 200")


async def test_an_idle_model_is_unloaded_in_its_time(tmp_path: Path) -> None:
    async with serving(tmp_path, residency=ResidencyConfig(idle_timeout_s=0.3)) as server:
        await server.ask(*[post(BODY)] * 5)
        assert await server.num_native() == 4
        await until(lambda: server.service.card("m").state == "cold")


async def test_a_swap_fails_no_request(tmp_path: Path) -> None:
    async with known(tmp_path) as server:
        roster = server.service.roster
        is_over = False
        versions = []

        async def ask() -> None:
            async with await server.connect() as wire:
                while not is_over:
                    answer = await wire.ask(post(BODY))
                    assert answer.startswith(b"HTTP/1.1 200"), answer
                    versions.append(json.loads(answer.partition(b"\r\n\r\n")[2])["model_version"])

        asking = [asyncio.ensure_future(ask()) for _ in range(4)]
        for version in ("2", "3"):
            (old,) = roster.models
            new = roster.prepare(replace(old.config, version=version))
            await roster.load(new)
            roster.swap(old, new)
            await until(lambda version=version: versions and versions[-1] == version)
        num_asked, num_native = len(versions), await server.num_native()
        await until(lambda: len(versions) > num_asked + 20)
        is_over = True
        await asyncio.gather(*asking)
        assert await server.num_native() > num_native + 10
        assert versions == sorted(versions) or set(versions[-10:]) == {"3"}


async def test_a_deadline_is_told_as_in_python(tmp_path: Path) -> None:
    answers = []
    async with both(tmp_path, infer=InferConfig(timeout_s=0.2)) as servers:
        for server in servers:
            await server.ask(post(BODY))
            answers.append(told((await server.ask(post(HELD)))[0]))
            server.let_go()
            assert (await server.ask(post(BODY)))[0].startswith(b"HTTP/1.1 200")
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 504")


async def test_one_place_is_shared_with_the_python_way(tmp_path: Path) -> None:
    one = InferConfig(concurrency=1)
    async with known(tmp_path, infer=one) as server, holding(server) as wire, await server.connect() as second:
        second.writer.write(post(BODY))
        await until(lambda: server.service.stats()["models"]["m"]["num_waiting"] == 1)
        assert server.num_open()[:2] == (1, 1)
        server.let_go()
        assert (await wire.answer()).startswith(b"HTTP/1.1 200")
        assert (await second.answer()).startswith(b"HTTP/1.1 200")


async def test_what_runs_is_answered_when_the_server_ends(tmp_path: Path) -> None:
    async with known(tmp_path) as server, holding(server) as wire:
        server.http.stop()
        assert (await server.ask(post(BODY)))[0].startswith(b"HTTP/1.1 503")
        server.let_go()
        answer = await wire.answer()
        assert answer.startswith(b"HTTP/1.1 200")
        assert (await wire.answer()) == b"<end>"


async def test_an_idle_connection_is_closed_in_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.server.run.KEEP_ALIVE_S", 0.3)
    async with known(tmp_path) as server, await server.connect() as wire:
        for _ in range(3):
            assert (await wire.ask(post(BODY))).startswith(b"HTTP/1.1 200")
        began_s = asyncio.get_running_loop().time()
        assert await wire.answer() == b"<end>"
        assert 0.25 < asyncio.get_running_loop().time() - began_s < 5


async def test_each_request_has_its_line_in_the_log(tmp_path: Path) -> None:
    stream = io.StringIO()
    async with both(tmp_path) as servers:
        lines = []
        for server in servers:
            set_up_logs("json", "info", stream)
            await server.ask(post(BODY))
            asked = [post(infer_body([n, 1, 2, 3]), f"X-Request-Id: line{n}") for n in range(5)]
            await server.ask(*asked)
            await until(lambda: stream.getvalue().count('"request_id":"line') == 5)
            found = [json.loads(line) for line in stream.getvalue().splitlines()]
            lines.append([line for line in found if str(line.get("request_id")).startswith("line")])
            stream.seek(0)
            stream.truncate()
        for native, plain in zip(*lines, strict=True):
            assert list(native) == list(plain)
            for name in native.keys() - {"timestamp", "duration_s"}:
                assert native[name] == plain[name]
