"""Log lines: one JSON object each, with the request's id, for our loggers and the standard library's."""

import io
import json
import logging
from datetime import datetime

import pytest
import structlog
from structlog.stdlib import ProcessorFormatter

from headway.observe.logs import JsonLines, get_logger, log_plainly, set_up_logs


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


def test_a_plain_line_is_what_the_chain_makes_of_it() -> None:
    set_up_logs("json", "info", io.StringIO())
    formatter = logging.getLogger().handlers[0].formatter
    assert isinstance(formatter, JsonLines)
    record = logging.makeLogRecord(
        {
            "name": "n",
            "msg": "took %d ms",
            "args": (7,),
            "levelno": 30,
            "levelname": "WARNING",
            "request_id": "r",
            "x": 1,
        }
    )
    plain = json.loads(formatter.format(record))
    chained = json.loads(ProcessorFormatter.format(formatter, record))
    assert datetime.fromisoformat(plain.pop("timestamp")).timestamp() == pytest.approx(record.created, abs=1e-5)
    chained.pop("timestamp")
    assert plain == chained == {"event": "took 7 ms", "request_id": "r", "x": 1, "level": "warning"}


def test_a_line_without_the_chain_is_the_loggers_own() -> None:
    out = io.StringIO()
    set_up_logs("json", "info", out)
    with structlog.contextvars.bound_contextvars(request_id="req-1"):
        get_logger("headway.test").info("request", status=200)
        log_plainly(logging.getLogger("headway.test"), logging.INFO, "request", status=200)
    log_plainly(logging.getLogger("headway.test"), logging.DEBUG, "not told")
    theirs, ours = [json.loads(line) for line in out.getvalue().splitlines()]
    assert ours.pop("timestamp") >= theirs.pop("timestamp")
    assert ours == theirs == {"event": "request", "status": 200, "request_id": "req-1", "level": "info"}


def test_an_exception_is_one_line() -> None:
    out = io.StringIO()
    set_up_logs("json", "info", out)
    try:
        raise ValueError("no")
    except ValueError:
        get_logger("headway.test").exception("it failed")
    (line,) = out.getvalue().splitlines()
    assert "ValueError: no" in json.loads(line)["exception"]


def test_a_console_gets_words() -> None:
    out = io.StringIO()
    set_up_logs("console", "info", out)
    get_logger("headway.test").info("a thing happened", count=3)
    assert "a thing happened" in out.getvalue()
    assert "count=3" in out.getvalue()


def test_without_a_set_up_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    get_logger("headway.test").info("a thing happened")
    assert capfd.readouterr() == ("", "")
