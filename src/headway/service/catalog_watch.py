"""WatchedModel: an entry whose source is looked at: what is new there is loaded beside what is served, then swapped.

In order, for the newest version that was not refused:
    1. it is the one that is served          nothing
    2. it was another one a look ago         wait: somebody may still be writing it
    3. else                                  load it beside; then the names lead to it, and the old one ends with its
                                             leases
    4. it can not be loaded                  the old one stays, with the reason (update_error); it is refused until its
                                             files change; where there was no room it is tried again, each time later
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headway.config import ModelConfig
from headway.core.catalog import CatalogEntry
from headway.errors import CapacityError, HeadwayError, InternalError, InvalidRequest
from headway.service.catalog_options import to_config
from headway.service.roster import Roster
from headway.service.served_model import ServedModel
from headway.service.watched_source import Found, find_versions

logger = logging.getLogger(__name__)

_MAX_SKIPPED_LOOKS = 32
"""Between two tries of what there was no room for."""


class WatchedModel:
    """One entry. On the event loop's thread."""

    def __init__(self, entry: CatalogEntry, roster: Roster) -> None:
        """Reads what is there now, which is served from the beginning, unseen; it has no names yet."""
        self.entry = entry
        self.on_swapped: Callable[[ServedModel], None] = lambda model: None
        self._roster = roster
        self._refused: set[str] = set()
        self._seen: Found | None = None
        self._num_failures = 0
        self._num_skipped = 0
        self._update: asyncio.Task[None] | None = None
        self._is_closed = False
        versions = find_versions(entry.source)
        self._served = versions[-1] if versions else Found("", Path(entry.source).expanduser(), "")
        self.model = roster.draft(self._config_of(self._served))

    async def look(self) -> None:
        """Looks once, and starts an update where there is something new; wait() returns when that has ended."""
        if self._update is not None and not self._update.done():
            return
        found = self._newest(await asyncio.to_thread(find_versions, self.entry.source))
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

        Raises InvalidRequest where there is none, and why the other can not be loaded: then this one stays.
        """
        await self.wait()
        self._refused.add(self._served.stamp)
        found = self._newest(await asyncio.to_thread(find_versions, self.entry.source))
        if found is None:
            self._refused.discard(self._served.stamp)
            raise InvalidRequest(
                f"{self.entry.source} has no version but {self._served.version}: there is nothing to go back to",
                param="id",
            )
        self._update = asyncio.create_task(self._replace(found))
        await self.wait()
        if self.model.update_error is not None:
            self._refused.discard(self._served.stamp)
            raise self.model.update_error

    def close(self) -> None:
        """It is served no more: an update that is under way is dropped."""
        self._is_closed = True
        if self._update is not None:
            self._update.cancel()

    def _newest(self, versions: list[Found]) -> Found | None:
        return next((each for each in reversed(versions) if each.stamp not in self._refused), None)

    def _config_of(self, found: Found) -> ModelConfig:
        return replace(to_config(self.entry), source=str(found.path), version=found.version)

    async def _replace(self, found: Found) -> None:
        """3, 4. Raises nothing but its cancellation."""
        new = self._roster.prepare(self._config_of(found))
        is_served = False
        try:
            await self._roster.load(new)
            new.config = self._config_of(found)  # its entry may have been changed meanwhile
            self._roster.swap(self.model, new)
            is_served = True
        except HeadwayError as error:
            self._refuse(found, error)
        except Exception as error:  # a fault of ours must not end what is served
            logger.exception("%s: version %s could not be loaded", self.entry.id, found.version)
            self._refuse(found, InternalError(f"{type(error).__name__}: {error}"))
        finally:
            if not is_served:
                self._roster.discard(new)
        if is_served:
            logger.info("%s: version %s takes the place of %s", self.entry.id, found.version, self._served.version)
            self.model, self._served, self._num_failures = new, found, 0
            self.on_swapped(new)

    def _refuse(self, found: Found, error: HeadwayError) -> None:
        logger.error(
            "%s: version %s is not served, %s stays: %s",
            self.entry.id,
            found.version,
            self._served.version or "what was before",
            error.message,
        )
        self.model.update_error = error
        if isinstance(error, CapacityError):
            self._num_failures += 1
        else:
            self._refused.add(found.stamp)
