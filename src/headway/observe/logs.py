"""Loggers, and where their lines go: structlog in front, the standard library behind, and nothing global until the
cli calls set_up_logs(). So a user's own application that imports Headway keeps its own logging.

Every line carries the request's id where there is one. What a caller wrote (prompts, messages, outputs, keys) is never
logged: log calls name ids, counts and error codes.
"""

import logging
import sys
from typing import Any, Literal, TextIO

import orjson
import structlog
from structlog.types import Processor

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]


def set_up_logs(format: LogFormat = "auto", level: LogLevel = "info", stream: TextIO | None = None) -> None:
    """Sends structlog's and the standard library's lines to `stream` (stderr).

    Args:
        format: auto is console on a terminal, else json: one object a line.
    """
    stream = sys.stderr if stream is None else stream
    is_console = format == "console" or (format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
        if is_console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dump)]
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
    """A logger: `log.info("event in words", key=value)`. Keys must not be a logging.LogRecord's own (name, args...)."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _dump(event: Any, **_: Any) -> str:
    return orjson.dumps(event, default=repr).decode()
