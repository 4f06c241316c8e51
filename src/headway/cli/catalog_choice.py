"""Which catalog a command means: a database, a file of models, or a server's own memory."""

from pathlib import Path

from headway.config import CatalogConfig
from headway.core.catalog_book import Book
from headway.errors import InvalidConfig, InvalidRequest
from headway.service.catalog_form import MAX_BYTES, read_entries
from headway.service.catalog_store import CatalogStore, MemoryStore


def open_store(config: CatalogConfig, *, has_model: bool) -> CatalogStore:
    """What a server keeps its catalog in. Blocks.

    Args:
        has_model: a model is named: then there is a database only where that is asked for.

    Raises InvalidConfig: a file that can not be read or names something wrong, a database that can not be used.
    """
    if config.models_file is not None:
        return _open_file(config.models_file)
    if has_model and not config.is_served and config.database_url is None:
        return MemoryStore()
    return open_database(config.database_url)


def open_database(url: str | None) -> CatalogStore:
    """The database at `url`; None: the user's own. Raises InvalidConfig."""
    from headway.database.catalog import DatabaseCatalog
    from headway.database.connection import default_url

    return DatabaseCatalog(url or default_url())


def read_file(path: Path) -> bytes:
    """A file of entries. Raises InvalidConfig."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidConfig(f"the models file {path} cannot be read: {error.strerror}", param="models_file") from None
    if len(text) > MAX_BYTES:
        raise InvalidConfig(f"the models file {path} is over {MAX_BYTES} bytes: is it the right one?")
    return text


def _open_file(path: Path) -> CatalogStore:
    book = Book()
    try:
        for entry in read_entries(read_file(path), place=str(path)):
            book = book.add(entry)
    except InvalidRequest as error:
        raise InvalidConfig(f"{path}: {error.message}", param="models_file") from None
    return MemoryStore(book, str(path))
