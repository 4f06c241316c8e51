"""GrammarTrial: grammars compiled first in a process that can be ended, because in a thread nothing can.

Called by the one side thread of engine/grammars that tries. The process is kept; what it compiles with is a copy of it
(trial_process).
"""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from headway.engine.trial_messages import ToTrial, TrialGrammar, TrialVocabulary, Verdict, pack, read_verdicts
from headway.errors import InternalError, from_wire
from headway.observe.processes import describe_exit, start_child
from headway_wire.framing import FrameTooLarge

MAX_START_S = 30.0
"""For the process to start, on a busy machine."""
MAX_ANSWER_S = 10.0
"""For its answer, once the time that a grammar has is over."""
COMMAND = (sys.executable, "-m", "headway.engine.trial_process")
_BROKEN = (OSError, EOFError, FrameTooLarge, msgspec.DecodeError)


@dataclass(slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    connection: socket.socket
    verdicts: Iterator[Verdict]
    is_ready: bool = False

    def ask(self, message: ToTrial, timeout_s: float) -> Verdict:
        """Raises TimeoutError; EOFError where it ended."""
        self.connection.settimeout(timeout_s)
        self.connection.sendall(pack(message))
        verdict = next(self.verdicts, None)
        if verdict is None:
            raise EOFError
        return verdict

    def end(self) -> str:
        """It ends now, if it has not. How it ended, in words."""
        self.process.kill()
        code = self.process.wait()
        self.connection.close()
        return describe_exit(code)


class GrammarTrial:
    """Of one model."""

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._lock = threading.Lock()
        """Of _child and _is_closed."""
        self._is_closed = False

    def start(self) -> None:
        """Starts the process, if there is none; it is ready some time later. Raises InternalError."""
        with self._lock:
            if self._child is None and not self._is_closed:
                self._child = _start()

    def make_ready(self, make_vocabulary: Callable[[], TrialVocabulary]) -> None:
        """Waits until the process can try grammars of this vocabulary. Raises InternalError."""
        self.start()
        child = self._current()
        if child.is_ready:
            return
        try:
            child.ask(make_vocabulary(), MAX_START_S)
        except _BROKEN as error:
            raise InternalError(f"grammars cannot be tried: their process {self._end(child)} as it started") from error
        child.is_ready = True

    def check(self, text: str, timeout_s: float) -> None:
        """Returns if the grammar compiles within its limits.

        Raises:
            InvalidRequest: it does not; the compiler's words, or the limit.
            InternalError: it could not be tried.
        """
        child = self._current()
        try:
            verdict = child.ask(TrialGrammar(text, timeout_s), timeout_s + MAX_ANSWER_S)
        except _BROKEN as error:
            raise InternalError(f"the grammar could not be tried: its process {self._end(child)}") from error
        if verdict.error is not None:
            raise from_wire(verdict.error)

    def end(self) -> None:
        """Ends the process for good; who waits for it is told, in the other thread."""
        with self._lock:
            self._is_closed = True
            if self._child is not None:
                self._child.process.kill()
                self._child.process.wait()

    def close(self) -> None:
        """Behind end(), when nobody waits any more."""
        if self._child is not None:
            self._child.connection.close()

    def _current(self) -> _Child:
        with self._lock:
            if self._child is None or self._is_closed:
                raise InternalError("grammars are not tried any more: the model is shutting down")
            return self._child

    def _end(self, child: _Child) -> str:
        """Ends it and starts the next one, which is ready by the time that it is wanted."""
        words = child.end()
        with self._lock:
            self._child = None
        with contextlib.suppress(InternalError):  # the next grammar's affair
            self.start()
        return words


def _start() -> _Child:
    try:
        process, connection = start_child(COMMAND)
    except OSError as error:
        raise InternalError(f"grammars cannot be tried: their process does not start: {error}") from error
    return _Child(process, connection, read_verdicts(connection))
