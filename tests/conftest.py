"""For all tests. In continuous integration a skipped one is a failed run: what a test needs, the run installs."""

import logging
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """What a command sets up for its process is not the next test's: levels, handlers, what a line tells."""
    loggers = [logging.getLogger(name) for name in (None, "uvicorn.error", "httpx2")]
    levels, handlers = [logger.level for logger in loggers], loggers[0].handlers[:]
    told = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    yield
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = told
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if os.environ.get("CI") == "true" and skipped:
        terminalreporter.write_line(f"{len(skipped)} tests were skipped, which continuous integration does not allow")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") == "true" and exitstatus == 0 and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
