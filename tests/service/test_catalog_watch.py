"""Watched sources: what is new is swapped in, what failed or was rolled back from stays out, also after a restart."""

import asyncio
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from headway.core.catalog import CatalogEntry
from headway.core.catalog_book import Book, RefusedVersion
from headway.database.catalog import DatabaseCatalog
from headway.errors import CatalogUnavailable, DownloadFailed, InvalidRequest
from headway.service import catalog, catalog_watch
from headway.service.catalog_store import MemoryStore
from headway.service.watched_source import Found, find_versions
from service.catalog_rig import catalog_rig


def entry(id_: str = "m", version: str = "", source: str = "first", **fields: Any) -> CatalogEntry:
    return CatalogEntry(id=id_, version=version, source=source, **fields)


def fail_to_write(*_: object, **__: object) -> NoReturn:
    raise CatalogUnavailable("the database is away")


def write_model(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.txt").write_text(text)
    return folder


async def test_a_new_version_takes_over_while_requests_run(tmp_path: Path) -> None:
    write_model(tmp_path / "1", "one")
    async with catalog_rig(entry(source=str(tmp_path), is_watched=True)) as rig:
        answers: list[str] = []
        is_over = False

        async def keep_asking() -> None:
            while not is_over:
                answers.append(await rig.ask("m"))

        askers = [asyncio.create_task(keep_asking()) for _ in range(4)]
        await rig.until(lambda: len(answers) > 20)
        write_model(tmp_path / "10", "ten")
        write_model(tmp_path / "9", "nine")
        await rig.settled()
        await rig.until(lambda: answers[-8:] == ["ten"] * 8)
        is_over = True
        await asyncio.gather(*askers)
        assert set(answers) == {"one", "ten"}
        assert answers == sorted(answers, key=["one", "ten"].index)
        assert rig.service.card("m").version == "10"
        await rig.until(lambda: len(rig.service._residents.models) == 1)


async def test_one_that_fails_leaves_the_old_one_with_the_reason(tmp_path: Path) -> None:
    write_model(tmp_path / "1", "one")
    async with catalog_rig(entry(source=str(tmp_path), is_watched=True)) as rig:
        write_model(tmp_path / "2", "broken")
        await rig.settled()
        assert await rig.ask("m") == "one"
        card = rig.service.card("m")
        assert card.state == "ready"
        assert card.update_error is not None
        assert card.update_error.message == "broken can not be read"
        failures = rig.service.stats()["pool"]["pool"]["worker_failures_total"]
        await rig.settled()
        assert rig.service.stats()["pool"]["pool"]["worker_failures_total"] == failures  # it is not tried again ...
        write_model(tmp_path / "2", "two, mended")
        await rig.settled()
        assert await rig.ask("m") == "two, mended"  # ... until its files change
        assert rig.service.card("m").update_error is None


async def test_a_file_that_changes_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text("before")
    async with catalog_rig(entry(source=str(path), is_watched=True)) as rig:
        assert await rig.ask("m") == "before"
        path.write_text("after it")
        await rig.catalog.look()
        await rig.catalog.settled()
        assert await rig.ask("m") == "before"  # somebody may still be writing
        await rig.catalog.look()
        await rig.catalog.settled()
        assert await rig.ask("m") == "after it"


async def test_rolling_back_stays_until_something_newer_comes(tmp_path: Path) -> None:
    for number, text in (("1", "one"), ("2", "two")):
        write_model(tmp_path / number, text)
    async with catalog_rig(entry(source=str(tmp_path), is_watched=True)) as rig:
        assert await rig.ask("m") == "two"
        await rig.catalog.roll_back("m")
        assert await rig.ask("m") == "one"
        await rig.settled()
        assert await rig.ask("m") == "one"
        with pytest.raises(InvalidRequest, match="nothing to go back to"):
            await rig.catalog.roll_back("m")
        write_model(tmp_path / "3", "three")
        await rig.settled()
        assert await rig.ask("m") == "three"


async def test_what_was_rolled_back_or_failed_is_not_taken_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    source = tmp_path / "models"
    for number, text in (("1", "one"), ("2", "two")):
        write_model(source / number, text)
    async with catalog_rig(entry(source=str(source), is_watched=True), store=DatabaseCatalog(url)) as rig:
        await rig.catalog.roll_back("m")
        write_model(source / "3", "broken")
        await rig.settled()
        assert await rig.ask("m") == "one"
    kept = DatabaseCatalog(url).read()[0].refused["m"]
    assert [(each.version, each.error) for each in kept] == [("2", ""), ("3", "broken can not be read")]
    async with catalog_rig(store=DatabaseCatalog(url)) as rig:
        assert await rig.ask("m") == "one"
        await rig.settled()
        assert (await rig.ask("m"), rig.service.card("m").version) == ("one", "1")
        assert rig.num_starts() == 1
        write_model(source / "2", "two, mended")
        await rig.settled()
        assert await rig.ask("m") == "two, mended"
        await rig.catalog.update("m", {"source": str(source / "1")})
        await rig.catalog.update("m", {"source": str(source)})
        assert not DatabaseCatalog(url).read()[0].refused  # another source: what is refused is forgotten


async def test_a_server_of_the_same_catalog_leaves_what_was_rolled_back_on_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    source = tmp_path / "models"
    for number in ("1", "2"):
        write_model(source / number, number)
    async with (
        catalog_rig(entry(source=str(source), is_watched=True), store=DatabaseCatalog(url)) as first,
        catalog_rig(store=DatabaseCatalog(url)) as second,
    ):
        assert await second.ask("m") == "2"
        await first.catalog.roll_back("m")
        await second.settled()
        assert await second.ask("m") == "1"


async def test_what_failed_on_another_server_is_not_taken_but_kept_where_it_runs(tmp_path: Path) -> None:
    source = tmp_path / "models"
    write_model(source / "1", "one")
    store = MemoryStore()
    async with catalog_rig(entry(source=str(source), is_watched=True), store=store) as rig:
        write_model(source / "2", "two")
        await rig.settled()
        assert await rig.ask("m") == "two"
        for number in ("2", "3"):
            write_model(source / number, "two") if number == "3" else None
            stamp = next(each.stamp for each in find_versions(str(source)) if each.version == number)
            refused = RefusedVersion(stamp, number, "not enough of something there")
            store.change(lambda book, refused=refused: book.refuse("m", refused))
        await rig.settled()
        assert (await rig.ask("m"), rig.service.card("m").version) == ("two", "2")


async def test_where_all_that_is_there_was_refused_it_is_tried_all_the_same(tmp_path: Path) -> None:
    write_model(tmp_path / "1", "one")
    stamp = find_versions(str(tmp_path))[0].stamp
    watched = entry(source=str(tmp_path), is_watched=True)
    book = Book().add(watched).refuse("m", RefusedVersion(stamp, "1", "it failed once"))
    async with catalog_rig(store=MemoryStore(book)) as rig:
        assert await rig.ask("m") == "one"


async def test_a_roll_back_that_can_not_be_written_does_not_happen(tmp_path: Path) -> None:
    for number in ("1", "2"):
        write_model(tmp_path / number, number)
    store = MemoryStore()
    async with catalog_rig(entry(source=str(tmp_path), is_watched=True), store=store) as rig:
        assert await rig.ask("m") == "2"
        change, store.change = store.change, fail_to_write  # type: ignore[method-assign]
        with pytest.raises(CatalogUnavailable, match="away"):
            await rig.catalog.roll_back("m")
        assert await rig.ask("m") == "2"
        store.change = change  # type: ignore[method-assign]
        await rig.catalog.roll_back("m")
        assert await rig.ask("m") == "1"


async def test_a_source_that_can_not_be_looked_at_says_so_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "1", "one")
    is_away = False

    def find(source: str) -> list[Found]:
        if is_away:
            raise DownloadFailed("s3://bucket/m may not be read")
        return find_versions(str(tmp_path))

    for module in (catalog, catalog_watch):
        monkeypatch.setattr(module, "find_versions", find)
    async with catalog_rig(entry(source="s3://bucket/m", is_watched=True)) as rig:
        assert await rig.ask("m") == "one"
        is_away = True
        await rig.settled()
        assert await rig.ask("m") == "one"
        error = rig.service.card("m").update_error
        assert error is not None
        assert error.message == "s3://bucket/m may not be read"
        await rig.catalog.look(is_remote_too=False)
        is_away = False
        await rig.settled()
        assert rig.service.card("m").update_error is None


async def test_a_look_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, looks = threading.Event(), []
    is_away = False

    def find(source: str) -> list[Found]:
        if is_away and source.startswith("s3://"):
            looks.append(source)
            assert hangs.wait(30)
        return find_versions(str(tmp_path))

    for module in (catalog, catalog_watch):
        monkeypatch.setattr(module, "find_versions", find)
    write_model(tmp_path / "1", "one")
    sources = {"here": str(tmp_path), "away": "s3://bucket/m", "gone": "s3://bucket/x"}
    entries = [entry(id_, source=source, is_watched=True) for id_, source in sources.items()]
    async with catalog_rig(*entries) as rig:
        is_away = True
        monkeypatch.setattr(catalog_watch, "LOOK_TIMEOUT_S", 0.01)
        write_model(tmp_path / "2", "two")
        while await rig.ask("here") != "two":
            await rig.settled()
        assert await rig.ask("away") == "one"
        assert sorted(looks) == ["s3://bucket/m", "s3://bucket/x"]  # each next round waits for the same look
        looking = asyncio.create_task(rig.catalog.look())
        await rig.catalog.remove("gone")  # and its look with it
        await looking
        hangs.set()
        while await rig.ask("away") != "two":
            await rig.settled()


async def test_a_source_that_comes_later_and_one_that_goes(tmp_path: Path) -> None:
    async with catalog_rig(entry(source=str(tmp_path / "later"), is_watched=True)) as rig:
        await rig.settled()
        write_model(tmp_path / "later" / "1", "there")
        await rig.settled()
        assert await rig.ask("m") == "there"
        (tmp_path / "later" / "1" / "model.txt").unlink()
        (tmp_path / "later" / "1").rmdir()
        (tmp_path / "later").rmdir()
        await rig.settled()
        assert await rig.ask("m") == "there"


async def test_aliases_given_meanwhile_are_the_new_ones_too(tmp_path: Path) -> None:
    write_model(tmp_path / "1", "one")
    async with catalog_rig(entry(source=str(tmp_path), is_watched=True)) as rig:
        await rig.catalog.update("m", {"aliases": ["x"]})
        write_model(tmp_path / "2", "two")
        await rig.settled()
        assert await rig.ask("x") == "two"


@pytest.mark.parametrize("source", ["relative/path", "org/name", "https://example.com/m.gguf", "demo"])
async def test_only_paths_are_watched(source: str) -> None:
    async with catalog_rig() as rig:
        with pytest.raises(InvalidRequest, match="absolute path"):
            await rig.catalog.add(entry(source=source, is_watched=True))
        with pytest.raises(InvalidRequest, match="leave version out"):
            await rig.catalog.add(entry(source="/x", version="1", is_watched=True))
