"""The catalog, served: what is added, changed and removed while requests run; versions, aliases, presets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headway.config import ModelConfig, Preset
from headway.core.catalog import CatalogEntry
from headway.core.catalog_book import Book
from headway.core.request import GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams
from headway.database.catalog import DatabaseCatalog
from headway.errors import CatalogUnavailable, CorruptCheckpoint, InvalidRequest, ModelNotFound
from headway.service.catalog_store import MemoryStore
from service.catalog_rig import CatalogRig, catalog_rig


def entry(id_: str = "m", version: str = "", source: str = "first", **fields: Any) -> CatalogEntry:
    return CatalogEntry(id=id_, version=version, source=source, **fields)


async def begun(rig: CatalogRig, model: str = "m", **sampling: Any) -> Any:
    """A stream that is under way, and has not been read."""
    return await rig.service.generate(GenerateRequest("s", model, TextPrompt("hi"), SamplingParams(**sampling)))


async def rest(stream: Any) -> str:
    async with stream:
        return "".join([delta.text async for delta in stream])


class TestChanges:
    async def test_what_is_added_can_be_asked_at_once_and_what_is_removed_no_more(self) -> None:
        async with catalog_rig() as rig:
            assert rig.service.is_ready() == (True, "")
            with pytest.raises(ModelNotFound, match="none is served yet"):
                await rig.ask("m")
            await rig.catalog.add(entry())
            assert await rig.ask("m") == "first"
            await rig.catalog.remove("m")
            with pytest.raises(ModelNotFound):
                await rig.ask("m")

    async def test_a_stream_of_a_removed_model_ends_as_it_would_have(self) -> None:
        async with catalog_rig(entry()) as rig:
            stream = await begun(rig)
            await rig.catalog.remove("m")
            assert await rest(stream) == "first"
            await rig.until(lambda: not rig.service._residents.models)

    async def test_another_source_takes_the_place_of_the_first_without_a_failed_request(self) -> None:
        async with catalog_rig(entry(aliases=("x",))) as rig:
            stream = await begun(rig, "x")
            answers = asyncio.gather(*(rig.ask("x") for _ in range(5)))
            await asyncio.sleep(0)
            await rig.catalog.update("m", {"source": "second"})
            later = asyncio.gather(*(rig.ask("m") for _ in range(5)))
            assert set(await answers) <= {"first", "second"}
            assert set(await later) == {"second"}
            assert await rest(stream) == "first"
            await rig.until(lambda: len(rig.service._residents.models) == 1)

    async def test_names_and_residency_change_without_a_load(self) -> None:
        async with catalog_rig(entry()) as rig:
            assert await rig.ask("m") == "first"
            await rig.catalog.update("m", {"aliases": ["x"], "description": "new", "idle_timeout_s": 60})
            assert await rig.ask("x") == "first"
            assert rig.service.card("x").description == "new"
            assert rig.num_starts() == 1

    async def test_a_pinned_model_is_loaded_at_once(self) -> None:
        async with catalog_rig(entry(is_pinned=True), entry("other")) as rig:
            await rig.until(lambda: rig.service.card("m").state == "ready")
            assert rig.service.card("m").is_pinned
            assert rig.service.card("other").state == "cold"
            await rig.catalog.update("other", {"pinned": True})
            await rig.until(lambda: rig.service.card("other").state == "ready")

    async def test_names_of_what_is_served_beside_the_catalog_are_taken(self) -> None:
        fixed = ModelConfig(source="fixed", served_names=("fixed", "alias"))
        async with catalog_rig(models=[fixed]) as rig:
            for wrong in (
                entry("fixed"),
                entry("alias"),
                entry(aliases=("alias",)),
                entry(presets=(Preset(name="fixed"),)),
            ):
                with pytest.raises(InvalidRequest, match="was started with"):
                    await rig.catalog.add(wrong)
            assert not rig.catalog.entries
            assert await rig.ask("alias") == "fixed"

    async def test_a_name_may_wander_from_one_entry_to_another_in_one_change(self) -> None:
        async with catalog_rig(entry("a", aliases=("x",)), entry("b", source="second")) as rig:
            moved = [entry("a"), entry("b", source="second", aliases=("x",))]
            assert await rig.catalog.take(moved) == (0, 2)
            assert await rig.ask("x") == "second"

    async def test_an_import_is_all_or_nothing(self) -> None:
        async with catalog_rig(entry("a")) as rig:
            with pytest.raises(InvalidRequest):
                await rig.catalog.take([entry("b"), entry("c", aliases=("a",))])
            assert [each.id for each in rig.catalog.entries] == ["a"]
            assert await rig.catalog.take([entry("b"), entry("a", source="second")]) == (1, 1)

    async def test_ids_and_versions_stay(self) -> None:
        async with catalog_rig(entry()) as rig:
            for changes in ({"id": "other"}, {"version": "2"}):
                with pytest.raises(InvalidRequest, match="id and version"):
                    await rig.catalog.update("m", changes)
            with pytest.raises(InvalidRequest, match="no field"):
                await rig.catalog.update("m", {"nonsense": 1})

    async def test_one_that_can_not_be_loaded_keeps_its_reason_and_harms_no_other(self) -> None:
        async with catalog_rig(entry("bad", source="broken"), entry()) as rig:
            with pytest.raises(CorruptCheckpoint, match="broken can not be read"):
                await rig.ask("bad")
            card = rig.service.card("bad")
            assert (card.state, card.error and card.error.message) == ("failed", "broken can not be read")
            assert card.retry_at_s is not None
            assert await rig.ask("m") == "first"
            await rig.catalog.add(entry("another"))
            assert rig.service.card("bad").error is not None


class TestVersions:
    async def test_side_by_side_with_a_default_and_a_way_back(self) -> None:
        async with catalog_rig(entry(version="1"), entry(version="2", source="second")) as rig:
            assert [await rig.ask(name) for name in ("m", "m@1", "m@2")] == ["second", "first", "second"]
            assert (await rig.catalog.roll_back("m")).version == "1"
            assert await rig.ask("m") == "first"
            assert rig.num_starts() == 2
            await rig.catalog.update("m@2", {"default": True})
            assert await rig.ask("m") == "second"

    async def test_aliases_are_those_of_the_default(self) -> None:
        async with catalog_rig(entry(version="1", aliases=("old",)), entry(version="2", aliases=("new",))) as rig:
            assert await rig.ask("new")
            with pytest.raises(ModelNotFound):
                await rig.ask("old")

    async def test_cards_tell_versions_once(self) -> None:
        async with catalog_rig(entry(version="1"), entry(version="2", aliases=("x",))) as rig:
            told = {card.id: (card.version, card.kind, card.model) for card in rig.service.models()}
            assert told == {
                "m": ("2", "model", "m"),
                "x": ("2", "alias", "m"),
                "m@1": ("1", "model", "m"),
            }


class TestPresets:
    FAST = Preset(
        name="chat-fast", sampling={"max_tokens": 3, "temperature": 0.1}, template_kwargs={"enable_thinking": False}
    )
    DEEP = Preset(name="chat-deep", template_kwargs={"enable_thinking": True})

    @pytest.mark.case("preset-alias-08")
    async def test_presets_share_one_load_and_explicit_fields_win(self) -> None:
        async with catalog_rig(entry(source="reasons", presets=(self.FAST, self.DEEP), aliases=("plain",))) as rig:
            names = ["m", "plain", "chat-fast", "chat-deep"]
            assert [await rig.ask(name) for name in names] == ["reasons"] * 4
            assert rig.num_starts() == 1
            assert {card.id: card.kind for card in rig.service.models()} == {
                "m": "model", "plain": "alias", "chat-fast": "preset", "chat-deep": "preset",
            }  # fmt: skip
            assert await rig.service.generation_defaults("chat-fast") == {"max_tokens": 3, "temperature": 0.1}
            assert await rig.service.generation_defaults("m") == {}
            off = await rig.chat_ids("m", enable_thinking=False)
            on = await rig.chat_ids("m", enable_thinking=True)
            assert off != on
            assert await rig.chat_ids("chat-fast") == off
            assert await rig.chat_ids("chat-deep") == on
            assert await rig.chat_ids("chat-deep", enable_thinking=False) == off


class TestStores:
    async def test_a_change_of_another_process_is_seen(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/catalog.db"
        other = DatabaseCatalog(url)
        other.change(lambda book: book.add(entry("a")))
        async with catalog_rig(store=DatabaseCatalog(url)) as rig:
            assert await rig.ask("a") == "first"
            other.change(lambda book: book.add(entry("b", source="second")).remove("a"))
            await rig.catalog.look()
            assert await rig.ask("b") == "second"
            with pytest.raises(ModelNotFound):
                await rig.ask("a")

    async def test_two_servers_with_one_catalog(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/catalog.db"
        async with catalog_rig(store=DatabaseCatalog(url)) as one, catalog_rig(store=DatabaseCatalog(url)) as two:
            await one.catalog.add(entry())
            await two.catalog.add(entry("n", source="second"))
            await one.catalog.look()
            assert [await rig.ask(name) for rig in (one, two) for name in ("m", "n")] == ["first", "second"] * 2

    async def test_a_store_that_is_away_leaves_what_is_served(self) -> None:
        class Away(MemoryStore):
            is_away = False

            def num_changes(self) -> int:
                if self.is_away:
                    raise CatalogUnavailable("the database is away")
                return super().num_changes()

        store = Away(Book().add(entry()))
        async with catalog_rig(store=store) as rig:
            store.is_away = True
            with pytest.raises(CatalogUnavailable):
                await rig.catalog.look()
            assert await rig.ask("m") == "first"
            store.is_away = False
            store.change(lambda book: book.add(entry("n", source="second")))
            await rig.catalog.look()
            assert await rig.ask("n") == "second"

    async def test_what_another_wrote_and_this_server_can_not_name_leaves_it_as_it_was(self) -> None:
        store = MemoryStore()
        fixed = ModelConfig(source="fixed", served_names=("fixed",))
        async with catalog_rig(entry(), store=store, models=[fixed]) as rig:
            store.change(lambda book: book.add(entry("fixed")).add(entry("n")))
            with pytest.raises(Exception, match="two models are named 'fixed'"):
                await rig.catalog.look()
            assert await rig.ask("fixed") == "fixed"
            assert await rig.ask("m") == "first"

    async def test_what_a_load_took_is_written_back_and_expected_next_time(self, tmp_path: Path) -> None:
        store = DatabaseCatalog(f"sqlite:///{tmp_path}/catalog.db")
        async with catalog_rig(entry(expected_bytes=5), store=store) as rig:
            served = rig.service.roster.find("m").model
            rig.service._residents.on_measured(served, 1000, 2.5)
        found = store.read()[0].find("m")
        assert (found.measured_bytes, found.measured_load_s, found.expected_bytes) == (1000, 2.5, 5)
        async with catalog_rig(store=store) as rig:
            residency = rig.service.roster.find("m").model.config.residency
            assert (residency.expected_bytes, residency.expected_load_s) == (1000, 2.5)


async def test_a_model_that_is_gone_between_its_name_and_its_lease_is_found_anew() -> None:
    async with catalog_rig(entry()) as rig:
        old = rig.service.roster.find("m").model
        await rig.catalog.update("m", {"source": "second"})
        await rig.until(lambda: old.id not in rig.service._residents.models)
        seen = [old, rig.service.roster.find("m").model]
        rig.service._find = lambda name: seen[0]  # type: ignore[method-assign]

        async def call(model: Any) -> str:
            if model is old:
                rig.service._find = lambda name: seen[1]  # type: ignore[method-assign]
            return str((await rig.service._residents.lease(model)).model.config.source)

        assert await rig.service._ask("m", call) == "second"
