"""The catalog over HTTP: what a client adds is served at once; who may change it; the presets of every text route."""

import json
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from headway.config import CheckpointConfig, ModelConfig, PoolConfig, Preset, ServerConfig
from headway.core.catalog import CatalogEntry
from headway.server.app import lifespan_of, make_app
from headway.service.catalog import Catalog
from headway.service.catalog_store import MemoryStore
from headway.service.local import LocalService
from headway.testing.tiny_model import write_tiny_model
from service.catalog_rig import catalog_rig

GPT2 = {"id": "gpt2", "name": "GPT-2", "type": "text", "framework": "headway", "version": "1.0", "description": "d"}
MOBILENET = {
    "id": "mobilenet",
    "name": "pytorch/vision:mobilenet_v2",
    "type": "image",
    "framework": "torchvision",
    "version": "v0.10.0",
    "description": "",
}


@asynccontextmanager
async def served(*entries: CatalogEntry, config: ServerConfig | None = None, **options: Any) -> AsyncIterator[Any]:
    async with catalog_rig(*entries, **options) as rig:
        app = make_app(rig.service, config or ServerConfig(), rig.catalog)
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield rig, client


def message_of(response: httpx2.Response) -> str:
    return str(response.json()["error"]["message"])


async def say(client: httpx2.AsyncClient, model: str, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/completions", json={"model": model, "prompt": "hi", **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_a_model_from_its_entry_to_its_end() -> None:
    async with served() as (_, client):
        response = await client.post("/admin/models", json={"id": "m", "source": "first", "aliases": ["x"]})
        assert (response.status_code, response.json()["source"]) == (201, "first")
        answer = await say(client, "x")
        assert (answer["model"], answer["choices"][0]["text"]) == ("x", "first")
        told = (await client.get("/admin/models/m")).json()
        assert (told["state"], told["entry"]["aliases"], told["leases"]) == ("ready", ["x"], 0)
        response = await client.patch("/admin/models/m", json={"aliases": None, "description": "new", "pinned": True})
        assert response.json() == {
            "id": "m", "type": "text-generation", "framework": "headway", "description": "new", "source": "first",
            "pinned": True, "default": True,
        }  # fmt: skip
        assert (await client.post("/v1/completions", json={"model": "x", "prompt": "a"})).status_code == 404
        assert (await client.delete("/admin/models/m")).status_code == 204
        assert (await client.get("/admin/models/m")).status_code == 404
        assert (await client.delete("/admin/models/m")).status_code == 404


async def test_loading_unloading_and_rolling_back() -> None:
    first = CatalogEntry(id="org/m", version="1", source="first")
    second = CatalogEntry(id="org/m", version="2", source="second")
    async with served(first, second) as (rig, client):
        loaded = (await client.post("/admin/models/org/m@1/load")).json()
        assert (loaded["state"], [phase["phase"] for phase in loaded["phases"]][-1]) == ("ready", "warm")
        assert (await client.post("/admin/models/org/m@1/unload")).json()["state"] == "cold"
        assert (await client.post("/admin/models/org/m/rollback")).json()["version"] == "1"
        assert (await say(client, "org/m"))["choices"][0]["text"] == "first"
        assert rig.num_starts() == 2
        response = await client.post("/admin/models/org/m/rollback")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "id")


@pytest.mark.case("gguf-arch-01")
async def test_files_that_are_no_model_are_a_400_at_the_load_and_harm_no_other(tmp_path: Path) -> None:
    """Real files and processes: what is wrong is named, nothing is left in memory, the good one is served on."""
    good = write_tiny_model(tmp_path / "good")
    magic, version = b"GGUF", struct.pack("<I", 3)
    key, name = b"general.architecture", b"nosuch"
    field = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(name)) + name
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 32, 99, 0)
    files = {
        "nosuch": (magic + version + struct.pack("<QQ", 0, 1) + field, "nosuch"),
        "cut": (magic + version + struct.pack("<QQ", 10, 20) + field[:17], "cut.gguf"),
        "bad-magic": (b"FUGG" + version + bytes(100), "bad-magic.gguf"),
        "unknown-type": (magic + version + struct.pack("<QQ", 1, 1) + field + tensor + bytes(200), "99|nosuch"),
    }
    for id_, (content, _) in files.items():
        (tmp_path / f"{id_}.gguf").write_bytes(content)
    service = LocalService([], PoolConfig(), ServerConfig(), CheckpointConfig(cache_dir=tmp_path), keeps_first=False)
    catalog = Catalog(MemoryStore(), service)
    app = make_app(service, ServerConfig(), catalog)
    async with (
        lifespan_of(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1", timeout=60) as client,
    ):
        await client.post("/admin/models", json={"id": "good", "source": str(good)})
        assert (await client.post("/admin/models/good/load")).json()["state"] == "ready"
        for id_, (_, words) in files.items():
            await client.post("/admin/models", json={"id": id_, "source": str(tmp_path / f"{id_}.gguf")})
            response = await client.post(f"/admin/models/{id_}/load")
            assert response.status_code == 400, response.text
            assert re.search(words, message_of(response)), message_of(response)
        assert "llama" in message_of(await client.post("/admin/models/nosuch/load"))
        models = {model["id"]: model for model in (await client.get("/v1/models")).json()["data"]}
        assert models["good"]["state"] == "ready"
        assert all(re.search(words, models[id_]["error"]) for id_, (_, words) in files.items())
        assert service.worker_pids().keys() == {"good"}
        assert (await say(client, "good", max_tokens=2))["usage"]["completion_tokens"] == 2


async def test_a_file_of_entries_goes_in_as_it_is_and_comes_out_in_both_forms() -> None:
    async with served() as (_, client):
        response = await client.post("/admin/catalog", content=json.dumps({"models": [GPT2, MOBILENET]}))
        assert response.json() == {"added": 2, "replaced": 0}
        as_json = (await client.get("/admin/catalog")).json()
        as_yaml = yaml.safe_load((await client.get("/admin/catalog?format=yaml")).text)
        assert as_json == as_yaml
        assert [(each["id"], each["type"], each["source"]) for each in as_json["models"]] == [
            ("gpt2", "text-generation", "gpt2"),
            ("mobilenet", "image-classification", "pytorch/vision:mobilenet_v2"),
        ]
        assert (await client.post("/admin/catalog", json=as_json)).json() == {"added": 0, "replaced": 2}
        assert (await client.get("/admin/catalog")).json() == as_json
        assert (await client.get("/admin/catalog?format=xml")).status_code == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "id"),
        ([], None),
        ({"id": "../etc"}, "id"),
        ({"id": "m", "type": "nonsense"}, "type"),
        ({"id": "m", "framework": "nonsense"}, "framework"),
        ({"id": "m", "pinned": "yes"}, "pinned"),
        ({"id": "m", "pined": True}, "pined"),
        ({"id": "m", "options": {"max_model_ln": 4}}, "options"),
        ({"id": "m", "options": {"max_model_len": "long"}}, "options"),
        ({"id": "m", "options": {"max_num_seqs": -1}}, "options.max_num_seqs"),
        ({"id": "m", "presets": [{"name": "p", "sampling": {"temperature": -1}}]}, "presets"),
        ({"id": "m", "presets": [{"name": "p", "sampling": {"seed": 1}}]}, "presets"),
        ({"id": "m", "infer": {"instances": 0}}, "infer.instances"),
        ({"id": "fixed"}, "id"),
    ],
)
async def test_a_wrong_entry_is_a_400_that_names_the_field(body: Any, param: str | None) -> None:
    fixed = ModelConfig(source="fixed", served_names=("fixed",))
    async with served(models=[fixed]) as (rig, client):
        response = await client.post("/admin/models", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
        assert not rig.catalog.entries


async def test_a_wrong_entry_of_many_is_told_by_its_place() -> None:
    async with served() as (rig, client):
        models = [{"id": "a"}, {"id": "b", "type": "x"}]
        response = await client.post("/admin/catalog", json={"models": models})
        assert message_of(response).startswith("models[1]: type is 'x'")
        for wrong in ({"models": {}}, {"modles": []}, {"models": [], "more": 1}, [1]):
            assert (await client.post("/admin/catalog", json=wrong)).status_code == 400
        assert not rig.catalog.entries


class TestWhoMayChange:
    CHANGES = (
        ("POST", "/admin/models", {"id": "n"}),
        ("PATCH", "/admin/models/m", {"description": "x"}),
        ("DELETE", "/admin/models/m", None),
        ("POST", "/admin/models/m/rollback", None),
        ("POST", "/admin/catalog", {"models": []}),
    )

    @pytest.mark.parametrize(("method", "path", "body"), CHANGES)
    async def test_without_a_key_only_this_machine(self, method: str, path: str, body: Any) -> None:
        entry = CatalogEntry(id="m", source="first")
        async with served(entry, config=ServerConfig(host="0.0.0.0")) as (_, client):
            response = await client.request(method, path, json=body)
            assert response.status_code == 401
            assert "--api-key" in message_of(response)
            assert (await client.get("/admin/models/m")).status_code == 200

    @pytest.mark.parametrize(("method", "path", "body"), [*CHANGES, ("POST", "/admin/models/m/load", None)])
    async def test_no_page_of_another_origin(self, method: str, path: str, body: Any) -> None:
        async with served(CatalogEntry(id="m", source="first")) as (rig, client):
            for origin in ("https://evil.example", "null", "http://localhost.evil.example"):
                response = await client.request(method, path, json=body, headers={"Origin": origin})
                assert response.status_code == 403, response.text
            assert [each.description for each in rig.catalog.entries] == [""]
            assert rig.num_starts() == 0

    async def test_pages_on_this_machine_and_allowed_ones(self) -> None:
        config = ServerConfig(allowed_origins=("https://console.example",))
        async with served(config=config) as (_, client):
            for number, origin in enumerate(("http://localhost:3000", "https://console.example")):
                response = await client.post("/admin/models", json={"id": f"m{number}"}, headers={"Origin": origin})
                assert response.status_code == 201

    async def test_with_a_key_it_is_needed(self) -> None:
        async with served(config=ServerConfig(host="0.0.0.0", api_keys=("k",))) as (_, client):
            assert (await client.post("/admin/models", json={"id": "m"})).status_code == 401
            headers = {"Authorization": "Bearer k"}
            assert (await client.post("/admin/models", json={"id": "m"}, headers=headers)).status_code == 201

    async def test_a_service_without_a_catalog_says_so(self) -> None:
        async with catalog_rig() as rig:
            transport = httpx2.ASGITransport(app=make_app(rig.service, ServerConfig()))
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                response = await client.post("/admin/models", json={"id": "m"})
                assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_feature")


class TestModels:
    async def test_states_memory_and_what_stands_for_what(self) -> None:
        entries = [
            CatalogEntry(id="m", source="first", aliases=("x",), description="d", expected_bytes=7 << 20),
            CatalogEntry(id="bad", source="broken"),
            CatalogEntry(id="img", framework="onnx", type="image-classification", version="3"),
        ]
        async with served(*entries) as (_, client):
            await say(client, "x")
            await client.post("/v1/completions", json={"model": "bad", "prompt": "hi"})
            found = {model["id"]: model for model in (await client.get("/v1/models")).json()["data"]}
            assert found.keys() == {"m", "x", "bad", "img"}
            assert (found["m"]["state"], found["m"]["parent"], found["m"]["description"]) == ("ready", None, "d")
            assert (found["x"]["kind"], found["x"]["parent"], found["x"]["state"]) == ("alias", "m", "ready")
            assert found["m"]["memory_bytes"] > 0
            assert (found["bad"]["state"], found["bad"]["error"]) == ("failed", "broken can not be read")
            assert found["bad"]["retry_after_s"] > 0
            image = {"state": "cold", "type": "image-classification", "framework": "onnx", "version": "3"}
            assert found["img"].items() >= image.items()

    async def test_an_unknown_model_is_a_404_in_each_doors_shape(self) -> None:
        message = [{"role": "user", "content": "hi"}]
        async with served(CatalogEntry(id="m", source="first")) as (_, client):
            asked: list[tuple[str, dict[str, Any]]] = [
                ("/v1/chat/completions", {"messages": message}),
                ("/v1/completions", {"prompt": "hi"}),
                ("/v1/responses", {"input": "hi"}),
                ("/v1/messages", {"messages": message, "max_tokens": 3}),
                ("/generate", {"prompts": ["hi"]}),
            ]
            for path, body in asked:
                response = await client.post(path, json=body | {"model": "nobody"})
                assert response.status_code == 404, path
                assert "nobody" in message_of(response)


@pytest.mark.case("preset-alias-08")
async def test_a_presets_sampling_reaches_every_text_route_and_fields_of_the_request_win() -> None:
    preset = Preset(name="short", sampling={"max_tokens": 3})
    async with served(CatalogEntry(id="m", source="abcdefghijklmnopqrstuvwxyz", presets=(preset,))) as (rig, client):
        assert (await say(client, "short"))["choices"][0]["text"] == "abc"
        assert (await say(client, "short", max_tokens=5))["choices"][0]["text"] == "abcde"
        assert (await say(client, "short", min_tokens=4))["choices"][0]["text"] == "abcd"
        assert (await say(client, "m"))["choices"][0]["text"] == "abcdefghijklmnop"
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        answer = (await client.post("/v1/chat/completions", json=chat | {"model": "short"})).json()
        assert (answer["choices"][0]["message"]["content"], answer["model"]) == ("abc", "short")
        answer = (await client.post("/v1/responses", json={"model": "short", "input": "hi"})).json()
        assert answer["output"][0]["content"][0]["text"] == "abc"
        assert (await client.post("/generate", json={"model": "short", "prompts": ["a"]})).json() == {
            "generated_texts": ["abc"]
        }
        assert rig.num_starts() == 1


async def test_a_preset_that_thinks_does_so_for_clients_of_anthropic_too() -> None:
    presets = (Preset(name="deep", template_kwargs={"enable_thinking": True}),)
    async with served(CatalogEntry(id="m", source="reasons", presets=presets)) as (_, client):
        counts = {}
        for model in ("m", "deep"):
            for name, thinking in (("plain", {}), ("off", {"thinking": {"type": "disabled"}})):
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **thinking}
                response = await client.post("/v1/messages/count_tokens", json=body)
                counts[model, name] = response.json()["input_tokens"]
        assert counts["m", "plain"] == counts["m", "off"] == counts["deep", "off"]
        assert counts["deep", "plain"] != counts["deep", "off"]

    async def test_who_asks_models_is_told_no_key_of_a_source(self) -> None:
        source = "https://user:secret1@models.example/x.zip?token=secret2#secret3"
        entry = CatalogEntry(id="m", framework="onnx", source=source, aliases=("x",))
        async with served(entry) as (_, client):
            for path in ("/v1/models", "/v1/models/m", "/admin/models", "/v2/models/m", "/metrics", "/v2/models/stats"):
                assert "secret" not in (await client.get(path)).text, path
            (found,) = [each for each in (await client.get("/v1/models")).json()["data"] if each["id"] == "m"]
            assert found["root"] == "https://models.example/x.zip"
            assert (await client.get("/admin/catalog")).json()["models"][0]["source"] == source
