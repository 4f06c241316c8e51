"""The ranks that compute one model together, as rank 0 has them: it starts the others, and tells each step to them.

Rank 0 is the process that has the engine. A socket pair joins it with each of the others: a step's arrays go over it;
the values that ranks add up go over the group itself (executor/torch_group). So a rank that waits for its next step
waits in a read, for as long as nobody asks anything, and sees rank 0's end as an end of file.
"""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.engine.rank_messages import FromRank, RankFailed, RankHello, RankLoad, RankReady, pack, read_from_rank
from headway.errors import InternalError, WorkerDied, from_wire
from headway.observe.processes import describe_exit, start_child

DEATH_WAIT_S = 2.0
"""How long after a failure in the group it may take until it shows which rank is dead."""
SEND_TIMEOUT_S = 60.0
"""How long a rank may take to read what is sent to it."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """Another rank."""

    rank: int
    process: "subprocess.Popen[bytes]"
    connection: socket.socket
    messages: Iterator[FromRank]


class Ranks:
    """The other ranks of a group. Not thread-safe. Ends them when it is closed, or not used any more.

    Args:
        size: of the group, rank 0 included.
        command: what a rank's process is; `--fd N` is appended.
    """

    def __init__(self, size: int, *, command: Sequence[str] = (sys.executable, "-m", "headway.engine.rank")) -> None:
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="headway-"))
        """This user's alone; gone with the ranks."""
        self._has_met = False
        self._others: list[RankProcess] = []
        self._end = weakref.finalize(self, _end, self._others, self.folder)
        for rank in range(1, size):
            self._others.append(_start(rank, command))

    @property
    def pids(self) -> list[int]:
        """Of the other ranks."""
        return [other.process.pid for other in self._others]

    def load(self, make_load: Callable[[int], RankLoad]) -> None:
        """Tells each rank its part, and waits until all are about to join the group. Raises what one fails with."""
        for other in self._others:
            self._send_to(other, pack(make_load(other.rank)))
        self._wait_for(RankHello)

    def wait_ready(self) -> None:
        """Waits until all have loaded. Raises what one fails with, WorkerDied for one that ends."""
        self._wait_for(RankReady)

    def send(self, frame: bytes) -> None:
        """Puts a frame on its way to all ranks. Raises WorkerDied."""
        for other in self._others:
            self._send_to(other, frame)

    def check(self) -> None:
        """Raises WorkerDied if a rank has ended."""
        for other in self._others:
            if other.process.poll() is not None:
                raise self._lost(other)

    def explain(self, error: Exception) -> WorkerDied:
        """Why the group can not go on after `error`: a rank that has ended, or is about to, or the error itself."""
        # Who was killed before who ended because of it.
        until = time.monotonic() + DEATH_WAIT_S
        while time.monotonic() < until:
            ended = [other for other in self._others if other.process.poll() is not None]
            if ended:
                return self._lost(min(ended, key=lambda other: other.process.returncode >= 0))
            time.sleep(0.01)
        return WorkerDied(f"the group of {self.size} ranks is lost: {type(error).__name__}: {error}")

    def forget_meeting(self) -> None:
        """They have met: where is not needed any more."""
        if not self._has_met:
            self._has_met = True
            shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Ends all of them and waits for it. Again: nothing."""
        self._end()

    def _send_to(self, other: RankProcess, frame: bytes) -> None:
        try:
            other.connection.settimeout(SEND_TIMEOUT_S)
            other.connection.sendall(frame)
        except OSError as error:
            raise self.explain(error) from error

    def _wait_for(self, kind: type[FromRank]) -> None:
        for other in self._others:
            other.connection.settimeout(None)  # the parent bounds the load as a whole
            message = next(other.messages, None)
            if message is None:
                raise self.explain(EOFError(f"rank {other.rank} closed its connection"))
            if isinstance(message, RankFailed):
                raise from_wire(message.error)
            if not isinstance(message, kind):
                raise InternalError(f"rank {other.rank} sent {type(message).__name__}, it must be {kind.__name__}")

    def _lost(self, other: RankProcess) -> WorkerDied:
        return WorkerDied(f"rank {other.rank} of {self.size} {describe_exit(other.process.returncode)}")


def _start(rank: int, command: Sequence[str]) -> RankProcess:
    process, connection = start_child(command)
    return RankProcess(rank, process, connection, read_from_rank(connection))


def _end(others: list[RankProcess], folder: Path) -> None:
    """An end of file would do, but not for one that is inside a step or hangs. They have nothing to save."""
    for other in others:
        other.connection.close()
        other.process.kill()
    for other in others:
        other.process.wait()
    others.clear()
    shutil.rmtree(folder, ignore_errors=True)
