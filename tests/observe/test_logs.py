"""Log lines: one JSON object each, with the request's id, for our loggers and the standard library's."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from headway.observe.logs import get_logger, set_up_logs


@pytest.fixture
def root_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    uvicorn_level = logging.getLogger("uvicorn.error").level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(uvicorn_level)


@pytest.mark.usefixtures("root_restored")
def test_every_line_is_an_object_with_the_requests_id() -> None:
    out = io.StringIO()
    set_up_logs("json", "info", out)
    log = get_logger("headway.test")
    with structlog.contextvars.bound_contextvars(request_id="req-1"):
        log.info("a thing happened", count=3)
    log.debug("not told")
    logging.getLogger("uvicorn.error").info("not told")
    logging.getLogger("uvicorn.error").warning("told %s", "too")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    for line in lines:
        assert line.pop("timestamp").endswith("Z")
    assert lines == [
        {"event": "a thing happened", "count": 3, "request_id": "req-1", "level": "info"},
        {"event": "told too", "level": "warning"},
    ]


@pytest.mark.usefixtures("root_restored")
def test_an_exception_is_one_line() -> None:
    out = io.StringIO()
    set_up_logs("json", "info", out)
    try:
        raise ValueError("no")
    except ValueError:
        get_logger("headway.test").exception("it failed")
    (line,) = out.getvalue().splitlines()
    assert "ValueError: no" in json.loads(line)["exception"]


@pytest.mark.usefixtures("root_restored")
def test_a_console_gets_words() -> None:
    out = io.StringIO()
    set_up_logs("console", "info", out)
    get_logger("headway.test").info("a thing happened", count=3)
    assert "a thing happened" in out.getvalue()
    assert "count=3" in out.getvalue()


def test_without_a_set_up_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    get_logger("headway.test").info("a thing happened")
    assert capfd.readouterr() == ("", "")
