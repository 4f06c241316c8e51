"""Several models behind one door, one of them resident: who waits, who is loaded, what is counted, what fails."""

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import client_of, until

import headway_wire as wire
from checkpoint.conftest import GgufModel
from headway.config import CheckpointConfig, EngineConfig, ModelConfig, PoolConfig, ServerConfig
from headway.server.app import lifespan_of, make_app
from headway.service.loader import ProcessLoader, make_worker_client
from headway.service.local import LocalService
from headway.testing.script import Script, say
from headway.testing.scripted_service import ScriptedService
from headway.testing.thread_worker import ThreadWorker
from headway.testing.tiny_model import write_tiny_model
from headway.worker.resident import ClientSettings, ResidentClient

NAMES = ("first", "second", "third")


@asynccontextmanager
async def serving(
    scripts: Mapping[str, Script], **options: Any
) -> AsyncIterator[tuple[ScriptedService, httpx2.AsyncClient]]:
    service = ScriptedService(models=scripts, **options)
    await service.start()
    try:
        async with client_of(make_app(service)) as client:
            yield service, client
            await service.until_idle()
    finally:
        await service.aclose()


async def ask(client: httpx2.AsyncClient, model: str, **fields: Any) -> httpx2.Response:
    return await client.post("/v1/completions", json={"model": model, "prompt": "x", **fields})


async def scrape(client: httpx2.AsyncClient) -> dict[tuple[str, str], float]:
    """(family, model_name) to the sum of its samples; parsing it is part of the test."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("model_name", "")
            found[key] = found.get(key, 0) + sample.value
    return found


@pytest.mark.case("metrics-router-01")
async def test_one_exposition_tells_of_all_models_and_loads_none() -> None:
    async with serving({name: Script(reply=say(name)) for name in NAMES}) as (service, client):
        await service.until_ready()
        for name in NAMES[:2]:
            assert (await ask(client, name)).json()["choices"][0]["text"] == name
        await service.until_idle()
        starts = (await scrape(client))["headway_worker_starts_total", ""]
        states = [card.state for card in service.models()]
        for _ in range(3):
            found = await scrape(client)
            for path in ("/v1/models", "/admin/models", "/health", f"/v1/models/{NAMES[2]}"):
                assert (await client.get(path)).status_code == 200
        counted = [found.get(("headway_request_success_total", name), 0) for name in NAMES]
        assert counted == [1, 1, 0]
        assert starts == 2
        assert found["headway_worker_starts_total", ""] == starts
        assert [card.state for card in service.models()] == states
        assert states[2] == "cold"


@pytest.mark.case("dup-load-05")
async def test_twenty_first_requests_load_their_model_once(tmp_path: Path) -> None:
    door = tmp_path / "door"
    scripts = {"first": Script(reply=say("1")), "second": Script(reply=say("2"), load_waits_for=str(door))}
    async with serving(scripts) as (service, client):
        await service.until_ready()
        asked = [asyncio.ensure_future(ask(client, "second")) for _ in range(20)]
        await until(lambda: service.stats()["pool"]["pool"]["waiting_requests"] == 20)
        door.touch()
        answers = await asyncio.gather(*asked)
        assert [answer.json()["choices"][0]["text"] for answer in answers] == ["2"] * 20
        assert (await scrape(client))["headway_worker_starts_total", ""] == 2


@pytest.mark.case("dup-load-05")
async def test_a_load_that_fails_is_told_to_all_who_wait_and_tried_again(tmp_path: Path) -> None:
    fault = wire.Error(kind="TensorMismatch", message="no such tensor")
    scripts = {"first": Script(reply=say("1")), "second": Script(load_error=fault)}
    async with serving(scripts, pool=PoolConfig(reload_delays_s=(0.0,))) as (service, client):
        await service.until_ready()
        answers = await asyncio.gather(*(ask(client, "second") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {500}
        assert {answer.json()["error"]["message"] for answer in answers} == {"no such tensor"}
        service.loader.scripts["second"] = Script(reply=say("mended"))
        assert (await ask(client, "second")).json()["choices"][0]["text"] == "mended"
        assert (await ask(client, "first")).status_code == 200


@pytest.mark.case("evict-active-01")
async def test_a_model_that_is_asked_for_waits_until_the_other_ones_stream_has_ended() -> None:
    scripts = {"first": Script(reply=say("long", gates={2: "go"})), "second": Script(reply=say("2"))}
    async with serving(scripts, pool=PoolConfig(max_models=1)) as (service, client):
        await service.until_ready()
        running = asyncio.ensure_future(ask(client, "first", stream=True))
        await until(lambda: service.stats()["pool"]["pool"]["leases"] == 1)
        waiting = asyncio.ensure_future(ask(client, "second"))
        await until(lambda: service.stats()["pool"]["pool"]["waiting_requests"] == 1)
        # What it needs is looked up meanwhile; then it waits for the place.
        await until(lambda: [card.state for card in service.models()] == ["ready", "cold"])
        service.open_gate("go", "first")
        assert (await running).text.endswith("data: [DONE]\n\n")
        assert (await waiting).json()["choices"][0]["text"] == "2"


class ThreadLoader(ProcessLoader):
    """Real predictors in threads of this process."""

    async def connect(self, model: ModelConfig, name: str, settings: ClientSettings) -> ResidentClient:
        client = make_worker_client(name, settings)
        client.attach(ThreadWorker(name, client))
        return client


def unknown_type(whole: bytes) -> bytes:
    """The first tensor's type, behind its name, dimensions and sizes, is a number that no type has."""
    name = b"blk.0.attn_q.weight"
    at = whole.index(name) + len(name) + 4 + 2 * 8
    return whole[:at] + struct.pack("<I", 999) + whole[at + 4 :]


def broken_files(folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """Files that can not be served, and the words of why."""
    whole = GgufModel().write(folder / "whole.gguf").read_bytes()
    unknown = GgufModel(architecture="nosuch").write(folder / "architecture.gguf")
    written = {
        "truncated": (whole[: len(whole) - 40], ["cut short"]),
        "magic": (b"GGML" + whole[4:], ["GGML"]),
        "type": (unknown_type(whole), ["999"]),
        "nothing": (b"", ["empty"]),
    }
    found = {"architecture": (unknown, ["nosuch", "llama", "qwen3"])}
    for name, (data, words) in written.items():
        path = folder / f"{name}.gguf"
        path.write_bytes(data)
        found[name] = path, words
    return found


@pytest.mark.case("gguf-arch-01")
async def test_a_file_that_can_not_be_served_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    files = broken_files(tmp_path)
    good = write_tiny_model(tmp_path / "tiny")
    engine = EngineConfig(threads=1, max_num_seqs=2, executor="native", kv_cache_memory=1 << 20)
    models = [ModelConfig(source=str(good), served_names=("good",), engine=engine)]
    models += [ModelConfig(source=str(path), served_names=(name,), engine=engine) for name, (path, _) in files.items()]
    checkpoint = CheckpointConfig(cache_dir=tmp_path)
    service = LocalService(models, PoolConfig(), ServerConfig(), checkpoint, loader=ThreadLoader(checkpoint))
    app = make_app(service)
    async with lifespan_of(app), client_of(app) as client:
        for name, (_, words) in files.items():
            answer = await ask(client, name)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (500, "server_error"), error
            for word in words:
                assert word in error["message"], error
            assert "Traceback" not in error["message"]
            said = await ask(client, "good", temperature=0, prompt="ab", max_tokens=3)
            assert said.json()["choices"][0]["text"] == "cde"
