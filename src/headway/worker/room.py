"""Room: how much may be open at a worker: what runs, and what may wait. Pure: the client counts."""

from dataclasses import dataclass

import headway_wire as wire
from headway.errors import QueueFull


@dataclass(frozen=True, slots=True)
class Room:
    """The limits of one worker."""

    max_num_seqs: int
    """What it runs at once."""
    max_queued: int
    """What may wait beside that."""

    def check(self, num_open: int, num_more: int, step: wire.Step | None) -> None:
        """Raises QueueFull if `num_more` choices would make more wait than may. Who comes to an idle worker is taken.

        Args:
            num_open: choices that the worker owes an end.
            step: its last one. If some waited there, no more could run than did: not for want of rows, but of memory.
        """
        places = step.num_running if step is not None and step.num_waiting else self.max_num_seqs
        num_waiting = num_open + num_more - places
        if num_open and num_waiting > self.max_queued:
            raise QueueFull(
                f"with this request {num_waiting} would wait to be run, at most {self.max_queued} may "
                "(--max-queued-requests; each of n choices counts): try again later",
                retry_after_s=1.0,
            )
