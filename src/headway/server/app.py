"""make_app: the ASGI app, alone or mounted in another one.

app = make_app(service, config)                     # alone: its lifespan starts and ends the service

llm = make_app(service, config)                     # mounted: the host runs the lifespan, since no framework
host = FastAPI(lifespan=lambda _: lifespan_of(llm)) # runs those of mounted apps
host.mount("/llm", llm)
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import headway
from headway.config import ServerConfig
from headway.errors import HeadwayError
from headway.observe.metrics import Metrics
from headway.server.admin.catalog import router as catalog_router
from headway.server.admin.profile import router as profile_router
from headway.server.admin.progress import router as progress_router
from headway.server.admin.routes import router as admin_router
from headway.server.anthropic.routes import router as anthropic_router
from headway.server.basic.predict import router as predict_router
from headway.server.basic.routes import router as basic_router
from headway.server.doors import Doors, find_doors
from headway.server.middleware import BodyLimit, Gate, Origins, RequestScope
from headway.server.oip.routes import router as oip_router
from headway.server.openai.embeddings import router as embeddings_router
from headway.server.openai.rerank import router as rerank_router
from headway.server.openai.responses.routes import router as responses_router
from headway.server.openai.routes import router as openai_router
from headway.server.openai.score import router as score_router
from headway.server.openapi import DESCRIPTION, describe_app
from headway.server.origins import LOCAL_ORIGINS
from headway.server.refusals import http_exception_response, refuse_error
from headway.server.state import ServerState, state_of
from headway.service.catalog import Catalog
from headway.service.protocol import Service


def make_app(service: Service, config: ServerConfig | None = None, catalog: Catalog | None = None) -> FastAPI:
    """The whole HTTP door of a service. The lifespan starts the service and the catalog, and ends them."""
    config = ServerConfig() if config is None else config
    state = ServerState(service, config, Metrics(service.stats), catalog)
    app = FastAPI(
        title="Headway",
        description=DESCRIPTION,
        version=headway.__version__,
        lifespan=lambda app: lifespan_of(app),
        redirect_slashes=False,
        redoc_url=None,
    )
    app.state.headway = state
    encoder_routers = embeddings_router, rerank_router, score_router
    chat_routers = openai_router, responses_router, anthropic_router
    own_routers = (
        predict_router,
        basic_router,
        oip_router,
        admin_router,
        profile_router,
        progress_router,
        catalog_router,
    )
    routers = *chat_routers, *encoder_routers, *own_routers
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(HeadwayError, _refuse)
    app.add_exception_handler(HTTPException, http_exception_response)
    # The last one added is the first one that a request meets.
    app.add_middleware(Doors, doors=find_doors(routers), refuse=_refuse)
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    app.add_middleware(Gate, state=state)
    app.add_middleware(
        Origins,
        allow_origins=config.allowed_origins,
        allow_origin_regex=LOCAL_ORIGINS,
        allow_methods=("GET", "POST", "PATCH", "DELETE"),
        allow_headers=("*",),
        expose_headers=(
            "X-Request-Id",
            "Request-Id",
            "Retry-After",
            "Server-Timing",
            "Inference-Header-Content-Length",
        ),
    )
    app.add_middleware(RequestScope, state=state)
    app.openapi = lambda: describe_app(app)  # type: ignore[method-assign]
    return app


def lifespan_of(app: FastAPI) -> AbstractAsyncContextManager[None]:
    """Starts the service of a make_app() app; at the end lets what runs finish, then ends it."""
    return _running(server_state(app))


def server_state(app: FastAPI) -> ServerState:
    """The state of a make_app() app."""
    state = app.state.headway
    if not isinstance(state, ServerState):
        raise TypeError("the app was not made by make_app()")
    return state


async def _refuse(request: Request, error: Exception) -> Response:
    """A HeadwayError that comes before the answer has begun. Asynchronous, since others are run in a thread."""
    code = error.code if isinstance(error, HeadwayError) else None
    state_of(request).metrics.rejections.labels(code or "error").inc()
    return refuse_error(request.scope, error)


@asynccontextmanager
async def _running(state: ServerState) -> AsyncIterator[None]:
    await state.service.start()
    try:
        if state.catalog is not None:
            await state.catalog.start()
        yield
    finally:
        # Nothing new from here; a server that drained before (run.py) finds nothing left to wait for.
        state.is_draining = True
        try:
            await state.service.drain(state.config.drain_timeout_s)
        finally:
            try:
                if state.catalog is not None:
                    await state.catalog.aclose()
            finally:
                await state.service.aclose()
