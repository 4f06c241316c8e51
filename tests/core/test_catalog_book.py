"""The catalog as a value: names that mean one thing, versions, defaults and the way back."""

from typing import Any

import pytest

from headway.config import Preset
from headway.core.catalog import CatalogEntry
from headway.core.catalog_book import MAX_HISTORY, Book
from headway.errors import InvalidRequest, ModelNotFound


def entry(id_: str = "m", version: str = "", **fields: Any) -> CatalogEntry:
    return CatalogEntry(id=id_, version=version, **fields)


def book(*entries: CatalogEntry) -> Book:
    made = Book()
    for each in entries:
        made = made.add(each)
    return made


def default_of(made: Book, id_: str = "m") -> str:
    (found,) = [each.version for each in made.versions(id_) if each.is_default]
    return found


class TestEntries:
    @pytest.mark.parametrize("id_", ["a", "org/name", "gpt-2_v1.5", "a/b/c", "7b", "Qwen2.5-0.5B_"])
    def test_an_id_is_parts_of_letters_digits_and_marks(self, id_: str) -> None:
        assert entry(id_).key == id_

    @pytest.mark.parametrize(
        "id_",
        [
            "",
            ".",
            "..",
            "../x",
            "a/../b",
            "/a",
            "a/",
            "a//b",
            ".hidden",
            "-flag",
            "a b",
            "a@1",
            "a\\b",
            "a\0",
            "ü",
            "a..b",
            "a/.b",
            "x" * 201,
            "a?b",
            "a%2e",
            "a:b",
            "a\n",
        ],
    )
    def test_an_id_that_could_be_a_path_or_a_flag_is_refused(self, id_: str) -> None:
        with pytest.raises(InvalidRequest) as error:
            entry(id_)
        assert error.value.param == "id"

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"version": "../1"}, "version"),
            ({"version": "a" * 101}, "version"),
            ({"sha256": "A" * 64}, "sha256"),
            ({"sha256": "abc"}, "sha256"),
            ({"expected_bytes": -1}, "expected_bytes"),
            ({"idle_timeout_s": float("nan")}, "idle_timeout_s"),
            ({"expected_load_s": float("inf")}, "expected_load_s"),
            ({"description": "x" * 5000}, "description"),
            ({"source": "a\0b"}, "source"),
            ({"aliases": ("a b",)}, "aliases"),
            ({"aliases": ("m",)}, "aliases"),
            ({"aliases": ("x",), "presets": (Preset(name="x"),)}, "aliases"),
            ({"presets": (Preset(name="../x"),)}, "presets"),
        ],
    )
    def test_a_wrong_field_is_named(self, fields: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidRequest) as error:
            entry(**fields)
        assert error.value.param == param


class TestVersions:
    def test_the_first_version_is_the_default_whatever_it_says(self) -> None:
        assert default_of(book(entry(version="1", is_default=False))) == "1"

    def test_a_later_one_becomes_the_default_unless_it_says_no(self) -> None:
        made = book(entry(version="1"), entry(version="2"), entry(version="3", is_default=False))
        assert default_of(made) == "2"
        assert made.find("m").version == "2"
        assert made.find("m@3").version == "3"

    def test_rolling_back_goes_the_way_that_was_come(self) -> None:
        made = book(entry(version="1"), entry(version="2"), entry(version="3")).set_default("m", "1")
        assert default_of(made) == "1"
        made = made.roll_back("m")
        assert default_of(made) == "3"
        made = made.roll_back("m")
        assert default_of(made) == "2"
        made = made.roll_back("m@3")
        assert default_of(made) == "1"
        with pytest.raises(InvalidRequest, match="nothing to go back to"):
            made.roll_back("m")

    def test_the_default_that_is_removed_leaves_the_one_before(self) -> None:
        made = book(entry(version="1"), entry(version="2"), entry(version="3")).remove("m@3")
        assert default_of(made) == "2"
        assert not made.remove("m").entries

    def test_after_a_removal_a_way_back_does_not_stay_where_it_is(self) -> None:
        made = book(entry(version="1"), entry(version="2"), entry(version="3")).set_default("m", "2").remove("m@3")
        assert made.defaults["m"] == ("1", "2", "2")
        assert default_of(made.roll_back("m")) == "1"

    def test_of_a_long_history_the_end_is_kept(self) -> None:
        made = book(entry(version="1"), entry(version="2"))
        for number in range(3 * MAX_HISTORY):
            made = made.set_default("m", str(number % 2 + 1))
        assert len(made.defaults["m"]) == MAX_HISTORY
        assert default_of(made) == "2"

    def test_with_and_without_versions_do_not_go_together(self) -> None:
        with pytest.raises(InvalidRequest, match="with and without versions"):
            book(entry(), entry(version="1"))

    def test_a_version_that_there_is_not(self) -> None:
        with pytest.raises(ModelNotFound, match="it has 1, 2"):
            book(entry(version="1"), entry(version="2")).set_default("m", "3")


class TestNames:
    def test_a_name_means_one_thing(self) -> None:
        made = book(entry("a", aliases=("x",), presets=(Preset(name="y"),)))
        for other in (entry("x"), entry("y"), entry("b", aliases=("x",)), entry("b", aliases=("a",))):
            with pytest.raises(InvalidRequest, match="is a name of a"):
                made.add(other)

    def test_only_the_default_version_gives_aliases(self) -> None:
        made = book(entry("a", "1", aliases=("x",)), entry("a", "2", aliases=("y",)), entry("x"))
        with pytest.raises(InvalidRequest, match="'x' is a name of"):
            made.roll_back("a")
        assert default_of(made, "a") == "2"

    def test_what_is_not_there_is_told_with_what_is_near(self) -> None:
        with pytest.raises(ModelNotFound, match="did you mean llama-small"):
            book(entry("llama-small")).find("lama-small")
        with pytest.raises(ModelNotFound, match="headway models list"):
            Book().remove("x")

    def test_the_same_again_is_refused_by_add_and_taken_by_put(self) -> None:
        made = book(entry(source="a", measured_bytes=7))
        with pytest.raises(InvalidRequest, match="already"):
            made.add(entry())
        assert made.put(entry(source="a", description="new")).find("m").measured_bytes == 7
        assert made.put(entry(source="b")).find("m").measured_bytes is None


def test_what_was_measured_is_kept_with_its_entry() -> None:
    made = book(entry()).measured("m", 100, 2.5).measured("gone", 1, 1.0)
    assert (made.find("m").measured_bytes, made.find("m").measured_load_s) == (100, 2.5)


def test_thousands_of_entries_are_put_at_once_as_one_after_the_other() -> None:
    """In time that grows with their number: one by one, with all names compared at each, it would be minutes."""
    entries = [
        CatalogEntry(id=f"m{number // 2}", version=str(number % 2), is_default=number % 3 > 0, aliases=(f"a{number}",))
        for number in range(8000)
    ]
    book = Book().put(*entries)
    assert len(book.entries) == 8000
    one_by_one = Book()
    for entry in entries[:100]:
        one_by_one = one_by_one.put(entry)
    assert one_by_one == Book().put(*entries[:100])
    changed = [CatalogEntry(id="m3", version="0", description="d"), CatalogEntry(id="m3", version="9")]
    assert book.put(*changed) == book.put(changed[0]).put(changed[1])
    with pytest.raises(InvalidRequest, match="'m7' is a name of m7"):
        book.put(CatalogEntry(id="other", aliases=("m7",)))
