"""Admin keys: what only they open, over HTTP and gRPC, and that nothing else changes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import httpx2
import pytest
from google.protobuf import descriptor_pb2
from starlette.types import Scope
from tests.server.conftest import CHAT, FakeService, client_of, listening
from tests.server.oip.test_rpc import COMPILED, Stub, fails

from headway.config import ServerConfig
from headway.core.catalog import CatalogEntry
from headway.server.app import make_app
from headway.server.oip.rpc.messages import method_messages
from headway.server.paths import is_admin, route_path
from service.catalog_rig import catalog_rig

USER, ADMIN = "user-key", "admin-key"


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


@asynccontextmanager
async def served(**keys: tuple[str, ...]) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        catalog_rig(CatalogEntry(id="m", source="first")) as rig,
        client_of(make_app(rig.service, ServerConfig(**keys), rig.catalog)) as client,  # type: ignore[arg-type]
    ):
        yield client


def admin_routes() -> list[tuple[str, str]]:
    """All that the server has whose words say that they are for admins."""
    paths = make_app(FakeService()).openapi()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods if is_admin(path)]
    assert {("PATCH", "/admin/models/{name}"), ("POST", "/v2/repository/models/{model}/load")} <= set(routes)
    assert len(routes) >= 14
    return routes


@pytest.mark.parametrize(("method", "path"), admin_routes())
async def test_a_user_s_key_does_not_open_what_is_for_admins(method: str, path: str) -> None:
    app = make_app(FakeService(), ServerConfig(api_keys=(USER,), admin_api_keys=(ADMIN,)))
    async with client_of(app) as client:
        place = path.format(name="m", model="m")
        refused = await client.request(method, place, headers=bearer(USER))
        assert refused.status_code == 403, refused.text
        assert "--admin-api-key" in refused.text
        for key in (None, "wrong", f"{ADMIN}x"):
            assert (await client.request(method, place, headers=bearer(key))).status_code == 401
        assert (await client.request(method, place, headers={"x-api-key": USER})).status_code == 403
        assert (await client.request(method, place, headers=bearer(ADMIN))).status_code not in (401, 403)


async def test_changes_are_an_admin_s_and_questions_everybody_s() -> None:
    async with served(api_keys=(USER,), admin_api_keys=(ADMIN, "second")) as client:
        for key in (ADMIN, "second"):
            response = await client.post("/admin/models", json={"id": key, "source": "first"}, headers=bearer(key))
            assert response.status_code == 201, response.text
        refused = await client.delete("/admin/models/m", headers=bearer(USER))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        for key in (USER, ADMIN):
            answer = await client.post("/v1/completions", json={"model": "m", "prompt": "a"}, headers=bearer(key))
            assert answer.status_code == 200, answer.text
            index = await client.post("/v2/repository/index", headers=bearer(key))
            assert (index.status_code, len(index.json())) == (200, 3)
        assert (await client.post("/v2/repository/models/m/unload", headers=bearer(ADMIN))).status_code == 200


async def test_where_users_need_no_key_admins_do() -> None:
    async with served(admin_api_keys=(ADMIN,)) as client:
        assert (await client.post("/v1/completions", json={"model": "m", "prompt": "a"})).status_code == 200
        for key in (None, "any"):
            assert (await client.patch("/admin/models/m", json={}, headers=bearer(key))).status_code == 401
        page = {**bearer(ADMIN), "origin": "https://elsewhere.example"}
        assert (await client.patch("/admin/models/m", json={"description": "d"}, headers=page)).status_code == 200


async def test_without_admin_keys_a_user_s_opens_all() -> None:
    async with served(api_keys=(USER,)) as client:
        assert (await client.delete("/admin/models/m", headers=bearer(None))).status_code == 401
        assert (await client.delete("/admin/models/m", headers=bearer(USER))).status_code == 204


async def test_a_server_that_others_reach_can_be_changed_with_an_admin_key_alone() -> None:
    async with served(host="0.0.0.0", admin_api_keys=(ADMIN,)) as client:  # type: ignore[arg-type]
        assert (await client.delete("/admin/models/m", headers=bearer(ADMIN))).status_code == 204


@pytest.mark.parametrize(
    ("path", "root", "routed"),
    [
        ("/admin/models", "", "/admin/models"),
        ("/api/admin/models", "/api", "/admin/models"),
        ("/admin/models", "/a", "/admin/models"),
        ("/admin/models", "/admin", "/models"),
        ("/api", "/api", ""),
    ],
)
def test_a_mount_point_hides_no_route_for_admins(path: str, root: str, routed: str) -> None:
    from starlette._utils import get_route_path  # what the framework finds its route by

    scope: Scope = {"type": "http", "path": path, "root_path": root}
    assert route_path(scope) == get_route_path(scope) == routed


@pytest.mark.parametrize("path", ["//admin/models", "/ADMIN/models", "/admin%2Fmodels", "/v1/../admin/models"])
async def test_other_spellings_of_such_a_path_lead_nowhere(path: str) -> None:
    async with served(api_keys=(USER,), admin_api_keys=(ADMIN,)) as client:
        request = httpx2.Request("GET", httpx2.URL("http://test", raw_path=path.encode()), headers=bearer(USER))
        assert (await client.send(request)).status_code in (403, 404, 405)


async def test_a_chat_with_an_admin_s_key() -> None:
    app = make_app(FakeService(), ServerConfig(api_keys=(USER,), admin_api_keys=(ADMIN,)))
    async with client_of(app) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=bearer(ADMIN))).status_code == 200


async def test_grpc_lets_a_user_ask_but_not_load_or_unload() -> None:
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file
    names = {method.name for each in file.service for method in each.method} - {"ModelStreamInfer"}
    config = ServerConfig(port=0, grpc_port=0, api_keys=(USER,), admin_api_keys=(ADMIN,))
    async with (
        listening(make_app(FakeService(), config)) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        codes = {}
        for name in names:
            asked = method_messages(name)[0]()
            for key in (USER, ADMIN):
                call = getattr(Stub(channel), name)(asked, metadata=[("authorization", f"Bearer {key}")])
                try:
                    await call
                    codes[name, key] = grpc.StatusCode.OK
                except grpc.aio.AioRpcError as error:
                    codes[name, key] = error.code()
        denied = {name for (name, key), code in codes.items() if code is grpc.StatusCode.PERMISSION_DENIED}
        assert denied == {"RepositoryModelLoad", "RepositoryModelUnload"}
        assert not [call for call, code in codes.items() if code is grpc.StatusCode.UNAUTHENTICATED]
        code, words = await fails(Stub(channel).RepositoryModelLoad(method_messages("RepositoryModelLoad")[0]()))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "admin key" in words
