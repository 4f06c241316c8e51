"""`headway serve`: resolves the configs, starts the model's process and the HTTP server, and says how to call it."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvloop
from typer.core import TyperCommand

from headway import __version__
from headway.cli import startup
from headway.cli.banner import curl_line, phase_line, plan_lines, unmatched_lines
from headway.cli.options import ALL_GROUPS, EPILOG, make_command, model_argument, setting_options, split_settings
from headway.cli.resolve import misspelt_variables, resolve_settings
from headway.cli.settings import Configs
from headway.cli.terminal import note, report_error, say
from headway.config import ServerConfig
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.server.run import HttpServer
    from headway.service.protocol import Service


def make() -> TyperCommand:
    """The command."""
    return make_command(
        _act,
        [model_argument(), *setting_options(ALL_GROUPS)],
        help_text="Serve a model over HTTP: OpenAI's routes, and plain JSON.",
        epilog=EPILOG,
    )


def _act(given: dict[str, Any]) -> int:
    flags, config, _ = split_settings(given)
    configs = resolve_settings(flags, config).to_configs()
    for line in misspelt_variables(os.environ):
        note(line, style="yellow")
    return serve(configs)


def serve(configs: Configs) -> int:
    """Serves until a signal; returns the exit code. A first load that failed ends it: 2 the caller's mistake, else 1.

    Raises:
        HeadwayError: the model can not be found or read, or the address not be listened on; nothing was started.
    """
    from headway.cli.local import open_service
    from headway.observe.logs import set_up_logs

    service, has_chat = open_service(configs)
    set_up_logs(configs.log_format, configs.log_level)
    return serve_service(service, configs.server, has_chat=has_chat)


def serve_service(service: "Service", config: ServerConfig, *, has_chat: bool = True) -> int:
    """serve(), from a service on: listens, says what happens, ends by a signal. Returns the exit code."""
    from headway.server.listen import bind

    told = Told(service, has_key=bool(config.api_keys), has_chat=has_chat)
    bound = bind(config.host, config.port)
    with bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_serve(service, config, bound, told))
    return told.exit_code or code


async def _serve(service: "Service", config: ServerConfig, bound: socket.socket, told: "Told") -> int:
    """The model starts to load before the HTTP side is imported, which takes about as long: in a thread, since the loop
    has to speak with the worker meanwhile."""
    await service.start()
    try:
        server = await asyncio.to_thread(_make_server, service, config, bound, told)
        startup.end()
        told.stop = server.stop
        return await server.serve()
    finally:
        await service.aclose()


def _make_server(service: "Service", config: ServerConfig, bound: socket.socket, told: "Told") -> "HttpServer":
    from headway.server.app import make_app
    from headway.server.run import Announcements, HttpServer

    announcements = Announcements(on_listening=told.listening, on_ready=told.ready, on_failed=told.failed)
    return HttpServer(make_app(service, config), announcements, bound=bound)


class Told:
    """Says what happens, on the server's loop. A load that fails before the model was ever ready ends the server."""

    def __init__(self, service: "Service", *, has_key: bool, has_chat: bool) -> None:
        self._service = service
        self._has_key = has_key
        self._has_chat = has_chat
        self._url = ""
        self.exit_code = 0
        """Of a load that failed."""
        self.stop: Callable[[], None] = lambda: None

    def listening(self, url: str) -> None:
        """The socket is open; the load goes on."""
        self._url = url
        say(f"Headway {__version__} listens on {url}, {self._service.models()[0].id} is being loaded")

    def ready(self) -> None:
        """The model answers: what it is, what it takes, and how to call it."""
        cards = self._service.models()
        card = cards[0]
        context = f", context {card.max_model_len:,} tokens" if card.max_model_len else ""
        aliases = f", also as {', '.join(other.id for other in cards[1:])}" if cards[1:] else ""
        say(f"{card.id} ({card.root}) is ready{context}{aliases}", style="green")
        say(phase_line(card.phases))
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
        self.exit_code = report_error(error, is_debugging=False, doing=f"{model} could not be loaded")
        self.stop()
