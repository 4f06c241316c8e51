"""Looks what residents take, in a thread, and tells the pool: once they are ready, and when they are unused."""

import asyncio
from collections.abc import Callable, Sequence

from headway.observe.clock import Clock
from headway.observe.gpus import Gpus
from headway.observe.memory_use import memory_bytes, process_tree
from headway.service.events import CPU, Amounts, Measured
from headway.service.served_model import ServedModel

INTERVAL_S = 5.0
"""Between two looks at a model that is unused again and again."""


class MemoryWatch:
    """On the event loop's thread, but for the looking itself."""

    def __init__(self, gpus: Gpus, clock: Clock, tell: Callable[[ServedModel, Measured], None]) -> None:
        """`tell`: called on the event loop with what was found."""
        self.gpus = gpus
        self._clock = clock
        self._tell = tell
        self._looking: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._looked_at: dict[str, tuple[int, float]] = {}
        """When, and at which generation."""

    def look(self, model: ServedModel, generation: int) -> None:
        """Begins to; nothing where that was done a moment ago, or is under way, or where there is no process."""
        client, now = model.client, self._clock.now()
        last_generation, last_at = self._looked_at.get(model.id, (0, 0.0))
        is_due = generation != last_generation or now >= last_at + INTERVAL_S
        if client is None or not client.pids or not is_due or (model.id, generation) in self._looking:
            return
        self._looked_at[model.id] = generation, now
        self._looking[model.id, generation] = asyncio.create_task(self._look(model, generation, client.pids))

    def forget(self, model: ServedModel) -> None:
        """It is served no more."""
        self._looked_at.pop(model.id, None)

    async def close(self) -> None:
        """Waits for no look any more."""
        looking = list(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    async def _look(self, model: ServedModel, generation: int, pids: Sequence[int]) -> None:
        try:
            amounts = await asyncio.to_thread(self._amounts_of, pids)
            if model.client is not None:
                self._tell(model, Measured(model.id, generation, amounts))
        finally:
            del self._looking[model.id, generation]

    def _amounts_of(self, pids: Sequence[int]) -> Amounts:
        family = process_tree(pids)  # what a model has started computes on GPUs too
        on_gpus = self.gpus.process_bytes(family)
        return {CPU: memory_bytes(family), **{f"cuda:{gpu}": size for gpu, size in on_gpus.items()}}
