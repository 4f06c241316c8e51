"""A user who means harm and may change the catalog: names, bodies and imports that are refused; all stays as it was."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from tests.server.conftest import client_of

from headway.config import ServerConfig
from headway.core.catalog import MAX_DEPTH
from headway.server.app import make_app
from headway.service.catalog_form import MAX_ENTRIES
from service.catalog_rig import CatalogRig, catalog_rig

NAMES = [
    "../etc/passwd",
    "a/../b",
    "a/..",
    "..",
    ".",
    ".hidden",
    "/etc/passwd",
    "a//b",
    "a/",
    "a\\b",
    "C:\\x",
    "a%2fb",
    "a b",
    "a\0b",
    "a\nb",
    "a@1",
    "a?b",
    "a#b",
    "a;rm -rf",
    "$(id)",
    "ä",
    "а",
    "ａ",  # full width
    "a\u202eb",
    "a\u200bb",
    "e\u0301",
    "\U0001f600",
    "\ud800",
    "-rf",
    "",
    " ",
    "x" * 201,
]


@asynccontextmanager
async def served(**config: Any) -> AsyncIterator[tuple[CatalogRig, httpx2.AsyncClient]]:
    async with catalog_rig() as rig, client_of(make_app(rig.service, ServerConfig(**config), rig.catalog)) as client:
        await client.post("/admin/models", json={"id": "org/good", "source": "first", "aliases": ["ok"]})
        yield rig, client
        assert [(entry.key, entry.aliases) for entry in rig.catalog.entries] == [("org/good", ("ok",))]
        assert await rig.ask("ok") == "first"


def body_of(content: Any) -> bytes:
    """As JSON, with lone surrogates escaped."""
    return json.dumps(content).encode()


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_a_name_that_might_lead_elsewhere_or_be_taken_for_another_is_refused_wherever_it_stands(
    name: str,
) -> None:
    async with served() as (_, client):
        for entry in (
            {"id": name},
            {"id": "m", "aliases": [name]},
            {"id": "m", "presets": [{"name": name}]},
            *([{"id": "m", "version": name}] if name and name not in ("a//b", "a/", "a@1") else []),
        ):
            for path, body in (("/admin/models", entry), ("/admin/catalog", {"models": [{"id": "fine"}, entry]})):
                response = await client.post(path, content=body_of(body))
                assert response.status_code == 400, (body, response.text)
        response = await client.patch("/admin/models/org/good", content=body_of({"aliases": [name]}))
        assert response.status_code == 400, response.text


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("", ".", "..", "\ud800")], ids=ascii)
async def test_a_path_with_such_a_name_reaches_nothing(name: str) -> None:
    async with served() as (rig, client):
        for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/load"), ("POST", "/unload"), ("GET", "/progress")):
            request = httpx2.Request(method, f"http://test/admin/models/{quote(name, safe='')}{tail}")
            assert (await client.send(request)).status_code in (400, 404)
        assert rig.num_starts() == 0


async def test_ids_with_slashes_lead_to_their_own_models() -> None:
    async with served() as (rig, client):
        for id_ in ("org/good/load", "org/good/unload", "org"):
            assert (await client.post("/admin/models", json={"id": id_, "source": id_})).status_code == 201
        assert (await client.post("/admin/models/org/good/load/load")).json()["id"] == "org/good/load"
        assert [await rig.ask(id_) for id_ in ("org/good/unload", "org/good", "org")] == [
            "org/good/unload",
            "first",
            "org",
        ]
        for id_ in ("org/good/load", "org/good/unload", "org"):
            assert (await client.delete(f"/admin/models/{id_}")).status_code == 204


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/admin/catalog", b"[" * 100_000, 400, "depth limit"),
        ("/admin/models", b'{"id": "m", "options": ' + b'{"a": ' * 5000 + b"1" + b"}" * 5001, 400, ""),
        ("/admin/models", b'{"id": "m", "expected_bytes": ' + b"9" * 5000 + b"}", 400, ""),
        ("/admin/models", b'{"id": "m", "idle_timeout_s": 1e999}', 400, ""),
        ("/admin/models", b'{"id": "m", "idle_timeout_s": NaN}', 400, ""),
        ("/admin/models", b'\xff\xfe{"id": "m"}', 400, ""),
        ("/admin/models", b"", 400, ""),
        ("/admin/catalog", b'{"models": {"id": "m"}}', 400, "must be"),
        ("/admin/catalog", b'{"models": [], "x": 1}', 400, "'x'"),
        ("/admin/catalog", b'{"models": [' + b'{"id": "m"},' * MAX_ENTRIES + b'{"id": "m"}]}', 400, str(MAX_ENTRIES)),
        ("/admin/catalog", b'{"models": ["' + b"x" * 300_000 + b'"]}', 413, "at most 200000"),
    ],
    ids=["deep", "deep-options", "digits", "infinite", "nan", "no-utf-8", "empty", "object", "more", "many", "large"],
)
async def test_a_body_that_is_made_to_be_too_much_is_refused(path: str, body: bytes, status: int, words: str) -> None:
    async with served(max_body_bytes=200_000) as (_, client):
        response = await client.post(path, content=body)
        assert response.status_code == status, response.text
        assert words in response.json()["error"]["message"]
        assert len(response.text) < 5000


async def test_options_as_deep_as_they_may_be_and_one_more() -> None:
    async with served() as (_, client):
        for depth, status in ((MAX_DEPTH - 1, 201), (MAX_DEPTH + 2, 400)):
            options: Any = 1
            for _ in range(depth):
                options = [options]
            entry = {"id": "m", "framework": "python", "options": {"x": options}}
            assert (await client.post("/admin/models", json=entry)).status_code == status
            await client.delete("/admin/models/m")
