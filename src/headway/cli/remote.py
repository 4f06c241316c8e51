"""Answers of a running server, by OpenAI's routes."""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import httpx2

from headway.cli.answers import Ask, Piece
from headway.errors import (
    HeadwayError,
    HostNotAllowed,
    InternalError,
    InvalidConfig,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    PayloadTooLarge,
    PermissionDenied,
    Unauthorized,
)
from headway.server.hosts import is_loopback

_TIMEOUT = httpx2.Timeout(10.0, read=None)  # the first token of a long prompt takes as long as it takes
_MAX_ERROR_BYTES = 64 * 1024
_KINDS: dict[int, type[HeadwayError]] = {
    401: Unauthorized,
    403: PermissionDenied,
    404: ModelNotFound,
    413: PayloadTooLarge,
    429: ModelNotReady,
    503: ModelNotReady,
}


class RemoteAnswerer:
    """Asks one server; made by connect()."""

    def __init__(self, client: httpx2.AsyncClient, url: str, model: str) -> None:
        self._client = client
        self._url = url
        self._model = model

    @classmethod
    async def connect(
        cls, url: str, *, api_key: str | None, model: str | None, transport: httpx2.AsyncBaseTransport | None = None
    ) -> "RemoteAnswerer":
        """Looks the server up.

        Args:
            url: as base_url() gives it.
            model: None: the first that the server has.

        Raises:
            InvalidConfig: nobody answers there.
            HeadwayError: the server's own words.
        """
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy from the environment must not be asked for this machine's own addresses.
        is_local = is_loopback(httpx2.URL(url).host)
        client = httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT, trust_env=not is_local, transport=transport)
        answerer = cls(client, url, model or "")
        try:
            if not model:
                answerer._model = await answerer._first_model()
        except BaseException:
            await client.aclose()
            raise
        return answerer

    @property
    def title(self) -> str:
        """model at URL."""
        return f"{self._model} at {self._url}"

    async def answer(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Streams the answer; closing ends the request on the server too (it sees the connection go)."""
        body: dict[str, Any] = {"model": self._model, "stream": True, **ask.options}
        is_chat = ask.prompt is None
        body |= {"messages": list(ask.messages)} if is_chat else {"prompt": ask.prompt}
        route = "chat/completions" if is_chat else "completions"
        try:
            async with self._client.stream("POST", f"{self._url}/v1/{route}", json=body) as response:
                await _check(response)
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        for choice in event.get("choices", ()):
                            for piece in _pieces(choice.get("delta") or {} if is_chat else choice):
                                yield piece
        except httpx2.TransportError as error:
            raise InternalError(f"the connection to {self._url} broke: {_words(error)}") from None

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def _first_model(self) -> str:
        try:
            response = await self._client.get(f"{self._url}/v1/models")
        except httpx2.TransportError as error:
            raise InvalidConfig(
                f"nobody answers at {self._url} ({_words(error)}): is `headway serve` running there?", param="url"
            ) from None
        await _check(response)
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise InvalidConfig(
                f"{self._url}/v1/models lists no model; name one with --model-name", param="url"
            ) from None


def base_url(url: str) -> str:
    """What was typed as an address, without /v1: http:// may be left out. Raises InvalidConfig if it is none."""
    text = url if "://" in url else f"http://{url}"
    try:
        parsed = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise InvalidConfig(f"--url {url} is no address: {error}", param="url") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidConfig(f"--url {url} is no address such as http://127.0.0.1:8000", param="url")
    return text.rstrip("/").removesuffix("/v1")


async def _events(response: httpx2.Response) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON of each server-sent event, until [DONE]. Raises the error that an event carries."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise InternalError(f"the server sent an event that is no JSON: {data[:200]}") from None
        if not isinstance(event, dict):
            raise InternalError(f"the server sent an event that is no object: {data[:200]}")
        if event.get("error"):
            raise server_error(500, event)
        yield event
    raise InternalError("the server ended the answer without [DONE]: it may be cut")


def _pieces(told: dict[str, Any]) -> Iterator[Piece]:
    """Of a chunk of chat (reasoning by either of its names) or of a completion."""
    if reasoning := told.get("reasoning_content") or told.get("reasoning"):
        yield Piece(reasoning, is_reasoning=True)
    if text := told.get("content") or told.get("text"):
        yield Piece(text)


async def _check(response: httpx2.Response) -> None:
    """Raises the server's error, if the answer is one."""
    if response.is_success:
        return
    content = b""
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > _MAX_ERROR_BYTES:
            break
    try:
        body = json.loads(content)
    except ValueError:
        body = {}
    raise server_error(response.status_code, body if isinstance(body, dict) else {})


def server_error(status: int, body: dict[str, Any]) -> HeadwayError:
    """The error that an answer carries, of the kind that its status means."""
    error = body.get("error")
    fields = error if isinstance(error, dict) else {}
    message = str(fields.get("message") or f"the server answered {status}")
    kind = _KINDS.get(status)
    if kind is None:
        kind = InvalidRequest if 400 <= status < 500 else InternalError
    if fields.get("code") == HostNotAllowed.code:
        kind = HostNotAllowed
    if kind is Unauthorized:
        message += " (give --api-key, or set HEADWAY_API_KEY)"
    if kind is PermissionDenied:
        message += " (give it by --api-key, or set HEADWAY_ADMIN_API_KEY)"
    return kind(message, param=fields.get("param"))


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
