"""Schemas: made once, by one of those who begin at a time; a newer one is refused; SQLite is copied before a change."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from tests.database.schemas import NEWEST, revision_of, write_first_schema

import headway
from headway.core.catalog import CatalogEntry
from headway.core.catalog_book import RefusedVersion
from headway.database import migrate as migrate_module
from headway.database import schema
from headway.database.catalog import DatabaseCatalog
from headway.database.connection import open_engine
from headway.database.migrate import migrate
from headway.errors import InvalidConfig


def set_revision(url: str, revision: str) -> None:
    with open_engine(url).begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :it"), {"it": revision})


def test_migrations_lead_to_the_tables_that_the_program_knows(url: str) -> None:
    engine = open_engine(url)
    migrate(engine)
    migrate(engine)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []


def test_a_newer_catalog_is_refused_with_both_versions(url: str) -> None:
    store = DatabaseCatalog(url)
    store.change(lambda book: book.add(CatalogEntry(id="m")))
    with open_engine(url).begin() as connection:
        connection.execute(sa.text("UPDATE catalog_state SET written_by = '9.8.7'"))
    set_revision(url, "1999")
    with pytest.raises(InvalidConfig) as error:
        DatabaseCatalog(url)
    for word in ("1999", "9.8.7", headway.__version__, NEWEST):
        assert word in error.value.message
    assert revision_of(url) == "1999"


def test_processes_that_begin_at_a_time_migrate_once(url: str) -> None:
    code = "import sys; from headway.database.catalog import DatabaseCatalog; DatabaseCatalog(sys.argv[1])"
    children = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code, url], stderr=subprocess.PIPE) for _ in range(4)
    ]
    faults = [child.communicate(timeout=120)[1] for child in children]
    assert faults == [b""] * 4
    assert DatabaseCatalog(url).num_changes() == 0


def test_a_catalog_of_the_first_schema_keeps_all_it_has(url: str, tmp_path: Path) -> None:
    write_first_schema(url)
    store = DatabaseCatalog(url)
    assert revision_of(url) == NEWEST
    book, num_changes = store.read()
    assert (num_changes, list(book.entries), book.defaults["m"]) == (0, ["m@1", "m@2", "watched"], ("1", "2"))
    refused = RefusedVersion("abc", "3", "")
    store.change(lambda book: book.refuse("watched", refused))
    assert DatabaseCatalog(url).read()[0].refused == {"watched": (refused,)}
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(tmp_path / "data" / "catalog.db.0001.bak")) as copy:
            assert copy.execute("SELECT count(*) FROM catalog_entries").fetchall() == [(3,)]


@pytest.fixture
def two_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with one migration more than this one; the folder of its migrations."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    for path in migrate_module._FOLDER.rglob("*.py"):
        (folder / path.relative_to(migrate_module._FOLDER)).write_text(path.read_text())
    (folder / "versions" / "v0999_more.py").write_text(
        f"import sqlalchemy as sa\nfrom alembic import op\nrevision = '0999'\ndown_revision = '{NEWEST}'\n"
        "def upgrade():\n    op.add_column('catalog_entries', sa.Column('more', sa.Text))\n"
    )
    monkeypatch.setattr(migrate_module, "_FOLDER", folder)
    return folder


def test_a_migration_copies_a_sqlite_file_first(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "catalog.db"
    url = f"sqlite:///{path}"
    DatabaseCatalog(url).change(lambda book: book.add(CatalogEntry(id="kept")))
    request.getfixturevalue("two_schemas")
    assert not list(tmp_path.glob("*.bak"))
    migrate(open_engine(url))
    assert revision_of(url) == "0999"
    with closing(sqlite3.connect(tmp_path / f"catalog.db.{NEWEST}.bak")) as copy:
        assert copy.execute("SELECT version_num FROM alembic_version").fetchall() == [(NEWEST,)]
        assert copy.execute("SELECT id FROM catalog_entries").fetchall() == [("kept",)]
    assert not list(tmp_path.glob("*.part"))


def test_a_migration_that_fails_in_its_middle_leaves_what_there_was(url: str, request: pytest.FixtureRequest) -> None:
    DatabaseCatalog(url).change(lambda book: book.add(CatalogEntry(id="kept")))
    folder = request.getfixturevalue("two_schemas")
    with (folder / "versions" / "v0999_more.py").open("a") as file:
        file.write("    op.execute('INSERT INTO nothing VALUES (1)')\n")
    with pytest.raises(InvalidConfig, match="can not be"):
        migrate(open_engine(url))
    assert revision_of(url) == NEWEST
    with open_engine(url).begin() as connection:
        columns = {column["name"] for column in sa.inspect(connection).get_columns("catalog_entries")}
    assert "more" not in columns


def test_a_copy_that_can_not_be_made_stops_the_migration(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    DatabaseCatalog(url)
    request.getfixturevalue("two_schemas")
    (tmp_path / f"catalog.db.{NEWEST}.bak").mkdir()
    with pytest.raises(InvalidConfig, match="could not be copied"):
        migrate(open_engine(url))
    assert revision_of(url) == NEWEST


def test_serving_a_named_model_needs_no_database() -> None:
    code = "import sys, headway.cli.serve, headway.cli.local, headway.service.local, headway.server.app\n" + (
        "print([name for name in ('sqlalchemy', 'alembic') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
