"""structlog, set up once by the cli. Every line carries the request's id where there is one.

What a caller wrote (prompts, messages, outputs, keys) is never logged: log calls name ids, counts and error codes.
The standard library's loggers (uvicorn's) go the same way.
"""

import logging
import sys
from typing import Any, Literal, TextIO

import orjson
import structlog
from structlog.types import Processor

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def set_up_logs(format: LogFormat = "auto", level: LogLevel = "info", stream: TextIO | None = None) -> None:
    """Sends structlog's and the standard library's lines to `stream` (stderr).

    Args:
        format: auto is console on a terminal, else json: one object a line.
    """
    stream = sys.stderr if stream is None else stream
    is_console = format == "console" or (format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
        if is_console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dump)]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Its lines about starting and stopping repeat ours.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))


def get_logger(name: str) -> Any:
    """A logger: `log.info("event in words", key=value)`."""
    return structlog.get_logger(name)


def _dump(event: Any, **_: Any) -> str:
    return orjson.dumps(event, default=repr).decode()
