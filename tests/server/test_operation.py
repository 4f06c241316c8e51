"""What operators count on, over the real service with scripted models: the queue's limit, drains, deaths, numbers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import client_of, sse, until

from headway.config import PoolConfig
from headway.server.app import make_app
from headway.testing.fake_clock import FakeClock
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import ScriptedService

GAUGES_AT_REST = (
    "headway_num_requests_running",
    "headway_num_requests_waiting",
    "headway_requests_open",
    "headway_pool_leases",
    "headway_pool_requests_waiting",
)


def body(prompt: str = "x", **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "prompt": prompt, **fields}


@asynccontextmanager
async def serving(script: Script, **options: Any) -> AsyncIterator[tuple[ScriptedService, httpx2.AsyncClient]]:
    service = ScriptedService(script, **options)
    await service.start()
    try:
        await service.until_ready()
        async with client_of(make_app(service)) as client:
            yield service, client
    finally:
        await service.aclose()


async def scrape(client: httpx2.AsyncClient) -> dict[tuple[str, ...], float]:
    """(name, label values by their names' order) to value; every family has its words and its kind."""
    found = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram"), family.name
        for sample in family.samples:
            found[sample.name, *(sample.labels[name] for name in sorted(sample.labels))] = sample.value
    return found


@pytest.mark.case("queue-full-01")
async def test_beyond_the_queue_a_503_comes_at_once_and_is_counted_by_its_reason() -> None:
    script = Script(reply=say("ab", gates={0: "go"}), max_num_seqs=1)
    async with serving(script, pool=PoolConfig(max_queued_requests=2)) as (service, client):
        asked = [asyncio.ensure_future(client.post("/v1/completions", json=body())) for _ in range(10)]
        await until(lambda: sum(task.done() for task in asked) == 7)  # while the model has answered nothing
        service.open_gate("go")
        answers = await asyncio.gather(*asked)
        refused = [answer for answer in answers if answer.status_code == 503]
        assert [answer.json()["choices"][0]["text"] for answer in answers if answer.status_code == 200] == ["ab"] * 3
        assert len(refused) == 7
        for answer in refused:
            assert int(answer.headers["retry-after"]) >= 1
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("queue_full", "service_unavailable_error")
            assert "at most 2" in error["message"]
        assert (await scrape(client))["headway_admission_rejections_total", "queue_full"] == 7


@pytest.mark.case("queue-full-01")
async def test_each_choice_of_n_takes_its_own_place() -> None:
    script = Script(reply=say("a", gates={0: "go"}), max_num_seqs=1)
    async with serving(script, pool=PoolConfig(max_queued_requests=2)) as (service, client):
        first = asyncio.ensure_future(client.post("/v1/completions", json=body(n=2)))
        await until(lambda: service.stats()["models"]["scripted"].get("num_running"))
        assert (await client.post("/v1/completions", json=body(n=2))).status_code == 503
        service.open_gate("go")
        assert len((await first).json()["choices"]) == 2


async def test_gauges_are_back_at_zero_and_ends_are_counted_by_how() -> None:
    fault = Reply(tokens=[b"a", b"b"], error_at=1)
    script = Script(reply=say("abc"), replies={"fail": fault, "endless": say("abcd", is_endless=True, delay_s=0.001)})
    async with serving(script) as (service, client):
        assert (await client.post("/v1/completions", json=body())).status_code == 200
        assert (await client.post("/v1/completions", json=body("fail"))).status_code == 500
        late = await client.post("/v1/completions", json=body("endless", max_tokens=1000, timeout_s=0.05))
        assert late.json()["choices"][0]["finish_reason"] == "abort"
        await service.until_idle()
        found = await scrape(client)
        ends = {key[1]: value for key, value in found.items() if key[0] == "headway_request_success_total"}
        assert ends == {"stop": 1, "error": 1, "abort": 1}
        assert {value for key, value in found.items() if key[0] in GAUGES_AT_REST} == {0.0}
        assert min(found.values()) >= 0


async def test_a_request_that_does_not_end_in_time_gets_an_error_streamed_or_not() -> None:
    clock = FakeClock()
    async with serving(Script(reply=say("abc", gates={1: "never"})), clock=clock) as (service, client):
        whole = asyncio.ensure_future(client.post("/v1/completions", json=body()))
        streamed = asyncio.ensure_future(client.post("/v1/completions", json=body(stream=True)))
        await until(lambda: service.stats()["models"]["scripted"].get("num_running") == 2)
        draining = asyncio.ensure_future(service.drain(10.0))
        await asyncio.sleep(0)
        clock.advance(10.0)
        await draining
        answer = await whole
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert int(answer.headers["retry-after"]) >= 1
        *_, error, end = sse((await streamed).text)
        assert (error["error"]["code"], end) == ("shutting_down", "[DONE]")


@pytest.mark.case("health-loading-01")
async def test_a_dead_worker_is_unready_until_it_is_back_and_counted() -> None:
    clock = FakeClock()
    pool = PoolConfig(restart_delays_s=(5.0,))
    async with serving(Script(), is_in_process=False, pool=pool, clock=clock) as (service, client):
        service.worker().kill("was shot")
        await until(lambda: service.models()[0].state == "failed")
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        refused = await client.post("/v1/completions", json=body())
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        clock.advance(5.0)
        await service.until_ready()
        assert (await client.post("/v1/completions", json=body())).status_code == 200
        found = await scrape(client)
        names = ("starts", "restarts", "failures")
        assert [found[(f"headway_worker_{name}_total",)] for name in names] == [2, 1, 1]
