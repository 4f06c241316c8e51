"""What the commands print: facts to stdout, progress and faults to stderr; colours and bars only where a person looks.

Not a terminal (a pipe, a log): plain lines, no colour, no bar. NO_COLOR and TERM=dumb are honoured (by rich).
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from headway.errors import CallerError, HeadwayError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


def say(text: str = "", *, style: str | None = None) -> None:
    """A line to stdout, never wrapped: what is to be pasted stays in one piece."""
    _print(_console(), text, style)


def note(text: str, *, style: str | None = None) -> None:
    """A line to stderr: about the work, not its result."""
    _print(_console(stderr=True), text, style)


def report_error(error: BaseException, *, is_debugging: bool, doing: str = "") -> int:
    """Prints an error as one line (the traceback too when debugging), `doing` before it; returns the exit code.

    2: the caller's mistake. 1: anything else.
    """
    if is_debugging:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, HeadwayError):
        note(f"headway: {doing}: {error.message}" if doing else f"headway: {error.message}", style="red")
        return 2 if isinstance(error, CallerError) else 1
    hint = "" if is_debugging else " (HEADWAY_DEBUG=1 shows where)"
    note(f"headway: internal error: {type(error).__name__}: {error}{hint}", style="red")
    return 1


def is_terminal(stream: Any) -> bool:
    """Whether a person looks at it (or types)."""
    return bool(stream is not None and not stream.closed and stream.isatty())


class FetchBar:
    """Shows downloads: a bar on a terminal, else a line when a phase begins. A checkpoint.progress.Progress."""

    def __init__(self, bar: "Progress | None") -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID | None] = {}

    def __call__(self, phase: str, done_bytes: int, total_bytes: int | None) -> None:
        """Takes one report; may be called from another thread."""
        if phase not in self._tasks:
            self._tasks[phase] = self._bar.add_task(phase, total=total_bytes) if self._bar is not None else None
            if self._bar is None:
                note(f"{phase} ...")
        task = self._tasks[phase]
        if self._bar is not None and task is not None:
            self._bar.update(task, completed=done_bytes, total=total_bytes)


@contextmanager
def fetch_bar() -> Iterator[FetchBar]:
    """A FetchBar, cleaned up at the end whatever happens."""
    if not is_terminal(sys.stderr):
        yield FetchBar(None)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=_console(stderr=True)) as bar:
        yield FetchBar(bar)


_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def for_terminal(text: str) -> str:
    """Text without control characters: a model could write escape sequences, and a terminal would obey them."""
    return text.translate(_CONTROL)


class AnswerWriter:
    """Writes an answer as it comes. A terminal gets no control characters, reasoning dimmed and apart from the answer,
    and ends at the start of a line; a pipe or a file the answer alone, as it is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_shown = is_terminal(stream)
        self._last = ""
        """What was written last."""
        self._is_reasoning = False
        self._dimmed: Console | None = None

    def write(self, text: str, *, is_reasoning: bool) -> None:
        """The next piece; not empty."""
        if not self._is_shown:
            if not is_reasoning:
                self._stream.write(text)
                self._stream.flush()
            return
        if self._is_reasoning and not is_reasoning:
            self.end()
            self._stream.write("\n")
        self._is_reasoning = is_reasoning
        self._last = for_terminal(text)
        if is_reasoning:
            self._write_dimmed(self._last)
        else:
            self._stream.write(self._last)
        self._stream.flush()

    def end(self) -> None:
        """Nothing follows, or something else."""
        if self._is_shown and not self._last.endswith("\n"):
            self._stream.write("\n")
            self._stream.flush()
            self._last = "\n"

    def _write_dimmed(self, text: str) -> None:
        if self._dimmed is None:
            from rich.console import Console

            self._dimmed = Console(file=self._stream, markup=False, highlight=False, emoji=False, soft_wrap=True)
        self._dimmed.print(text, style="dim", end="")


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _print(console: "Console", text: str, style: str | None) -> None:
    console.print(text, style=style)
    console.file.flush()
