"""DatabaseCatalog: a Book in a database. A change is one transaction: read, change, write what became different."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

import headway
from headway.config import InferConfig, Preset
from headway.core.catalog import CatalogEntry
from headway.core.catalog_book import Book, RefusedVersion
from headway.database import schema
from headway.database.connection import open_engine, reading, shown
from headway.database.migrate import migrate
from headway.errors import CatalogUnavailable

_KEYS = ("id", "version")


class DatabaseCatalog:
    """A store of the catalog that several processes share. Every method blocks; threads may call it at a time."""

    def __init__(self, url: str) -> None:
        """Brings the database to this program's schema. Raises InvalidConfig."""
        self._engine = open_engine(url)
        migrate(self._engine)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return shown(self._engine.url)

    def read(self) -> tuple[Book, int]:
        """The catalog, and the number of changes that have led to it. Raises CatalogUnavailable."""
        with self._translated(), reading(self._engine).begin() as connection:
            return _read_book(connection), _num_changes(connection)

    def num_changes(self) -> int:
        """Grows with each change, whoever makes it; what is measured is none. Raises CatalogUnavailable."""
        with self._translated(), reading(self._engine).begin() as connection:
            return _num_changes(connection)

    def change(self, change: Callable[[Book], Book], *, is_measurement: bool = False) -> tuple[Book, int]:
        """Applies `change`, and returns as read(). Raises what it raises, CatalogUnavailable: then nothing has changed.

        `is_measurement`: servers need not look at it.
        """
        with self._translated(), self._engine.begin() as connection:
            before = _read_book(connection, is_locked=True)
            after = change(before)
            if after != before:
                _write(connection, before, after)
                if not is_measurement:
                    _count_change(connection)
            return after, _num_changes(connection)

    def close(self) -> None:
        """Closes its connections."""
        self._engine.dispose()

    def _translated(self) -> "_Translated":
        return _Translated(self.place)


class _Translated:
    """A database's own errors as CatalogUnavailable."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, DBAPIError):
            raise CatalogUnavailable(
                f"the catalog at {self._place} failed: {' '.join(str(error.orig).split())}"
            ) from error


def _read_book(connection: sa.Connection, *, is_locked: bool = False) -> Book:
    """`is_locked`: no other change is made before this transaction ends."""
    if is_locked:
        connection.execute(sa.select(schema.state).with_for_update())
    rows = connection.execute(sa.select(schema.entries).order_by(*(schema.entries.c[key] for key in _KEYS)))
    entries = [_to_entry(row) for row in rows.mappings()]
    defaults: dict[str, tuple[str, ...]] = {}
    table = schema.default_versions
    for id_, version in connection.execute(sa.select(table.c.id, table.c.version).order_by(table.c.number)):
        defaults[id_] = (*defaults.get(id_, ()), version)
    return Book.of(entries, defaults, _read_refused(connection))


def _read_refused(connection: sa.Connection) -> dict[str, tuple[RefusedVersion, ...]]:
    table = schema.refused_versions
    columns = table.c.id, table.c.stamp, table.c.version, table.c.error
    refused: dict[str, tuple[RefusedVersion, ...]] = {}
    for id_, *values in connection.execute(sa.select(*columns).order_by(table.c.number)):
        refused[id_] = (*refused.get(id_, ()), RefusedVersion(*values))
    return refused


def _num_changes(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(schema.state.c.num_changes)).scalar_one())


def _count_change(connection: sa.Connection) -> None:
    column = schema.state.c.num_changes
    connection.execute(sa.update(schema.state).values(num_changes=column + 1, written_by=headway.__version__))


def _write(connection: sa.Connection, before: Book, after: Book) -> None:
    gone = [before.entries[key] for key in before.entries.keys() - after.entries.keys()]
    for entry in gone:
        connection.execute(sa.delete(schema.entries).where(*_is(entry)))
    for key, entry in after.entries.items():
        if key not in before.entries:
            connection.execute(sa.insert(schema.entries).values(_to_row(entry)))
        elif entry != before.entries[key]:
            connection.execute(sa.update(schema.entries).where(*_is(entry)).values(_to_row(entry)))
    table = schema.default_versions
    for id_ in before.defaults.keys() | after.defaults.keys():
        history = after.defaults.get(id_, ())
        if history != before.defaults.get(id_, ()):
            connection.execute(sa.delete(table).where(table.c.id == id_))
            for version in history:
                connection.execute(sa.insert(table).values(id=id_, version=version))
    _write_refused(connection, before, after)


def _write_refused(connection: sa.Connection, before: Book, after: Book) -> None:
    table = schema.refused_versions
    for id_ in before.refused.keys() | after.refused.keys():
        kept = after.refused.get(id_, ())
        if kept == before.refused.get(id_, ()):
            continue
        connection.execute(sa.delete(table).where(table.c.id == id_))
        entry_version = next((entry.version for entry in after.versions(id_) if entry.is_watched), "")
        for refused in kept:
            row = {"id": id_, "entry_version": entry_version, **asdict(refused)}
            connection.execute(sa.insert(table).values(row))


def _is(entry: CatalogEntry) -> tuple[sa.ColumnElement[bool], ...]:
    return tuple(schema.entries.c[key] == getattr(entry, key) for key in _KEYS)


def _to_row(entry: CatalogEntry) -> dict[str, Any]:
    row = {each.name: getattr(entry, each.name) for each in fields(entry) if each.name != "is_default"}
    presets = [asdict(preset) for preset in entry.presets]
    return row | {
        "aliases": list(entry.aliases),
        "presets": presets,
        "infer": asdict(entry.infer),
        "options": dict(entry.options),
    }


def _to_entry(row: Mapping[Any, Any]) -> CatalogEntry:
    values = dict(row)
    presets = tuple(Preset(**preset) for preset in values.pop("presets"))
    infer = InferConfig(**values.pop("infer"))
    aliases = tuple(values.pop("aliases"))
    return CatalogEntry(**values, aliases=aliases, presets=presets, infer=infer)
