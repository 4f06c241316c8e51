"""CatalogStore: where a Book is kept. MemoryStore keeps it as long as the process; database/ has one that stays."""

import threading
from collections.abc import Callable
from typing import Protocol

from headway.core.catalog_book import Book


class CatalogStore(Protocol):
    """Every method may block, and be called from any thread."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        ...

    def read(self) -> tuple[Book, int]:
        """The catalog, and the number of changes that have led to it. Raises CatalogUnavailable."""
        ...

    def num_changes(self) -> int:
        """Grows with each change, whoever makes it; what is measured is none. Raises CatalogUnavailable."""
        ...

    def change(self, change: Callable[[Book], Book], *, is_measurement: bool = False) -> tuple[Book, int]:
        """Applies `change`, and returns as read(). Raises what it raises, CatalogUnavailable; then all is as before."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class MemoryStore:
    """A catalog of this process alone."""

    def __init__(self, book: Book | None = None, place: str = "this server's memory") -> None:
        self._book = book or Book()
        self._place = place
        self._num_changes = 0
        self._lock = threading.Lock()

    @property
    def place(self) -> str:
        """Where it came from."""
        return self._place

    def read(self) -> tuple[Book, int]:
        """See CatalogStore."""
        with self._lock:
            return self._book, self._num_changes

    def num_changes(self) -> int:
        """See CatalogStore."""
        return self._num_changes

    def change(self, change: Callable[[Book], Book], *, is_measurement: bool = False) -> tuple[Book, int]:
        """See CatalogStore."""
        with self._lock:
            after = change(self._book)
            if after != self._book:
                self._book = after
                self._num_changes += not is_measurement
            return self._book, self._num_changes

    def close(self) -> None:
        """Nothing is left to do."""
