"""Loggers, and where their lines go: structlog in front, the standard library behind, and nothing global until the
cli calls set_up_logs(). So a user's own application that imports Headway keeps its own logging.

Every line carries the request's id where there is one. What a caller wrote (prompts, messages, outputs, keys) is never
logged: log calls name ids, counts and error codes.
"""

import logging
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
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
    # No line tells them, and each costs a look at the process for each line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream)
    kind = structlog.stdlib.ProcessorFormatter if is_console else JsonLines
    handler.setFormatter(
        kind(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Its lines about starting and stopping repeat ours.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))
    # A line for each call of another server.
    logging.getLogger("httpx2").setLevel(max(logging.WARNING, root.level))


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


def log_plainly(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
    """A line as get_logger()'s loggers tell it, for what is told at each request: without structlog's chain and
    without a look for the caller, in half the time."""
    if logger.isEnabledFor(level):
        extra = {**structlog.contextvars.get_contextvars(), **fields}
        logger.handle(logger.makeRecord(logger.name, level, "", 0, event, (), None, extra=extra))


def log_many(logger: logging.Logger, level: int, event: str, lines: Iterable[Mapping[str, Any]]) -> None:
    """Lines as log_plainly() tells them, each with all its fields (request_id too); where set_up_logs() made what they
    go to, in one write."""
    if not logger.isEnabledFor(level):
        return
    handler = _only_handler(logger)
    if handler is None:
        for fields in lines:
            logger.handle(logger.makeRecord(logger.name, level, "", 0, event, (), None, extra=dict(fields)))
        return
    now_s = time.time()
    text = "\n".join(JsonLines.line(event, fields, level, now_s) for fields in lines)
    written = logger.makeRecord(logger.name, level, "", 0, event, (), None)
    handler.acquire()
    try:
        handler.stream.write(text + handler.terminator)
        handler.flush()
    except Exception:  # what can not be written must not end who tells it: as in logging
        handler.handleError(written)
    finally:
        handler.release()


def _only_handler(logger: logging.Logger) -> "logging.StreamHandler[TextIO] | None":
    """What every line goes to, as it is; None: there are more, or lines are looked at on their way."""
    root = logging.getLogger()
    is_bare = not logger.handlers and not logger.filters and logger.propagate
    if not is_bare or logger.parent is not root or len(root.handlers) != 1:
        return None
    handler = root.handlers[0]
    if not isinstance(handler, logging.StreamHandler) or handler.filters:
        return None
    return handler if isinstance(handler.formatter, JsonLines) else None


class JsonLines(structlog.stdlib.ProcessorFormatter):
    """One object a line. A plain line, such as each request's, is made without structlog's chain: in half the time."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        if record.exc_info or record.exc_text or record.stack_info or not isinstance(record.msg, str):
            return super().format(record)
        extra = {name: value for name, value in record.__dict__.items() if name not in _RECORD_FIELDS}
        return self.line(record.getMessage(), extra, record.levelno, record.created)

    @staticmethod
    def line(event: str, fields: Mapping[str, Any], level: int, created_s: float) -> str:
        """`created_s`: Unix seconds."""
        when = datetime.fromtimestamp(created_s, UTC).isoformat().replace("+00:00", "Z")
        return _dump({"event": event, **fields, "level": logging.getLevelName(level).lower(), "timestamp": when})


_RECORD_FIELDS = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


def _dump(event: Any, **_: Any) -> str:
    return orjson.dumps(event, default=repr).decode()
