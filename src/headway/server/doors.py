"""Doors: the short way to the routes that take a body, for the framework's own way costs a third of a short request.

A door is a POST route whose endpoint asks for the request alone, and whose path has no parameters, or one that takes
whatever stands in its place ({name:path}). The framework has nothing to do there: no parameters to solve, no
dependencies, no answer to validate. It still describes the routes (/openapi.json), and answers whatever comes to their
paths by another method.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.errors import HeadwayError
from headway.server.paths import route_path

Refuse = Callable[[Request, Exception], Awaitable[Response]]
"""The answer to an error that came before the answer had begun."""


@dataclass(frozen=True, slots=True)
class InnerDoor:
    """A door whose path has a parameter."""

    prefix: str
    suffix: str
    name: str
    route: APIRoute

    def value(self, path: str) -> str:
        """The parameter's, in a path that leads here; "": it does not."""
        fits = path.startswith(self.prefix) and path.endswith(self.suffix)
        return path[len(self.prefix) : len(path) - len(self.suffix)] if fits else ""


class DoorTable:
    """The doors among some routes."""

    def __init__(self, routes: Iterable[APIRoute]) -> None:
        doors = [route for route in routes if _is_door(route)]
        self._exact = {route.path: route for route in doors if "{" not in route.path}
        self._inner = [_inner_door(route) for route in doors if "{" in route.path]

    @property
    def paths(self) -> list[str]:
        """Of all of them."""
        return [*self._exact, *(door.route.path for door in self._inner)]

    def find(self, path: str) -> tuple[APIRoute, dict[str, str]] | None:
        """Where a path leads, and its parameters."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact, {}
        for door in self._inner:
            value = door.value(path)
            if value:
                return door.route, {door.name: value}
        return None


class Doors:
    """An ASGI layer, the last before the framework's own."""

    def __init__(self, app: ASGIApp, doors: DoorTable, refuse: Refuse) -> None:
        self.app = app
        self._doors = doors
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        found = self._doors.find(route_path(scope)) if is_post else None
        if found is None:
            await self.app(scope, receive, send)
            return
        route, scope["path_params"] = found
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response: Response = await route.endpoint(request)
        except HeadwayError as error:
            response = await self._refuse(request, error)
        await response(scope, receive, send)


def find_doors(routers: Iterable[APIRouter]) -> DoorTable:
    """The doors among the routes of these."""
    return DoorTable(route for router in routers for route in router.routes if isinstance(route, APIRoute))


_INNER = re.compile(r"([^{}]*)\{(\w+):path\}([^{}]*)")


def _inner_door(route: APIRoute) -> InnerDoor:
    prefix, name, suffix = _INNER.fullmatch(route.path).groups()  # type: ignore[union-attr]
    return InnerDoor(prefix, suffix, name, route)


def _is_door(route: APIRoute) -> bool:
    if route.methods != {"POST"} or route.dependencies:
        return False
    if "{" in route.path and not _INNER.fullmatch(route.path):
        return False
    return inspect.iscoroutinefunction(route.endpoint) and _parameters(route.endpoint) == [Request]


def _parameters(endpoint: Callable[..., Any]) -> list[Any]:
    return [parameter.annotation for parameter in inspect.signature(endpoint).parameters.values()]
