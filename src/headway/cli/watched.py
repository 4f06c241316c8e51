"""A running server as `headway top` asks it: its numbers, and its models' states."""

import time
from dataclasses import dataclass
from typing import Any

import httpx2

from headway.cli.remote import server_error
from headway.cli.scrape import Scrape, parse_scrape
from headway.errors import InternalError, InvalidConfig, Unauthorized
from headway.server.hosts import is_loopback

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Look:
    """What a server told at one moment."""

    scrape: Scrape
    models: tuple[dict[str, Any], ...]
    """GET /admin/models: id, state, phases, error."""


class WatchedServer:
    """One server; close() it."""

    def __init__(self, url: str, api_key: str | None, transport: httpx2.BaseTransport | None = None) -> None:
        """`url`: as remote.base_url() gives it."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy from the environment must not be asked for this machine's own addresses.
        trust_env = not is_loopback(httpx2.URL(url).host)
        self.url = url
        self._client = httpx2.Client(headers=headers, timeout=_TIMEOUT_S, trust_env=trust_env, transport=transport)

    def look(self) -> Look:
        """Raises InvalidConfig if nobody answers; Unauthorized, PermissionDenied, HostNotAllowed; InternalError."""
        scrape = parse_scrape(self.get("/metrics").text, time.monotonic())
        try:
            models = self.get("/admin/models").json()["models"]
        except (ValueError, LookupError, TypeError):
            raise InternalError(f"{self.url}/admin/models is no answer of Headway") from None
        return Look(scrape, tuple(models))

    def get(self, path: str) -> httpx2.Response:
        """An answer that is a success. Raises as look()."""
        return self.check("GET", path, None)

    def check(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        """As get(), with a body."""
        try:
            response = self._client.request(method, self.url + path, json=body, timeout=None if body else _TIMEOUT_S)
        except httpx2.TransportError as error:
            words = str(error) or type(error).__name__
            raise InvalidConfig(
                f"nobody answers at {self.url} ({words}): is `headway serve` running there?", param="url"
            ) from None
        if response.status_code == 401:
            raise Unauthorized(f"{self.url} asks for a key: give --api-key, or set HEADWAY_API_KEY")
        if response.status_code == 403:
            raise server_error(403, _body_of(response))
        if not response.is_success:
            raise InternalError(f"{self.url}{path} answered {response.status_code}: {response.text[:500]}")
        return response

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()


def _body_of(response: httpx2.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {}
