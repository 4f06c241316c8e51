"""SpareKeeper: which processes wait without a model (worker/spares), and when they are started.

A spare is for a cold model: at most one of each kind, and of the kinds that were used last first.
    started    when the machine is idle: nothing loads, no request runs, and none did a moment ago; one at a time
    paused     when a request or a load comes while it still imports
    taken      by a model of its kind that is loaded; another one is started in the next idle moment
    ended      when residents need its memory, at once; and when no cold model is of its kind any more
Once there are those that are wanted, the server itself imports what a first load needs of it, a module in each such
moment. Residents and spares together are never charged with more than the budget of the machine's memory: to the pool,
spares are free memory.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.config import PoolConfig
from headway.observe.clock import Clock, Timer
from headway.observe.machine import available_memory_bytes
from headway.service.events import CPU
from headway.service.pool import Pool
from headway.worker.spares import SpareKind, Spares
from headway.worker.spawn import take_spawned
from headway_wire.child import import_ahead

QUIET_S = 1.0
"""For so long nothing may have happened before one is started."""
START_S = 3.0
"""A server that starts is not idle, though nobody asks: it imports its own doors."""
LEAST_LIMIT_BYTES = 4 << 30
"""Of memory_limit: with less there are no spares, unless they are asked for."""
DEFAULT_SPARES = 2
MAX_SHARE = 0.05
"""Of memory_limit, which all spares together may take."""
MAX_LOOKED_AT = 100
"""Of cold models, however many there are."""
GUESS_BYTES = 128 << 20
"""What one takes before one of its kind was measured."""
IMPORTED_HERE = (
    *("numpy", "llguidance", "headway.checkpoint.checkpoint", "headway.checkpoint.sources"),
    *("headway.executor.factory", "headway.engine.engine", "headway.engine.loading", "headway.engine.encoder_loading"),
)
"""What the server itself imports before the first load of a model of Headway's engine."""
_BUSY = frozenset({"fetching", "loading", "stopping"})


@dataclass(frozen=True, slots=True)
class SpareRoom:
    """What spares may take."""

    num_bytes: int
    max_spares: int


def choose_spares(
    wanted: Iterable[SpareKind], sizes: Mapping[SpareKind, int], failed: Iterable[SpareKind], room: SpareRoom
) -> list[SpareKind]:
    """The kinds of which there should be a spare, from what is wanted most on. Pure.

    Args:
        wanted: of cold models, in the order in which they are likely to be asked for; more than once is as once.
        sizes: bytes of those that were measured.
        failed: those that end by themselves.
        room: what all may take.
    """
    chosen: list[SpareKind] = []
    left = room.num_bytes
    for kind in dict.fromkeys(wanted):
        size = sizes.get(kind, GUESS_BYTES)
        if len(chosen) < room.max_spares and size <= left and kind not in failed:
            chosen.append(kind)
            left -= size
    return chosen


class SpareKeeper:
    """On the event loop's thread. Told when the machine is used (busy), and whenever something ended (look)."""

    def __init__(
        self,
        spares: Spares,
        kind_of: Callable[[str], SpareKind | None],
        pool: Pool,
        config: PoolConfig,
        clock: Clock,
    ) -> None:
        """`kind_of`: of a model, by its id; None: nothing is started ahead for it."""
        self.spares = spares
        self._kind_of = kind_of
        self._pool = pool
        self._clock = clock
        self._limit = pool.rules.budget.get(CPU, 0)
        default = DEFAULT_SPARES if self._limit >= LEAST_LIMIT_BYTES else 0
        self._max_spares = default if config.max_spares is None else config.max_spares
        self._busy_at = clock.now()
        self._timer: Timer | None = None
        self._is_closed = False
        self._modules = deque(IMPORTED_HERE)
        """Not imported yet."""
        self._import: asyncio.Task[None] | None = None
        spares.on_change = self.look

    def begin(self) -> None:
        """The server starts."""
        self._busy_at = self._clock.now() + START_S
        self.look()

    def busy(self) -> None:
        """A request runs from now on."""
        self._busy_at = max(self._busy_at, self._clock.now())
        if self.spares.is_importing:
            self.spares.pause(True)

    def start_model(self) -> None:
        """A model is about to be loaded: what its memory leaves no room for goes first."""
        self.busy()
        self._shed()

    def look(self) -> None:
        """Something ended: looks again once the machine was idle for a moment."""
        if self._is_closed:
            return
        self._shed()
        if self._timer is None:
            self._timer = self._clock.call_at(self._clock.now() + QUIET_S, self._look)

    def close(self) -> None:
        """Ends all, for good."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._import is not None:
            self._import.cancel()
        self.spares.close()

    def _look(self) -> None:
        self._timer = None
        state = self._pool.state
        if state.waiting or any(each.num_leases or each.status in _BUSY for each in state.models.values()):
            return  # look() is called when that is over
        if self._clock.now() < self._busy_at + QUIET_S:
            self._timer = self._clock.call_at(self._busy_at + QUIET_S, self._look)
            return
        self.spares.pause(False)
        self._place()

    def _place(self) -> None:
        """Ends who is not wanted any more, and starts one more."""
        room = SpareRoom(min(int(MAX_SHARE * self._limit), self._num_free()), self._max_spares)
        chosen = choose_spares(self._wanted(), self.spares.sizes, self.spares.failed, room)
        self._adopt_first(chosen)
        for kind in self.spares.kinds:
            if kind not in chosen:
                self.spares.drop(kind)
        missing = [kind for kind in chosen if kind not in self.spares.kinds]
        if self.spares.is_importing or self._import is not None or available_memory_bytes() < 2 * room.num_bytes:
            return
        if missing:
            self.spares.begin(missing[0])
        elif self._modules and any(kind.serves == "tokens" for kind in chosen):
            self._import = asyncio.create_task(self._import_next())

    async def _import_next(self) -> None:
        await asyncio.to_thread(import_ahead, [self._modules.popleft()])
        self._import = None
        if self._timer is None and not self._is_closed:
            self._look()

    def _adopt_first(self, chosen: Sequence[SpareKind]) -> None:
        """The process that this one started before it read its configuration, where no model took it."""
        spawned = take_spawned()
        if spawned is None:
            return
        fitting = [kind for kind in chosen if kind.serves == "tokens" and kind not in self.spares.kinds]
        if fitting:
            self.spares.adopt(fitting[0], spawned)
        else:
            spawned.kill()

    def _wanted(self) -> Iterable[SpareKind]:
        """Of cold models, the last used first; none where there is but one model."""
        models = self._pool.state.models
        cold = [name for name, each in models.items() if each.status == "cold" and not each.is_removed]
        likely = heapq.nlargest(MAX_LOOKED_AT, cold, key=lambda name: models[name].last_used_at)
        return (kind for kind in map(self._kind_of, likely if len(models) > 1 else []) if kind is not None)

    def _num_free(self) -> int:
        return max(0, self._limit - self._pool.charged.get(CPU, 0))

    def _shed(self) -> None:
        """Spares go, the last started first, until what is left fits beside residents. Not those that a model which
        loads is about to take: they are in its charge already."""
        if not self.spares.kinds:
            return
        loading = [name for name, each in self._pool.state.models.items() if each.status == "loading"]
        taken = {self._kind_of(name) for name in loading}
        free = self._num_free()
        for kind in reversed(self.spares.kinds):
            if self.spares.num_bytes(GUESS_BYTES) <= free:
                return
            if kind not in taken:
                self.spares.drop(kind)
