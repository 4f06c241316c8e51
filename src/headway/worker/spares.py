"""Spares: processes that have no model yet. Each has imported what models of its kind need, and waits for a Load: a
cold model that takes one has only its weights to read.

Who decides which there are is service/spare_keeper. A spare that nobody takes ends with this process.
"""

import asyncio
import contextlib
import importlib.util
import logging
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

import headway_wire as wire
from headway.observe.memory_use import process_tree_bytes
from headway.worker.infer_process import spawn_infer
from headway.worker.spawn import Spawned, spawn

logger = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SpareKind:
    """What a spare can become."""

    serves: Literal["tokens", "tensors"]
    """worker.serve, around an engine; or headway_wire.serve, around a predictor."""
    modules: tuple[str, ...]
    """What it has imported."""
    python: str | None = None
    """The path of another interpreter, for tensors; None: this one."""


@dataclass(slots=True, eq=False)
class _Spare:
    """One process."""

    spawned: Spawned
    frames: wire.FrameReader
    is_waiting: bool = False
    """Its imports are done."""
    is_paused: bool = False
    num_bytes: int | None = None
    """Measured once it waits."""

    def pause(self, is_paused: bool) -> None:
        """Stops it, unless it waits: that takes nothing. One may come to wait, and be stopped before that is read."""
        if is_paused != self.is_paused and not (is_paused and self.is_waiting):
            self.is_paused = is_paused
            with contextlib.suppress(ProcessLookupError):
                self.spawned.process.send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)


class Spares:
    """At most one of each kind. On the event loop's thread; measures in another."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when one has come to wait and was measured, or has died."""
        self.sizes: dict[SpareKind, int] = {}
        """Of each kind that ever waited, in bytes."""
        self.failed: set[SpareKind] = set()
        """Kinds whose process ended by itself, or whose modules are not installed: not started again."""
        self._spares: dict[SpareKind, _Spare] = {}
        self._measuring: set[asyncio.Task[None]] = set()

    @property
    def kinds(self) -> tuple[SpareKind, ...]:
        """Of those there are, in the order of their start."""
        return tuple(self._spares)

    @property
    def is_importing(self) -> bool:
        """Whether one is at work still."""
        return any(not spare.is_waiting for spare in self._spares.values())

    @property
    def num_waiting(self) -> int:
        """Those that a Load may be sent to at once."""
        return sum(spare.is_waiting for spare in self._spares.values())

    def begin(self, kind: SpareKind) -> None:
        """Starts one, if there is none of its kind. What fails, fails later: who needs the model is told then."""
        if kind in self._spares or kind in self.failed:
            return
        if kind.python is None and not all(map(_is_installed, kind.modules)):
            self.failed.add(kind)
            self.on_change()
            return
        try:
            is_engine = kind.serves == "tokens"
            spawned = spawn(sys.executable, *kind.modules) if is_engine else spawn_infer(kind.python, kind.modules)
        except OSError as error:
            self.failed.add(kind)
            logger.warning("no process can be started ahead: %s", error)
            return
        self.adopt(kind, spawned)

    def adopt(self, kind: SpareKind, spawned: Spawned) -> None:
        """One that was started with the kind's modules."""
        self._spares[kind] = _Spare(spawned, wire.FrameReader())
        spawned.connection.setblocking(False)
        asyncio.get_running_loop().add_reader(spawned.connection, self._read, kind)

    def take(self, kind: SpareKind | None) -> Spawned | None:
        """The one of this kind, which is nobody else's then; it may still import. None: there is none."""
        spare = None if kind is None else self._spares.pop(kind, None)
        if kind is None or spare is None:
            return None
        self._stop_reading(spare)
        if spare.spawned.process.poll() is not None:
            self._lose(kind, spare)
            return None
        spare.pause(False)
        return spare.spawned

    def drop(self, kind: SpareKind) -> None:
        """Ends the one of this kind."""
        spare = self._spares.pop(kind, None)
        if spare is not None:
            self._stop_reading(spare)
            spare.spawned.kill()

    def pause(self, is_paused: bool) -> None:
        """Stops those that import, for as long as somebody else needs the cores; or lets them go on."""
        for spare in self._spares.values():
            spare.pause(is_paused)

    def num_bytes(self, guess: int) -> int:
        """Of all; `guess` of one that was not measured yet."""
        return sum(self.sizes.get(kind, guess) for kind in self._spares)

    def close(self) -> None:
        """Ends all."""
        for kind in self.kinds:
            self.drop(kind)
        for task in self._measuring:
            task.cancel()

    def _stop_reading(self, spare: _Spare) -> None:
        asyncio.get_running_loop().remove_reader(spare.spawned.connection)

    def _read(self, kind: SpareKind) -> None:
        """Waiting is all that it has to say; whatever else, or an end of file, ends it."""
        spare = self._spares[kind]
        try:
            data = spare.spawned.connection.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            messages = [wire.decode_up(payload) for payload in spare.frames.feed(data)]
        except BlockingIOError:
            return
        except (OSError, wire.FrameTooLarge, msgspec.DecodeError):
            messages, data = [], b""
        if not data or any(not isinstance(message, wire.Waiting) for message in messages):
            self._stop_reading(spare)
            self._lose(kind, self._spares.pop(kind))
            self.on_change()
        elif messages:
            spare.is_waiting = True
            spare.pause(False)
            task = asyncio.create_task(self._measure(kind, spare))
            self._measuring.add(task)
            task.add_done_callback(self._measuring.discard)

    def _lose(self, kind: SpareKind, spare: _Spare) -> None:
        self.failed.add(kind)
        spare.spawned.kill()
        logger.warning("a process that was started ahead (%s) has ended; no other one is", ", ".join(kind.modules))

    async def _measure(self, kind: SpareKind, spare: _Spare) -> None:
        self.sizes[kind] = await asyncio.to_thread(process_tree_bytes, [spare.spawned.process.pid])
        self.on_change()


def _is_installed(module: str) -> bool:
    """Whether its package is there; what else may fail when it is imported is found out by who needs it."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None
