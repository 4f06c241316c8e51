"""The catalog in SQLite and in a real PostgreSQL: the same book out as in, whoever writes, whatever fails."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from headway.config import InferConfig, Preset
from headway.core.catalog import CatalogEntry
from headway.core.catalog_book import Book, RefusedVersion
from headway.database.catalog import DatabaseCatalog
from headway.database.connection import open_engine, shown
from headway.errors import CatalogUnavailable, InvalidConfig, InvalidRequest

FULL = CatalogEntry(
    id="org/name",
    version="1.0",
    name="Größe 👋",
    type="image-classification",
    framework="onnx",
    description="a\nb",
    source="https://example.com/x.zip",
    sha256="0" * 64,
    device="cuda:1",
    expected_bytes=2**40,
    expected_load_s=1.5,
    measured_bytes=2**41,
    measured_load_s=0.25,
    aliases=("x", "y"),
    presets=(Preset(name="deep", sampling={"temperature": 0.5}, template_kwargs={"enable_thinking": True}),),
    is_pinned=True,
    idle_timeout_s=30.0,
    is_watched=True,
    is_default=True,
    interpreter="vllm",
    infer=InferConfig(max_batch_size=8, batch_delay_s=0.01, instances=2, concurrency=4, timeout_s=3.0, max_retries=1),
    options={"threads": 2, "labels": ["ä", None], "deep": {"x": True}},
)


def test_an_entry_comes_back_as_it_was_in_every_field(url: str) -> None:
    assert all(getattr(FULL, each.name) != each.default for each in fields(FULL) if each.name != "is_default")
    DatabaseCatalog(url).change(lambda book: book.add(FULL))
    book, num_changes = DatabaseCatalog(url).read()
    assert list(book.entries.values()) == [FULL]
    assert num_changes == 1


def test_what_is_read_is_what_was_written_through_all_kinds_of_changes(url: str) -> None:
    store, expected = DatabaseCatalog(url), Book()
    small = CatalogEntry(id="small")
    changes = [
        lambda book: book.add(small),
        lambda book: book.add(FULL),
        lambda book: book.add(replace(FULL, version="2", is_default=False)),
        lambda book: book.set_default("org/name", "2"),
        lambda book: book.put(replace(small, description="changed", measured_bytes=3)),
        lambda book: book.roll_back("org/name"),
        lambda book: book.measured("small", 11, 0.5),
        lambda book: book.add(CatalogEntry(id="watched", source="/x", is_watched=True)),
        lambda book: book.refuse("watched", RefusedVersion("b" * 12, "2", "broken: ü")),
        lambda book: book.refuse("watched", RefusedVersion("a" * 12, "3", "")),
        lambda book: book.refuse("watched", RefusedVersion("b" * 12, "2", "")),
        lambda book: book.remove("watched"),
        lambda book: book.remove("org/name@1.0"),
        lambda book: book.remove("org/name"),
    ]
    for number, change in enumerate(changes, 1):
        expected = change(expected)
        assert store.change(change) == (expected, number)
        assert DatabaseCatalog(url).read() == (expected, number)


def test_a_change_that_fails_changes_nothing(url: str) -> None:
    store = DatabaseCatalog(url)
    store.change(lambda book: book.add(FULL))
    before = store.read()

    def fail_late(book: Book) -> Book:
        return book.remove("org/name").add(CatalogEntry(id="a")).add(CatalogEntry(id="a"))

    with pytest.raises(InvalidRequest):
        store.change(fail_late)
    assert store.read() == before


def test_what_is_measured_is_no_change_that_servers_look_at(url: str) -> None:
    store = DatabaseCatalog(url)
    store.change(lambda book: book.add(FULL))
    book, num_changes = store.change(lambda book: book.measured(FULL.key, 5, 6.0), is_measurement=True)
    assert (book.find(FULL.key).measured_bytes, num_changes) == (5, 1)
    assert store.num_changes() == 1


def test_writers_at_a_time_lose_nothing(url: str) -> None:
    stores = [DatabaseCatalog(url) for _ in range(4)]
    barrier = threading.Barrier(len(stores))

    def write(number: int) -> None:
        barrier.wait()
        for each in range(5):
            stores[number].change(lambda book: book.add(CatalogEntry(id=f"m{number}-{each}")))  # noqa: B023

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(write, range(len(stores))))
    book, num_changes = stores[0].read()
    assert len(book.entries) == num_changes == 20


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    store = DatabaseCatalog(url)
    with open_engine(url).begin() as connection:
        connection.execute(sa.text("UPDATE catalog_state SET num_changes = 99"))
        assert store.num_changes() == 0
    assert store.num_changes() == 99


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "no URL"),
        ("nonsense", "no URL"),
        ("mysql://u:secret@h/x", "mysql"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:////proc/nothing/catalog.db", "can not be"),
        ("postgresql://u:secret@127.0.0.1:1/x", "can not be reached"),
    ],
)
def test_a_wrong_place_is_told_without_its_password(url: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as error:
        DatabaseCatalog(url)
    assert error.value.param == "database_url"
    assert "secret" not in error.value.message


def test_a_database_that_fails_later_is_told_as_what_it_is(tmp_path: Path) -> None:
    store = DatabaseCatalog(f"sqlite:///{tmp_path}/catalog.db")
    (tmp_path / "catalog.db").write_bytes(b"not a database at all, but long enough to be looked at" * 20)
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"catalog.db{suffix}").unlink(missing_ok=True)
    with pytest.raises(CatalogUnavailable, match=r"catalog\.db"):
        store.read()


def test_no_place_tells_a_password() -> None:
    url = make_url("postgresql://u:secret1@db.example/n?password=secret2&sslpassword=secret3&application_name=x")
    assert "secret" not in shown(url)
    assert "application_name=x" in shown(url)
    assert "db.example" in shown(url)


def test_a_server_that_goes_away_is_told_and_used_again_when_it_is_back(request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("postgres")
    name = f"catalog_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        store = DatabaseCatalog(server.replace("/postgres?", f"/{name}?"))

        def cut(book: Book) -> Book:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            return book.add(CatalogEntry(id="m"))

        with pytest.raises(CatalogUnavailable, match="failed"):
            store.change(cut)
    assert store.read()[0].entries == {}
    assert store.change(lambda book: book.add(CatalogEntry(id="m")))[1] == 1


def test_a_server_that_hangs_is_not_waited_for_without_end(request: pytest.FixtureRequest) -> None:
    engine = open_engine(request.getfixturevalue("postgres") + "&options=-c%20statement_timeout%3D50")
    with engine.connect() as connection, pytest.raises(sa.exc.OperationalError, match="statement timeout"):
        connection.execute(sa.text("SELECT pg_sleep(60)"))
    with open_engine(request.getfixturevalue("postgres")).connect() as connection:
        assert connection.execute(sa.text("SHOW statement_timeout")).scalar_one() == "30s"
