"""What a caller can not reach: other machines, this machine's files, another's template, a route without its key."""

import socket
from typing import Any

import pytest
from tests.server.conftest import client_of

from cases.asking import CHAT, COMPLETIONS, ask, refused
from e2e.serving import Server
from headway.config import ServerConfig
from headway.server.app import make_app
from headway.server.middleware import OPEN_PATHS
from headway.testing.scripted_service import ScriptedService

KEY = "the-right-one"
WRONG: list[dict[str, str]] = [
    {},
    {"authorization": "Bearer other"},
    {"authorization": "bearer other"},
    {"authorization": KEY},
    {"authorization": f"Basic {KEY}"},
    {"x-api-key": "other"},
    {"x-api-key": f"Bearer {KEY}"},
    {"x-api-key": KEY, "authorization": "Bearer other"},
    {"api-key": KEY},
]


def routes_of(router: Any) -> set[tuple[str, str]]:
    """(method, path) of all that a router answers, those of included routers too."""
    found = set()
    for route in router.routes:
        if methods := getattr(route, "methods", None):
            found |= {(method, route.path) for method in methods}
        else:
            inner = getattr(route, "original_router", None) or getattr(route, "app", None)
            assert inner is not None, route
            found |= routes_of(inner)
    return found


@pytest.mark.case("auth-alias-01")
async def test_every_route_is_closed_without_the_key_but_those_of_health() -> None:
    app = make_app(ScriptedService(), ServerConfig(api_keys=(KEY,)))
    routes = routes_of(app)
    assert {("POST", "/v1/embeddings"), ("GET", "/metrics"), ("GET", "/docs"), ("POST", "/admin/profile")} <= {
        (method, path) for method, path in routes
    }
    assert all(isinstance(path, str) for _, path in routes)
    aliases = {(method, alias) for method, path in routes for alias in (path + "/", "/" + path, path.upper())}
    async with client_of(app) as client:
        for method, path in sorted(routes | aliases | {("GET", "/nothing"), ("OPTIONS", CHAT)}):
            for headers in WRONG:
                response = await client.request(method, path.replace("{model:path}", "m"), headers=headers)
                is_closed = response.status_code == 401
                assert is_closed != (path in OPEN_PATHS), (method, path, headers)
        for scheme in ("Bearer", "bearer"):
            response = await client.get("/v1/models", headers={"authorization": f"{scheme} {KEY}"})
            assert response.status_code == 200
        assert (await client.get("/v1/models", headers={"x-api-key": KEY})).status_code == 200  # Anthropic's clients


@pytest.mark.case("ssrf-01")
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_fetched_or_read_for_a_caller(server: Server, stream: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bait:
        bait.setblocking(False)
        url = f"http://127.0.0.1:{bait.getsockname()[1]}/x.png"
        for target in (url, "file:///etc/hostname", "http://169.254.169.254/", "data:image/png;base64,AAAA"):
            for part in (
                {"type": "image_url", "image_url": {"url": target}},
                {"type": "input_image", "image_url": target},
                {"type": "input_file", "file_url": target},
                {"type": "video_url", "video_url": {"url": target}},
                {"type": "audio_url", "audio_url": {"url": target}},
            ):
                messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}, part]}]
                message = refused(server, "messages[0].content[1].type", messages=messages, stream=stream)
                assert "127.0.0.1" not in message
        for name, value in (
            ("chat_template", "{% for i in range(10**9) %}x{% endfor %}"),
            ("prompt_embeds", url),
            ("lora_path", "../../x"),
            ("logits_processors", ["os.system"]),
            ("grammar_file", "/etc/hostname"),
        ):
            refused(server, name, path=COMPLETIONS if name == "prompt_embeds" else CHAT, **{name: value})
        for model in ("../../x", "/etc/hostname", url, "tiny/../tiny"):
            assert ask(server, model=model).status_code == 404
        with pytest.raises(BlockingIOError):
            bait.accept()
