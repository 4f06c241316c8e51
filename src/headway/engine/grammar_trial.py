"""GrammarTrial: grammars compiled first in a process that can be ended, because in a thread nothing can.

Called by the one side thread of engine/grammars that tries; the process is kept from grammar to grammar, and started
anew where one ended it.
"""

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from headway.engine.trial_messages import ToTrial, TrialGrammar, TrialVocabulary, Verdict, pack, read_verdicts
from headway.engine.trial_process import MAX_TRIAL_BYTES, MAX_TRIAL_CPU_S
from headway.errors import HeadwayError, InternalError, InvalidRequest, from_wire
from headway.observe.processes import describe_exit, start_child
from headway.text.grammar_compiler import ANY_PARAM
from headway_wire.framing import FrameTooLarge

logger = logging.getLogger(__name__)

MAX_START_S = 30.0
"""For the process to start, on a busy machine."""
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
    """Of one model.

    Args:
        timeout_s: of a grammar; its processor time is limited too, see trial_process.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
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

    def check(self, text: str) -> None:
        """Returns if the grammar compiles within its limits.

        Raises:
            InvalidRequest: it does not; the compiler's words, or the limit.
            InternalError: it could not be tried.
        """
        child, start_s = self._current(), time.monotonic()
        try:
            verdict = child.ask(TrialGrammar(text), self._timeout_s)
        except TimeoutError:
            self._end(child)
            raise _too_large(text, f"within {self._timeout_s:g} s") from None
        except _BROKEN:
            words = self._end(child)
            logger.warning(
                "a grammar of %d characters was not compiled: the process %s after %.1f s",
                *(len(text), words, time.monotonic() - start_s),
            )
            raise _error_of_end(child, text, words) from None
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


def _too_large(text: str, limit: str) -> InvalidRequest:
    return InvalidRequest(
        f"{ANY_PARAM} is a grammar of {len(text)} characters that cannot be compiled {limit}: make its repetitions "
        "shorter, or let its terminals name fewer others",
        param=ANY_PARAM,
    )


def _error_of_end(child: _Child, text: str, words: str) -> HeadwayError:
    """Why a grammar's process ended."""
    code = child.process.returncode
    if code == -signal.SIGPROF:
        return _too_large(text, f"in {MAX_TRIAL_CPU_S} s of processor time")
    if code >= 0 or code == -signal.SIGKILL:  # a fault of ours, or somebody's deed
        return InternalError(f"the grammar could not be tried: its process {words}")
    return _too_large(text, f"in {MAX_TRIAL_BYTES // 2**20} MB")
