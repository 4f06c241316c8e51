"""Several models behind the real app: what a door tells of loads, evictions and waits."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.conftest import client_of, sse_events, until

from headway.config import ModelConfig, PoolConfig, ResidencyConfig
from headway.core.request import TextPrompt
from headway.errors import CorruptCheckpoint
from headway.server.app import make_app
from headway.testing.fake_clock import FakeClock
from headway.testing.script import Script, say
from headway.testing.scripted_service import ScriptedService

Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[ScriptedService] = []

    async def make_service(models: dict[str, Script], **options: Any) -> tuple[ScriptedService, httpx2.AsyncClient]:
        service = ScriptedService(models=models, **options)
        made.append(service)
        await service.start()
        return service, client_of(make_app(service))

    yield make_service
    for service in made:
        await service.aclose()


async def ask(client: httpx2.AsyncClient, model: str) -> httpx2.Response:
    response = await client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 4})
    assert response.status_code == 200, response.text
    return response


def timings(response: httpx2.Response) -> dict[str, float]:
    """The entries of Server-Timing, in milliseconds."""
    entries = (entry.split(";dur=") for entry in response.headers["server-timing"].split(", "))
    return {name: float(value) for name, value in entries}


async def scrape(client: httpx2.AsyncClient) -> dict[str, float]:
    lines = (await client.get("/metrics")).text.splitlines()
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def test_a_request_that_waited_for_a_load_says_how_long_and_for_what(make: Make, tmp_path: Path) -> None:
    clock = FakeClock()
    script = Script(load_waits_for=str(tmp_path / "go"))
    service, client = await make({"a": Script(), "b": script}, clock=clock)
    await service.until_ready()
    waiting = asyncio.create_task(ask(client, "b"))
    await until(lambda: "warm" in dict(service.card("b").phases))
    clock.advance(2.5)
    (tmp_path / "go").touch()
    waited = timings(await waiting)
    assert waited["wait"] == 2500.0
    assert waited["load-warm"] == 2500.0
    assert [name for name in waited if name != "wait"] == [
        "load-fetch",
        *(f"load-{phase}" for phase in ("start", "read", "build", "warm")),
    ]
    # Who did not wait says nothing.
    assert "server-timing" not in (await ask(client, "b")).headers


async def test_files_that_came_for_the_text_are_told_with_the_load(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    service, client = await make({"a": Script(), "b": Script()}, clock=clock)
    await service.until_ready()

    async def fetch(model: ModelConfig) -> Path:
        clock.advance(5.0)
        return Path()

    monkeypatch.setattr(service.loader, "resolve", fetch)
    assert await service.tokenize("b", TextPrompt("a")) == [97]
    assert timings(await ask(client, "b"))["load-fetch"] == 5000.0


async def test_a_streamed_answer_says_it_too(make: Make) -> None:
    _, client = await make({"a": Script(), "b": Script()})
    body = {"model": "b", "prompt": "x", "max_tokens": 4, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert {"wait", "load-read"} <= timings(response).keys()
        await response.aread()


async def test_a_refusal_says_how_long_it_was_waited_for(make: Make) -> None:
    _, client = await make({"a": Script(), "b": Script(load_error=CorruptCheckpoint("cut").to_wire())})
    response = await client.post("/v1/completions", json={"model": "b", "prompt": "x"})
    assert response.status_code == 500
    assert list(timings(response)) == ["wait"]


@pytest.mark.case("metrics-router-01", "idle-timer-02")
async def test_one_exposition_has_all_models_and_a_scrape_loads_none_and_resets_no_timer(make: Make) -> None:
    clock = FakeClock()
    scripts = {"a": Script(), "b": Script(), "c": Script()}
    residency = {"b": ResidencyConfig(idle_timeout_s=2.0)}
    service, client = await make(scripts, residency=residency, clock=clock, keeps_first=False)
    for model in "ab":
        await ask(client, model)
    await service.until_idle()
    clock.advance(1.5)
    numbers = await scrape(client)
    assert [numbers[f'headway_model_resident{{model_name="{model}"}}'] for model in "abc"] == [1.0, 1.0, 0.0]
    assert [numbers[f'headway_model_loads_total{{model_name="{model}"}}'] for model in "abc"] == [1.0, 1.0, 0.0]
    assert numbers["headway_models"] == 3.0
    assert numbers["headway_models_resident"] == 2.0
    assert numbers['headway_memory_charged_bytes{device="cpu"}'] == 2 * (64 << 20)
    assert numbers['headway_memory_limit_bytes{device="cpu"}'] > 0
    assert numbers['headway_pool_wait_seconds_count{model_name="b"}'] == 1.0
    assert (await client.get("/v1/models")).status_code == 200
    assert [card.state for card in service.models()] == ["ready", "ready", "cold"]
    clock.advance(0.5)
    await until(lambda: service.card("b").state == "cold")
    numbers = await scrape(client)
    assert numbers['headway_evictions_total{model_name="b",reason="idle"}'] == 1.0
    await ask(client, "b")
    assert (await scrape(client))['headway_model_loads_total{model_name="b"}'] == 2.0


@pytest.mark.case("evict-active-01")
async def test_a_stream_on_one_model_ends_before_another_takes_its_place(make: Make) -> None:
    scripts = {"a": Script(reply=say("abc", gates={1: "go"})), "b": Script(reply=say("I am b"))}
    service, client = await make(scripts, pool=PoolConfig(max_models=1))
    streaming = asyncio.create_task(ask(client, "a"))
    await until(lambda: service.stats()["models"]["a"].get("client_open_requests"))
    waiting = asyncio.create_task(ask(client, "b"))
    await until(lambda: service.stats()["pool"]["pool"]["waiting_requests"] and service.card("b").num_bytes)
    assert service.card("b").state == "cold"
    service.open_gate("go", "a")
    assert (await streaming).json()["choices"][0]["text"] == "abc"
    assert (await waiting).json()["choices"][0]["text"].startswith("I am")
    assert [card.state for card in service.models()] == ["cold", "ready"]


@pytest.mark.case("evict-active-01")
async def test_who_waits_too_long_for_room_gets_a_503_with_retry_after(make: Make) -> None:
    clock = FakeClock()
    scripts = {"a": Script(reply=say("abc", gates={1: "go"})), "b": Script()}
    pool = PoolConfig(max_models=1, queue_timeout_s=20.0)
    service, client = await make(scripts, pool=pool, clock=clock)
    streaming = asyncio.create_task(ask(client, "a"))
    await until(lambda: service.stats()["models"]["a"].get("client_open_requests"))
    waiting = asyncio.create_task(client.post("/v1/completions", json={"model": "b", "prompt": "x"}))
    await until(lambda: service.stats()["pool"]["pool"]["waiting_requests"])
    clock.advance(20.0)
    response = await waiting
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert "--queue-timeout" in response.text
    service.open_gate("go", "a")
    await streaming


async def test_progress_is_told_until_the_model_is_ready(make: Make, tmp_path: Path) -> None:
    clock = FakeClock()
    service, client = await make({"a": Script(load_waits_for=str(tmp_path / "go"))}, clock=clock)
    watching = asyncio.create_task(client.get("/admin/models/a/progress"))
    await until(lambda: "warm" in dict(service.card("a").phases))
    clock.advance(3.0)
    (tmp_path / "go").touch()
    response = await watching
    assert response.headers["content-type"].startswith("text/event-stream")
    events = sse_events(response.text)
    assert {name for name, _ in events} == {"progress"}
    told = [event for _, event in events]
    assert told[0]["state"] == "loading"
    assert told[-1]["state"] == "ready"
    assert told[-1]["phase"] is None
    assert [phase["phase"] for phase in told[-1]["phases"]] == ["fetch", "start", "read", "build", "warm"]
    assert told[-1]["phases"][-1]["seconds"] == 3.0


async def test_progress_of_a_model_that_fails_ends_with_the_reason_and_loads_nothing_itself(make: Make) -> None:
    error = CorruptCheckpoint("the file is cut").to_wire()
    service, client = await make({"a": Script(), "b": Script(load_error=error)})
    await service.until_ready()
    watching = asyncio.create_task(client.get("/admin/models/b/progress"))
    await until(lambda: service.roster.find("b").model.watchers)
    assert service.card("b").state == "cold"
    await client.post("/v1/completions", json={"model": "b", "prompt": "x"})
    events = sse_events((await watching).text)
    assert events[0][1]["state"] == "cold"
    assert (events[-1][1]["state"], events[-1][1]["error"]) == ("failed", "the file is cut")
    assert not service.roster.find("b").model.watchers
    assert (await client.get("/admin/models/nobody/progress")).status_code == 404
