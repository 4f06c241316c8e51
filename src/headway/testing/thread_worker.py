"""ThreadWorker: worker/loop in a thread of this process, joined to a client without a socket (worker/channel.Channel).

Messages still go through their encoding, so that what works here works over the wire.
"""

import asyncio
import contextlib
import threading

import headway_wire as wire
from headway.worker.channel import Receiver, WorkerEnd
from headway.worker.loop import Inbox, WorkerLoop


class ThreadWorker:
    """Make it on a running loop; the thread ends with the worker, or is left behind if its step never ends."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        self.gone = asyncio.Event()
        self._receiver = receiver
        self._inbox = Inbox()
        self._loop = asyncio.get_running_loop()
        self._arrived: list[bytes] = []
        self._lock = threading.Lock()
        self.worker_loop = WorkerLoop(self._inbox, self._send_up)
        self._thread = threading.Thread(target=self._run, name=f"worker {name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> None:
        """It has no process of its own."""
        return

    def send(self, message: wire.Down) -> None:
        """To the worker."""
        if not self.gone.is_set():
            self._inbox.put(wire.decode_down(wire.encode(message)))

    def kill(self, how: str) -> None:
        """As a kill -9 would look: the receiver hears of the end, and nothing after it."""
        self._inbox.put(wire.Shutdown())
        self._close_predictor()
        self._end(how)

    async def close(self, grace_s: float) -> None:
        """Shutdown, then what kill() does."""
        self.send(wire.Shutdown())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.gone.wait(), grace_s)
        if not self.gone.is_set():
            self.kill("was ended")

    def _run(self) -> None:
        code = self.worker_loop.run()
        # The loop may be closed already: then there is nobody to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, f"ended with exit code {code}")

    def _send_up(self, message: wire.Up) -> None:
        payload = wire.encode(message)
        with self._lock:
            self._arrived.append(payload)
            if len(self._arrived) > 1:
                return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        if arrived and not self.gone.is_set():
            left = [self._receiver.take_plain(payload) for payload in arrived]
            self._receiver.on_messages([wire.decode_up(payload) for payload in left if payload is not None])

    def _end(self, how: str) -> None:
        if not self.gone.is_set():
            self.gone.set()
            self._receiver.on_end(WorkerEnd(how))

    def _close_predictor(self) -> None:
        if self.worker_loop.predictor is not None:
            self.worker_loop.predictor.close()
