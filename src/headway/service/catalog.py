"""Catalog: the entries of a store, served. A change is written first, then acted on; changes of others are seen.

    entry new          its model is served, cold; loaded at once if it is pinned
    entry gone         its names are gone; what runs of it ends, then its processes
    names, presets,
    residency changed  the running model has them from now on
    the rest changed   another model of the same names takes its place (roster.swap)

Entries whose source is watched are served by catalog_watch; which of their versions are refused is written, for the
next start. What a load took is written back.
"""

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.catalog import CatalogEntry
from headway.core.catalog_book import Book, RefusedVersion
from headway.errors import HeadwayError, InvalidRequest
from headway.service.catalog_form import entry_out, read_entry
from headway.service.catalog_options import runs_alike, to_config
from headway.service.catalog_store import CatalogStore
from headway.service.catalog_watch import LOOK_TIMEOUT_S, WatchedModel
from headway.service.local import LocalService
from headway.service.served_model import ServedModel
from headway.service.watched_source import Found, check_watchable, find_versions, is_remote

logger = logging.getLogger(__name__)

POLL_S = 2.0
"""How often changes of others, and watched sources, are looked for."""
REMOTE_POLLS = 15
"""Every so many of these looks object stores are looked at too: each look is a request that is paid for."""
_WORTH_WRITING = 0.02
"""A measurement that differs by less from the last one is not written."""


@dataclass(slots=True)
class _Served:
    """An entry, and the model that is served for it."""

    entry: CatalogEntry
    model: ServedModel
    watched: WatchedModel | None = None


class Catalog:
    """One a server. All on the event loop's thread; the store is called in others."""

    def __init__(self, store: CatalogStore, service: LocalService, *, poll_s: float = POLL_S) -> None:
        """`service` may serve models beside the catalog's: they stay as they are."""
        self._store = store
        self._service = service
        self._poll_s = poll_s
        self._served: dict[str, _Served] = {}
        self._book = Book()
        self._num_changes = -1
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._told = ""
        service.on_measured(self._measured)

    @property
    def place(self) -> str:
        """Where its store is, for people."""
        return self._store.place

    @property
    def entries(self) -> list[CatalogEntry]:
        """As they are served."""
        return list(self._book.entries.values())

    async def start(self) -> None:
        """Serves what there is, and looks for changes from now on. Raises CatalogUnavailable, InvalidConfig."""
        await self._serve(*await asyncio.to_thread(self._store.read))
        self._polling = asyncio.create_task(self._poll())

    async def aclose(self) -> None:
        """Looks no more, and writes what was measured."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        for served in self._served.values():
            if served.watched is not None:
                served.watched.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._store.close)

    async def add(self, entry: CatalogEntry) -> CatalogEntry:
        """Raises InvalidRequest for one that is there, for names that another has, for what can not be served so."""
        check_servable(entry)
        await self._change(lambda book: book.add(entry))
        return self._book.entries[entry.key]

    async def update(self, name: str, changes: Mapping[str, Any]) -> CatalogEntry:
        """Fields of an entry (catalog_form's names) are these from now on. Raises ModelNotFound, InvalidRequest."""
        key = ""

        def change(book: Book) -> Book:
            nonlocal key
            entry = updated_entry(book.find(name), changes)
            key = entry.key
            return book.put(entry)

        await self._change(change)
        return self._book.entries[key]

    async def remove(self, name: str) -> None:
        """An entry (id@version), or all versions of an id. Raises ModelNotFound."""
        await self._change(lambda book: book.remove(name))

    async def roll_back(self, name: str) -> CatalogEntry:
        """The id means the version that it meant before. Raises ModelNotFound, InvalidRequest where there is none."""
        entry = self._book.find(name)
        served = self._served[entry.key]
        if served.watched is not None:
            await served.watched.roll_back()
        else:
            await self._change(lambda book: book.roll_back(entry.id))
        return self._book.find(entry.id)

    async def take(self, entries: Iterable[CatalogEntry]) -> tuple[int, int]:
        """Adds entries, or puts them in the place of those with their id and version: all, or none. Returns how many it
        added and replaced. Raises InvalidRequest."""
        given, num_before = list(entries), 0
        await asyncio.to_thread(_check_all_servable, given)  # of thousands it takes seconds

        def change(book: Book) -> Book:
            nonlocal num_before
            num_before = sum(entry.key in book.entries for entry in given)
            return book.put(*given)

        await self._change(change)
        return len(given) - num_before, num_before

    def entry_of(self, name: str) -> CatalogEntry:
        """By id@version, or the version that an id means. Raises ModelNotFound."""
        return self._book.find(name)

    def find_served(self, id_: str, version: str) -> CatalogEntry | None:
        """The entry of a model that is served; None: it is served beside the catalog."""
        found = self._served.get(f"{id_}@{version}") or self._served.get(id_)
        return None if found is None else found.entry

    async def look(self, *, is_remote_too: bool = True) -> None:
        """Looks, once and now, for changes of others and in watched sources; in object stores too, unless told not to.

        Raises CatalogUnavailable, InvalidConfig; what is watched was looked at then too.
        """
        try:
            async with self._lock:
                if await asyncio.to_thread(self._store.num_changes) != self._num_changes:
                    await self._serve(*await asyncio.to_thread(self._store.read))
        finally:
            watched = [served.watched for served in self._served.values() if served.watched is not None]
            due = [each for each in watched if is_remote_too or not is_remote(each.entry.source)]
            await asyncio.gather(*(each.look() for each in due))

    async def settled(self) -> None:
        """Returns when no watched source is about to be swapped, and what was measured is written."""
        for served in list(self._served.values()):
            if served.watched is not None:
                await served.watched.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _change(self, change: Callable[[Book], Book]) -> None:
        def checked(book: Book) -> Book:
            after = change(book)
            self._check_free(after)
            return after

        async with self._lock:
            await self._serve(*await asyncio.to_thread(self._store.change, checked))

    def _check_free(self, book: Book) -> None:
        """Raises InvalidRequest for a name of what is served beside the catalog."""
        ours = {served.model for served in self._served.values()}
        taken = {name for name, meaning in self._service.roster.names.items() if meaning.model not in ours}
        for entry in book.entries.values():
            names = {entry.id, entry.key}
            if entry.is_default:
                names |= {*entry.aliases, *(preset.name for preset in entry.presets)}
            if found := names & taken:
                raise InvalidRequest(
                    f"{min(found)!r} is the name of a model that this server was started with: choose another",
                    param="id",
                )

    async def _serve(self, book: Book, num_changes: int) -> None:
        """Serves this book, after a look at the sources that are watched from now on. With the lock. Raises as
        _apply()."""
        served = self._served
        new = {
            key: entry
            for key, entry in book.entries.items()
            if entry.is_watched and (key not in served or not _is_served_alike(served[key].entry, entry))
        }
        found = await asyncio.gather(*(_find(entry) for entry in new.values()))
        self._apply(book, num_changes, dict(zip(new, found, strict=True)))

    def _apply(self, book: Book, num_changes: int, found: Mapping[str, list[Found]]) -> None:
        """Serves this book. Raises InvalidConfig for a name of what is served beside it; then nothing has changed.

        `found`: what is in the sources of those that are watched from now on, by their keys.
        """
        before, roster = self._served, self._service.roster
        after: dict[str, _Served] = {}
        new: list[_Served] = []
        changes: list[tuple[ServedModel, CatalogEntry]] = []
        for key, entry in book.entries.items():
            there = before.get(key)
            if there is not None and _is_served_alike(there.entry, entry):
                if there.entry != entry:
                    changes.append((there.model, entry))
                after[key] = there
            else:
                after[key] = self._make(entry, found.get(key, ()), book.refused.get(entry.id, ()))
                new.append(after[key])
        gone = [served.model for key, served in before.items() if after.get(key) is not served]
        configs = {id(model): self._config_of(model, entry) for model, entry in changes}
        roster.rearrange(add=[served.model for served in new], remove=gone, change=configs)
        for key, entry in book.entries.items():
            after[key].entry = entry
            if (watched := after[key].watched) is not None:
                watched.entry = entry
                watched.note(book.refused.get(entry.id, ()))
        for key, served in before.items():
            if served.watched is not None and after.get(key) is not served:
                served.watched.close()
        self._served, self._book, self._num_changes = after, book, num_changes

    def _make(self, entry: CatalogEntry, there: Sequence[Found], refused: Iterable[RefusedVersion]) -> _Served:
        if not entry.is_watched:
            return _Served(entry, self._service.roster.draft(to_config(entry)))
        keep = functools.partial(self._keep_refused, entry.id)
        watched = WatchedModel(entry, self._service.roster, keep, there=there, refused=refused)
        served = _Served(entry, watched.model, watched)
        watched.on_swapped = lambda model: setattr(served, "model", model)
        return served

    async def _keep_refused(self, id_: str, refused: RefusedVersion) -> None:
        """Raises CatalogUnavailable."""
        async with self._lock:
            await self._serve(*await asyncio.to_thread(self._store.change, lambda book: book.refuse(id_, refused)))

    def _config_of(self, model: ServedModel, entry: CatalogEntry) -> Any:
        """A watched model keeps the source and version that were found."""
        config = to_config(entry)
        if entry.is_watched:
            config = replace(config, source=model.config.source, version=model.config.version)
        return config

    async def _poll(self) -> None:
        """Outlives what fails: a database that is away, a name that two have; told once, until it works again."""
        for number in itertools.count(1):
            await asyncio.sleep(self._poll_s)
            try:
                await self.look(is_remote_too=number % REMOTE_POLLS == 0)
                self._told = ""
            except HeadwayError as error:
                self._tell(error.message)
            except Exception as error:  # whatever it was, the next round may work
                self._tell(f"{type(error).__name__}: {error}")

    def _tell(self, message: str) -> None:
        if message != self._told:
            self._told = message
            logger.error("the catalog is served as it was before: %s", message)

    def _measured(self, model: ServedModel, num_bytes: int, load_s: float) -> None:
        served = next((served for served in self._served.values() if served.model is model), None)
        if served is None or not _is_news(served.entry, num_bytes, load_s):
            return
        key = served.entry.key
        task = asyncio.create_task(self._write_measured(key, num_bytes, load_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_measured(self, key: str, num_bytes: int, load_s: float) -> None:
        def change(book: Book) -> Book:
            return book.measured(key, num_bytes, load_s)

        try:
            async with self._lock:
                await asyncio.to_thread(self._store.change, change, is_measurement=True)
                self._book = change(self._book)
                if key in self._served:
                    self._served[key].entry = self._book.entries[key]
        except HeadwayError as error:
            self._tell(error.message)


def updated_entry(before: CatalogEntry, changes: Mapping[str, Any]) -> CatalogEntry:
    """An entry with other fields (catalog_form's names; None: the default). Raises InvalidRequest."""
    entry = read_entry({**entry_out(before), **changes})
    if entry.key != before.key:
        raise InvalidRequest("id and version of an entry stay: add another, and remove this one", param="id")
    check_servable(entry)
    return entry


def check_servable(entry: CatalogEntry) -> None:
    """Raises InvalidRequest."""
    to_config(entry)
    if entry.is_watched:
        check_watchable(entry.source)
        if entry.version:
            raise InvalidRequest(
                f"{entry.key} is watched, and so its versions are what is found in its source: leave version out",
                param="version",
            )


async def _find(entry: CatalogEntry) -> list[Found]:
    """What is in a watched source; empty where nobody can tell in time: a later look will."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(find_versions, entry.source), LOOK_TIMEOUT_S)
    except (HeadwayError, TimeoutError) as error:
        logger.error("%s: its source can not be looked at: %s", entry.id, error or "it takes too long")
        return []


def _check_all_servable(entries: Iterable[CatalogEntry]) -> None:
    for entry in entries:
        check_servable(entry)


def _is_served_alike(one: CatalogEntry, other: CatalogEntry) -> bool:
    if one == other:  # nearly all of them, at a change
        return True
    return one.is_watched == other.is_watched and runs_alike(to_config(one), to_config(other))


def _is_news(entry: CatalogEntry, num_bytes: int, load_s: float) -> bool:
    """Whether it differs enough from what the entry has. How long a load took is told once a load."""
    if entry.measured_bytes is None or entry.measured_load_s is None:
        return True
    return abs(num_bytes - entry.measured_bytes) > _WORTH_WRITING * max(num_bytes, 1) or (
        abs(load_s - entry.measured_load_s) > 0.1 * max(load_s, 0.1)
    )
