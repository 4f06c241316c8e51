"""`headway serve`: resolves the configs, starts the model's process and the HTTP server, and says how to call it."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import uvloop
from typer.core import TyperCommand

from headway import __version__
from headway.cli import startup
from headway.cli.banner import curl_line, plan_lines, unmatched_lines
from headway.cli.fields import flag_name, flag_of
from headway.cli.options import ALL_GROUPS, EPILOG, make_command, model_argument, setting_options, split_settings
from headway.cli.resolve import misspelt_variables, resolve_settings
from headway.cli.settings import Configs, Settings
from headway.cli.terminal import note, report_error, say
from headway.config import ServerConfig
from headway.errors import HeadwayError, InvalidConfig
from headway.observe.load_phases import describe_load

if TYPE_CHECKING:
    from headway.server.run import HttpServer
    from headway.service.catalog import Catalog
    from headway.service.catalog_store import CatalogStore
    from headway.service.local import LocalService
    from headway.service.protocol import Service

logger = logging.getLogger(__name__)


def make() -> TyperCommand:
    """The command."""
    return make_command(
        _act,
        [model_argument(), *setting_options(ALL_GROUPS)],
        help_text="Serve models over HTTP: OpenAI's routes, plain JSON and the Open Inference Protocol. Without MODEL: "
        "those of the catalog (headway models).",
        epilog=EPILOG,
    )


def _act(given: dict[str, Any]) -> int:
    flags, config, _ = split_settings(given)
    configs = resolve_settings(flags, config).to_configs(needs_model=False)
    if not configs.has_model:
        _check_flags(flags)
    for line in misspelt_variables(os.environ):
        note(line, style="yellow")
    return serve(configs)


def serve(configs: Configs) -> int:
    """Serves until a signal; returns the exit code. A first load that failed ends it: 2 the caller's mistake, else 1.

    Raises:
        HeadwayError: the model can not be found or read, or the address not be listened on; nothing was started.
    """
    from headway.cli.catalog_choice import open_store
    from headway.cli.local import open_service
    from headway.observe.logs import set_up_logs
    from headway.service.local import LocalService

    store = open_store(configs.catalog, has_model=configs.has_model)
    has_chat = False
    if configs.has_model:
        service, has_chat = open_service(configs)
    else:
        service = LocalService([], configs.pool, configs.server, configs.checkpoint, keeps_first=False)
    set_up_logs(configs.log_format, configs.log_level)
    return serve_service(service, configs.server, has_chat=has_chat, store=store, has_model=configs.has_model)


def serve_service(
    service: "LocalService",
    config: ServerConfig,
    *,
    has_chat: bool = True,
    store: "CatalogStore | None" = None,
    has_model: bool = True,
) -> int:
    """serve(), from a service on: listens, says what happens, ends by a signal. Returns the exit code."""
    from headway.server.listen import bind
    from headway.service.catalog import Catalog
    from headway.service.catalog_store import MemoryStore

    catalog = Catalog(store or MemoryStore(), service)
    told = Told(service, has_key=bool(config.api_keys), has_chat=has_chat, catalog=None if has_model else catalog.place)
    bound = bind(config.host, config.port)
    with bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_serve(service, catalog, config, bound, told))
    return told.exit_code or code


def _check_flags(flags: Mapping[str, Any]) -> None:
    """Raises InvalidConfig for a flag that would say how MODEL is run, where there is none."""
    for name in flags:
        if flag_of(Settings.model_fields[name].metadata).to.partition(".")[0] in ("model", "engine", "text"):
            raise InvalidConfig(
                f"{flag_name(name)} is about MODEL, and none is named: name one, or give it to the catalog's entry "
                "(headway models add ... --option)",
                param=name,
            )


async def _serve(
    service: "LocalService", catalog: "Catalog", config: ServerConfig, bound: socket.socket, told: "Told"
) -> int:
    """The model starts to load before the HTTP side is imported, which takes about as long: in a thread, since the loop
    has to speak with the worker meanwhile."""
    await service.start()
    try:
        server = await asyncio.to_thread(_make_server, service, catalog, config, bound, told)
        startup.end()
        told.stop = server.stop
        return await server.serve()
    finally:
        await service.aclose()


def _make_server(
    service: "Service", catalog: "Catalog", config: ServerConfig, bound: socket.socket, told: "Told"
) -> "HttpServer":
    from headway.server.app import make_app
    from headway.server.run import Announcements, HttpServer

    announcements = Announcements(on_listening=told.listening, on_ready=told.ready, on_failed=told.failed)
    return HttpServer(make_app(service, config, catalog), announcements, bound=bound)


class Told:
    """Says what happens, on the server's loop. A load that fails before the named model was ever ready ends the server;
    of a catalog's models it is only told."""

    def __init__(self, service: "Service", *, has_key: bool, has_chat: bool, catalog: str | None = None) -> None:
        """`catalog`: where that is, if no model was named."""
        self._service = service
        self._catalog = catalog
        self._has_key = has_key
        self._has_chat = has_chat
        self._url = ""
        self.exit_code = 0
        """Of a load that failed."""
        self.stop: Callable[[], None] = lambda: None

    def listening(self, url: str) -> None:
        """The socket is open; the load goes on."""
        self._url = url
        if self._catalog is None:
            say(f"Headway {__version__} listens on {url}, {self._service.models()[0].id} is being loaded")
            return
        num_models = sum(card.kind == "model" for card in self._service.models())
        say(f"Headway {__version__} listens on {url} and serves {num_models} models of {self._catalog}")
        if not num_models:
            say("Add one, now or later: headway models add demo")

    def ready(self) -> None:
        """The named model answers: what it is, what it takes, and how to call it."""
        if self._catalog is not None:
            say(f"Models are loaded when they are asked for; {self._url}/v1/models lists them")
            return
        card, *cards = self._service.models()
        context = f", context {card.max_model_len:,} tokens" if card.max_model_len else ""
        others = [other.id for other in cards if other.kind != "model" and other.model == card.model]
        aliases = f", also as {', '.join(others)}" if others else ""
        say(f"{card.id} ({card.root}) is ready{context}{aliases}", style="green")
        if not logger.isEnabledFor(logging.INFO):  # else the log has told it
            say(describe_load(card.phases))
        for line in plan_lines(card.info):
            say(line)
        for line in unmatched_lines(card.info):
            say(line, style="yellow")
        if self._has_key:
            say("With HEADWAY_API_KEY set to your key, try it:")
        else:
            say("Try it:")
        task = str(card.info.get("task", "generate"))
        say(curl_line(self._url, card.id, has_key=self._has_key, has_chat=self._has_chat, task=task))

    def failed(self, model: str, error: HeadwayError) -> None:
        """The load failed, with `error`."""
        code = report_error(error, is_debugging=False, doing=f"{model} could not be loaded")
        if self._catalog is None:
            self.exit_code = code
            self.stop()
