"""Doors: the short way to the routes that take a body, for the framework's own way costs a third of a short request.

A door is a POST route whose path has no parameters and whose endpoint asks for the request alone. The framework has
nothing to do there: no parameters to solve, no dependencies, no answer to validate. It still describes the routes
(/openapi.json), and answers whatever comes to their paths by another method.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
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


class Doors:
    """An ASGI layer, the last before the framework's own."""

    def __init__(self, app: ASGIApp, routes: Mapping[str, APIRoute], refuse: Refuse) -> None:
        self.app = app
        self._routes = routes
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        route = self._routes.get(route_path(scope)) if is_post else None
        if route is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response: Response = await route.endpoint(request)
        except HeadwayError as error:
            response = await self._refuse(request, error)
        await response(scope, receive, send)


def find_doors(routers: Iterable[APIRouter]) -> dict[str, APIRoute]:
    """The doors among the routes, by path."""
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return {route.path: route for route in routes if _is_door(route)}


def _is_door(route: APIRoute) -> bool:
    if route.methods != {"POST"} or "{" in route.path or route.dependencies:
        return False
    return inspect.iscoroutinefunction(route.endpoint) and _parameters(route.endpoint) == [Request]


def _parameters(endpoint: Callable[..., Any]) -> list[Any]:
    return [parameter.annotation for parameter in inspect.signature(endpoint).parameters.values()]
