"""What `headway models` changes: a catalog's database, or a running server by its URL; the same calls for both."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import httpx2

from headway.cli.remote import base_url, server_error
from headway.core.catalog import CatalogEntry
from headway.errors import InternalError, InvalidConfig, InvalidRequest
from headway.server.hosts import is_loopback
from headway.service.catalog import check_servable, updated_entry
from headway.service.catalog_form import entry_out, list_entries, read_entry
from headway.service.catalog_store import CatalogStore

DEFAULT_URL = "http://127.0.0.1:8000"
_TIMEOUT_S = 30.0


class CatalogAdmin(Protocol):
    """Raises HeadwayError."""

    @property
    def place(self) -> str:
        """What it changes, for people."""
        ...

    def entries(self) -> list[CatalogEntry]:
        """All of them."""
        ...

    def add(self, entry: CatalogEntry) -> None:
        """One more."""
        ...

    def update(self, name: str, changes: Mapping[str, Any]) -> None:
        """Fields of an entry."""
        ...

    def remove(self, name: str) -> None:
        """An entry, or all versions of an id."""
        ...

    def take(self, entries: Iterable[CatalogEntry]) -> tuple[int, int]:
        """Adds or replaces; how many of each."""
        ...

    def roll_back(self, name: str) -> CatalogEntry:
        """The id means what it meant before; returns that."""
        ...


class StoreAdmin:
    """A database; servers that have it see the change within seconds."""

    def __init__(self, store: CatalogStore) -> None:
        self._store = store

    @property
    def place(self) -> str:
        """The database."""
        return self._store.place

    def entries(self) -> list[CatalogEntry]:
        """See CatalogAdmin."""
        return list(self._store.read()[0].entries.values())

    def add(self, entry: CatalogEntry) -> None:
        """See CatalogAdmin."""
        check_servable(entry)
        self._store.change(lambda book: book.add(entry))

    def update(self, name: str, changes: Mapping[str, Any]) -> None:
        """See CatalogAdmin."""
        self._store.change(lambda book: book.put(updated_entry(book.find(name), changes)))

    def remove(self, name: str) -> None:
        """See CatalogAdmin."""
        self._store.change(lambda book: book.remove(name))

    def take(self, entries: Iterable[CatalogEntry]) -> tuple[int, int]:
        """See CatalogAdmin."""
        given, before = list(entries), self._store.read()[0]
        for entry in given:
            check_servable(entry)
        self._store.change(lambda book: book.put(*given))
        num_replaced = sum(entry.key in before.entries for entry in given)
        return len(given) - num_replaced, num_replaced

    def roll_back(self, name: str) -> CatalogEntry:
        """See CatalogAdmin. Raises InvalidRequest for a watched one, whose versions its server knows."""
        entry = self._store.read()[0].find(name)
        if entry.is_watched:
            raise InvalidRequest(f"{entry.id} is watched, and its server knows what it had before: give --url")
        return self._store.change(lambda book: book.roll_back(name))[0].find(entry.id)


class ServerAdmin:
    """A running server."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """Raises InvalidConfig for what is no address."""
        self.place = base_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy from the environment must not be asked for this machine's own addresses.
        self._trust_env = not is_loopback(httpx2.URL(self.place).host)

    def entries(self) -> list[CatalogEntry]:
        """See CatalogAdmin."""
        return list_entries(self._ask("GET", "/admin/catalog"), place=self.place)

    def cards(self) -> list[dict[str, Any]]:
        """The served models, with their states."""
        return list(self._ask("GET", "/admin/models")["models"])

    def add(self, entry: CatalogEntry) -> None:
        """See CatalogAdmin."""
        self._ask("POST", "/admin/models", entry_out(entry))

    def update(self, name: str, changes: Mapping[str, Any]) -> None:
        """See CatalogAdmin."""
        self._ask("PATCH", _path(name), dict(changes))

    def remove(self, name: str) -> None:
        """See CatalogAdmin."""
        self._ask("DELETE", _path(name))

    def take(self, entries: Iterable[CatalogEntry]) -> tuple[int, int]:
        """See CatalogAdmin."""
        done = self._ask("POST", "/admin/catalog", {"models": [entry_out(entry) for entry in entries]})
        return int(done["added"]), int(done["replaced"])

    def roll_back(self, name: str) -> CatalogEntry:
        """See CatalogAdmin."""
        return read_entry(self._ask("POST", f"{_path(name)}/rollback"))

    def load(self, name: str) -> dict[str, Any]:
        """Returns once the model is ready: its card."""
        return dict(self._ask("POST", f"{_path(name)}/load", timeout_s=None))

    def unload(self, name: str) -> dict[str, Any]:
        """Returns once its processes are gone: its card."""
        return dict(self._ask("POST", f"{_path(name)}/unload", timeout_s=None))

    def _ask(self, method: str, path: str, body: Any = None, timeout_s: float | None = _TIMEOUT_S) -> Any:
        try:
            with httpx2.Client(headers=self._headers, timeout=timeout_s, trust_env=self._trust_env) as client:
                response = client.request(method, self.place + path, json=body)
        except httpx2.TransportError as error:
            words = str(error) or type(error).__name__
            raise InvalidConfig(
                f"nobody answers at {self.place} ({words}): is `headway serve` running there?", param="url"
            ) from None
        try:
            content = response.json() if response.content else None
        except ValueError:
            raise InternalError(f"{self.place}{path} is no answer of Headway: {response.text[:200]}") from None
        if not response.is_success:
            raise server_error(response.status_code, content if isinstance(content, dict) else {})
        return content


def _path(name: str) -> str:
    """Of a model, whatever is in its name: what is behind a ? or # would be lost, and another model be meant."""
    if {"", ".", ".."} & set(name.split("/")):
        raise InvalidRequest(f"name is {name[:200]!r}, which no model has: `headway models list` shows those there are")
    return f"/admin/models/{quote(name, safe='/@:+')}"
