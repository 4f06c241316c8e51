"""WatchedModel: an entry whose source is looked at: what is new there is loaded beside what is served, then swapped.

In order, for the newest version that was not refused:
    1. it is the one that is served          nothing
    2. it was another one a look ago         wait: somebody may still be writing it
    3. else                                  load it beside; then the names lead to it, and the old one ends with its
                                             leases
    4. it can not be loaded                  the old one stays, with the reason (update_error); it is refused until its
                                             files change; where there was no room it is tried again, each time later

What is refused is kept with the catalog, for the next start and for others who serve it: nobody takes what failed
elsewhere, and all leave what somebody rolled back from.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from headway.config import ModelConfig
from headway.core.catalog import CatalogEntry
from headway.core.catalog_book import RefusedVersion
from headway.errors import CapacityError, HeadwayError, InternalError, InvalidRequest
from headway.service.catalog_options import to_config
from headway.service.roster import Roster
from headway.service.served_model import ServedModel
from headway.service.watched_source import Found, find_versions

logger = logging.getLogger(__name__)

LOOK_TIMEOUT_S = 10.0
"""How long a look is waited for; one that takes longer (a store that is away, a hung disk) counts for a later one."""
_MAX_SKIPPED_LOOKS = 32
"""Between two tries of what there was no room for."""
_MAX_ERROR_LENGTH = 2000

Keep = Callable[[RefusedVersion], Awaitable[None]]
"""Writes down that a version is refused. Raises CatalogUnavailable."""


class WatchedModel:
    """One entry. On the event loop's thread."""

    def __init__(
        self,
        entry: CatalogEntry,
        roster: Roster,
        keep: Keep,
        *,
        there: Sequence[Found],
        refused: Iterable[RefusedVersion],
    ) -> None:
        """Serves the newest there is from the beginning, unseen; it has no names yet. Blocks on nothing.

        Args:
            there: what find_versions() found a moment ago; what is refused of it is served where nothing else is there.
            refused: as the catalog has it.
        """
        self.entry = entry
        self.on_swapped: Callable[[ServedModel], None] = lambda model: None
        self._roster = roster
        self._keep = keep
        self._refused = {each.stamp: each for each in refused}
        self._seen: Found | None = None
        self._num_failures = 0
        self._num_skipped = 0
        self._looking: asyncio.Task[list[Found]] | None = None
        self._look_error: HeadwayError | None = None
        self._update: asyncio.Task[None] | None = None
        self._is_closed = False
        self._served = Found("", entry.source, "")
        self._served = self._newest(there) or (there[-1] if there else self._served)
        self.model = roster.draft(self._config_of(self._served))

    async def look(self) -> None:
        """Looks once, and starts an update where there is something new; wait() returns when that has ended."""
        if self._is_closed or (self._update is not None and not self._update.done()):
            return
        versions = await self._find()
        if versions is None:
            return
        found = self._newest(versions)
        seen, self._seen = self._seen, found
        if found is None or found == self._served:  # 1
            return
        if found != seen:  # 2
            return
        if self._num_skipped < min(2**self._num_failures - 1, _MAX_SKIPPED_LOOKS):
            self._num_skipped += 1
            return
        self._num_skipped = 0
        self._update = asyncio.create_task(self._replace(found))

    async def wait(self) -> None:
        """Returns when no update is under way."""
        if self._update is not None:
            await asyncio.wait({self._update})

    async def roll_back(self) -> None:
        """Serves the version before, and this one no more until its files change.

        Raises InvalidRequest where there is none, and why the other can not be loaded, or it can not be written down:
        then this one stays.
        """
        await self.wait()
        left = RefusedVersion(self._served.stamp, self._served.version, "")
        before = self._refused.get(left.stamp)
        versions = await asyncio.to_thread(find_versions, self.entry.source)
        self._refused[left.stamp] = left
        found = self._newest(versions)
        if found is not None:
            self._update = asyncio.create_task(self._replace(found, left))
            await self.wait()
            if self.model.update_error is None:
                return
        del self._refused[left.stamp]
        if before is not None:
            self._refused[left.stamp] = before
        if found is not None and self.model.update_error is not None:
            raise self.model.update_error
        raise InvalidRequest(
            f"{self.entry.source} has no version but {left.version}: there is nothing to go back to", param="id"
        )

    def note(self, refused: Iterable[RefusedVersion]) -> None:
        """What the catalog has by now, from others who serve it too."""
        self._refused |= {each.stamp: each for each in refused}

    def close(self) -> None:
        """It is served no more: an update that is under way is dropped."""
        self._is_closed = True
        for task in (self._update, self._looking):
            if task is not None:
                task.cancel()

    async def _find(self) -> list[Found] | None:
        """What is there; None: nobody can tell now. Why not is told as update_error, until a look tells more."""
        if self._looking is None:
            self._looking = asyncio.create_task(asyncio.to_thread(find_versions, self.entry.source))
        done, _ = await asyncio.wait({self._looking}, timeout=LOOK_TIMEOUT_S)
        if not done:
            return None
        looked, self._looking = self._looking, None
        if looked.cancelled():  # close()
            return None
        try:
            versions = looked.result()
        except HeadwayError as error:
            if self._look_error is None:
                logger.error("%s: its source can not be looked at: %s", self.entry.id, error.message)
            self._look_error = self.model.update_error = error
            return None
        if self._look_error is not None and self.model.update_error is self._look_error:
            self.model.update_error = None
        self._look_error = None
        return versions

    def _newest(self, versions: Sequence[Found]) -> Found | None:
        return next((each for each in reversed(versions) if self._is_taken(each)), None)

    def _is_taken(self, found: Found) -> bool:
        """Whether it may be served: also what is served here, and failed elsewhere."""
        refused = self._refused.get(found.stamp)
        return refused is None or (bool(refused.error) and found.stamp == self._served.stamp)

    def _config_of(self, found: Found) -> ModelConfig:
        return replace(to_config(self.entry), source=found.source, version=found.version)

    async def _replace(self, found: Found, left: RefusedVersion | None = None) -> None:
        """3, 4; `left`: what is written down before it is left. Raises nothing but its cancellation."""
        new = self._roster.prepare(self._config_of(found))
        is_served = False
        try:
            await self._roster.load(new)
            if left is not None:
                await self._keep(left)
            new.config = self._config_of(found)  # its entry may have been changed meanwhile
            self._roster.swap(self.model, new)
            is_served = True
        except HeadwayError as error:
            await self._refuse(found, error)
        except Exception as error:  # a fault of ours must not end what is served
            logger.exception("%s: version %s could not be loaded", self.entry.id, found.version)
            await self._refuse(found, InternalError(f"{type(error).__name__}: {error}"))
        finally:
            if not is_served:
                self._roster.discard(new)
        if is_served:
            logger.info("%s: version %s takes the place of %s", self.entry.id, found.version, self._served.version)
            self.model, self._served, self._num_failures = new, found, 0
            self.on_swapped(new)

    async def _refuse(self, found: Found, error: HeadwayError) -> None:
        logger.error(
            "%s: version %s is not served, %s stays: %s",
            self.entry.id,
            found.version,
            self._served.version or "what was before",
            error.message,
        )
        self.model.update_error = error
        if isinstance(error, CapacityError) or self._is_closed:
            self._num_failures += 1
            return
        refused = RefusedVersion(found.stamp, found.version, _storable(error.message) or type(error).__name__)
        self._refused[found.stamp] = refused
        try:
            await self._keep(refused)
        except HeadwayError as fault:
            logger.error("%s: that %s failed could not be kept: %s", self.entry.id, found.version, fault.message)


def _storable(words: str) -> str:
    """As much of it as is kept, without what a database can not hold."""
    return words.replace("\0", "").encode("utf-8", "replace").decode()[:_MAX_ERROR_LENGTH]
