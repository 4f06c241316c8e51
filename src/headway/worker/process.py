"""WorkerProcess: starts a worker's process, carries its messages, watches it end, ends it.

A socket pair is all that joins the two: no port, no pickle, no shared memory. The child's output is logged line by line
with the model's name before it. How the end is told, once, to the receiver:

    end of file on socket and output, and the exit code   the usual death
    end of file, and no exit code within EXIT_WAIT_S      it closed its socket and lives: killed
    exit code, and no end of file within EXIT_WAIT_S      a process of its own holds them: does not matter
    what is no message                                    killed; the messages before it were delivered
"""

import asyncio
import contextlib
import functools
import logging
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable

import msgspec

import headway_wire as wire
from headway._native import FrameWriter
from headway.errors import CorruptCheckpoint
from headway.observe.processes import describe_exit
from headway.worker.channel import EXIT_LOST_PAGE, Receiver, WorkerEnd
from headway.worker.groups import outlive_leader, reap_group
from headway.worker.spawn import Spawned, spawn, take_spawned

logger = logging.getLogger(__name__)

EXIT_WAIT_S = 0.5
_NUM_LAST_LINES = 12
_MAX_LINE_BYTES = 4096


class WorkerProcess(asyncio.Protocol):
    """One child and its socket (worker/channel.Channel). Made by start_process."""

    def __init__(self, name: str, receiver: Receiver, spawned: Spawned) -> None:
        self.name = name
        self.gone = asyncio.Event()
        """Set after the receiver's on_end; the process is reaped then, or is about to be."""
        self._receiver = receiver
        self._process = spawned.process
        self._loop = asyncio.get_running_loop()
        self._frames = wire.FrameReader()
        self.frames: FrameWriter | None = None
        """Once it is connected. What is written to it directly, and by send(), goes in the order of the calls."""
        self._transport: asyncio.WriteTransport | None = None
        self._output = OutputLog(name, self._end_if_gone)
        self._kill_reason: str | None = None
        self._exit_code: int | None = None
        self._is_at_eof = False
        threading.Thread(target=self._wait, name=f"wait for {name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    @property
    def output(self) -> "OutputLog":
        """Where its lines go."""
        return self._output

    def send(self, message: wire.Down) -> None:
        """Puts a message on its way; after the end it is dropped.

        All messages of one turn of the event loop go out at its end in one write: each would wake the child, which has
        a core to itself seldom, and would take its first request alone where it could take a batch.
        """
        if self.frames is not None:
            self.frames.write(_checked(wire.encode(message)))

    def kill(self, how: str) -> None:
        """SIGKILL; the end will say `how`."""
        if self._kill_reason is None:
            self._kill_reason = how
        self._signal(signal.SIGKILL)

    async def close(self, grace_s: float) -> None:
        """Shutdown, then end of file, then SIGKILL, `grace_s` between them; returns when it is gone."""
        self.send(wire.Shutdown())
        for act in (self._send_end_of_file, functools.partial(self._signal, signal.SIGKILL)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.gone.wait(), grace_s)
                return
            act()
        await self.gone.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        connection = transport.get_extra_info("socket")
        frames = FrameWriter(transport, connection.fileno(), lambda: self._loop.call_soon(frames.flush))
        self.frames = frames

    def data_received(self, data: bytes) -> None:
        messages: list[wire.Up] = []
        fault = ""
        try:
            for payload in self._frames.feed(data):
                left = payload if self._kill_reason is not None else self._receiver.take_plain(payload)
                if left is None:
                    continue
                message = wire.decode_up(left)
                if not isinstance(message, wire.Waiting):  # told to who started it ahead (worker/spares)
                    messages.append(message)
        except (wire.FrameTooLarge, msgspec.DecodeError) as error:
            fault = f"sent what is no message ({error}) and was killed"
        if messages and self._kill_reason is None:
            self._receiver.on_messages(messages)
        if fault:
            self.kill(fault)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_at_eof = True
        if self.frames is not None:
            self.frames.lose()
        if self._exit_code is None:
            self._loop.call_later(EXIT_WAIT_S, self._on_late_exit)
        self._end_if_gone()

    # within

    def _wait(self) -> None:
        outlive_leader(self._process.pid)
        code = self._process.wait()
        # The loop may be closed already: then there is nobody to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_exit, code)
        reap_group(self._process.pid)

    def _on_exit(self, code: int) -> None:
        self._exit_code = code
        self._loop.call_later(EXIT_WAIT_S, self._end)
        self._end_if_gone()

    def _on_late_exit(self) -> None:
        if self._exit_code is None:
            self.kill("closed its connection and was killed")

    def _end_if_gone(self) -> None:
        if self._exit_code is not None and self._is_at_eof and self._output.is_at_eof:
            self._end()

    def _end(self) -> None:
        if self.gone.is_set():
            return
        if self._transport is not None:
            self._transport.abort()
        self._output.close()
        self.gone.set()
        if self._exit_code == EXIT_LOST_PAGE and self._kill_reason is None:
            self._tell_lost_page()
        how = self._kill_reason or describe_exit(self._exit_code)
        self._receiver.on_end(WorkerEnd(how, self._output.last_words))

    def _tell_lost_page(self) -> None:
        """The child could not say it itself: it ended inside a signal handler."""
        words = self._output.last_words.rpartition("\n")[2]
        if words:
            self._receiver.on_messages([wire.Failed(error=CorruptCheckpoint(words).to_wire())])

    def _send_end_of_file(self) -> None:
        # What is written so far goes first; the child ends itself when it sees the end (worker/serve).
        if self.frames is not None:
            self.frames.flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def _signal(self, number: int) -> None:
        # Popen does nothing once the process was reaped, so no other process can be hit.
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


class OutputLog(asyncio.Protocol):
    """A child's output as log lines with its name; keeps the last ones."""

    def __init__(self, name: str, on_eof: Callable[[], None]) -> None:
        self.is_at_eof = False
        self._on_eof = on_eof
        self._name = name
        self._transport: asyncio.BaseTransport | None = None
        self._lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._rest = b""

    @property
    def last_words(self) -> str:
        """The last lines that it wrote, the unfinished one too."""
        rest = [self._rest.decode(errors="replace")] if self._rest else []
        return "\n".join([*self._lines, *rest])

    def close(self) -> None:
        """Reads no more: a process that outlived the child may hold the other end for ever."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.is_at_eof = True
        self._on_eof()

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            text = line[:_MAX_LINE_BYTES].decode(errors="replace").rstrip()
            self._lines.append(text)
            logger.info("%s: %s", self._name, text)


def _checked(payload: bytes) -> bytes:
    """Raises FrameTooLarge for one that the other side would refuse."""
    if len(payload) > wire.MAX_FRAME_BYTES:
        raise wire.FrameTooLarge(f"a frame of {len(payload)} bytes is over the limit of {wire.MAX_FRAME_BYTES}")
    return payload


async def start_process(
    name: str, receiver: Receiver, *, python: str | None = None, spare: Spawned | None = None
) -> WorkerProcess:
    """Starts a worker and joins it to `receiver`. Raises OSError.

    Args:
        name: of the model.
        receiver: is told what it says.
        python: its interpreter; None: this one, of which a child may wait already (worker/spawn).
        spare: one that waits; None: there is none.

    Must be called on a thread that lives as long as the worker may: Linux ends a child when the thread that made it
    ends (PR_SET_PDEATHSIG).
    """
    return await join_process(
        name, receiver, spare or (take_spawned() if python is None else None) or spawn(python or sys.executable)
    )


async def join_process(name: str, receiver: Receiver, spawned: Spawned) -> WorkerProcess:
    """Joins a child that was just started to `receiver`. Raises OSError; then it is ended."""
    loop = asyncio.get_running_loop()
    worker = WorkerProcess(name, receiver, spawned)
    spawned.connection.setblocking(False)
    try:
        await loop.connect_read_pipe(lambda: worker.output, spawned.process.stdout)
        await loop.create_connection(lambda: worker, sock=spawned.connection)
    except BaseException:
        spawned.connection.close()
        worker.output.close()
        spawned.process.kill()
        raise
    return worker
