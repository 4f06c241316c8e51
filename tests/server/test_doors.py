"""Doors take what the framework has nothing to do for, and nothing else; what comes through is answered as ever."""

from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from tests.server.conftest import FakeService, say

from headway.server.app import lifespan_of, make_app
from headway.server.doors import find_doors

router = APIRouter(prefix="/a")


@router.post("/plain")
async def plain(request: Request) -> Response:
    return Response(str(request.url.path))


@router.get("/got")
async def got(request: Request) -> Response:
    return Response()


@router.post("/of/{name}")
async def with_a_parameter(request: Request, name: str) -> Response:
    return Response(name)


@router.post("/of/{name:path}/inner")
async def with_a_path(request: Request) -> Response:
    return Response(request.path_params["name"])


@router.post("/of/{name:path}/and/{other}")
async def with_two_parameters(request: Request) -> Response:
    return Response()


@router.post("/query")
async def with_a_query(request: Request, number: int) -> Response:
    return Response(str(number))


@router.post("/dependency", dependencies=[Depends(lambda: None)])
async def with_a_dependency(request: Request) -> Response:
    return Response()


@router.post("/blocking")
def blocking(request: Request) -> Response:
    return Response()


def test_a_door_asks_for_the_request_alone() -> None:
    assert find_doors([router]).paths == ["/a/plain", "/a/of/{name:path}/inner"]


@pytest.mark.parametrize("path", ["/a/of/x/inner", "/a/of/x/y/inner", "/a/of/inner/inner"])
async def test_a_door_s_parameter_is_what_the_framework_makes_of_it(path: str) -> None:
    app = FastAPI()
    app.include_router(router)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client:
        expected = (await client.post(path)).text
    found = find_doors([router]).find(path)
    assert found is not None
    assert (found[0].path, found[1]) == ("/a/of/{name:path}/inner", {"name": expected})


@pytest.mark.parametrize("path", ["/a/of//inner", "/a/of/inner", "/a/of/x/inner/", "/of/x/inner"])
def test_no_door_is_where_its_parameter_is_missing(path: str) -> None:
    assert find_doors([router]).find(path) is None


@pytest.mark.parametrize("path", ["/v1/completions", "/llm/v1/completions"])
async def test_a_door_is_where_its_app_is_mounted(path: str, service: FakeService) -> None:
    service.script = say("hi")
    app: Any = make_app(service)
    root = app
    if path.startswith("/llm"):
        root = FastAPI(lifespan=lambda _: lifespan_of(app))
        root.mount("/llm", app)
    base = path.removesuffix("/v1/completions")
    async with (
        lifespan_of(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(root), base_url="http://t") as client,
    ):
        answers = [
            await client.post(path, json={"model": "m", "prompt": "x"}),
            await client.post(path, json={"model": "m", "prompt": "x", "nonsense": 1}),
            await client.get(path),
        ]
        metrics = (await client.get(base + "/metrics")).text
    assert [answer.status_code for answer in answers] == [200, 400, 405]
    assert answers[0].json()["choices"][0]["text"] == "hi"
    assert answers[1].json()["error"]["param"] == "nonsense"
    for status in (200, 400):
        line = f'headway_http_requests_total{{handler="/v1/completions",method="POST",status="{status}"}} 1.0'
        assert line in metrics
    reason = answers[1].json()["error"]["code"]
    assert f'headway_admission_rejections_total{{reason="{reason}"}} 1.0' in metrics
