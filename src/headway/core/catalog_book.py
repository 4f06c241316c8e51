"""Book: the whole catalog as a value: entries, which version each id means, now and before, and what is not to be taken
from watched sources. A change makes another.

A store (in memory, or database/) keeps one, and applies a change to what it reads within one transaction.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import MappingProxyType

from headway.core.catalog import CatalogEntry
from headway.errors import InvalidRequest, ModelNotFound

MAX_HISTORY = 20
"""Earlier defaults that are remembered, of each id."""
MAX_REFUSED = 50
"""Refused versions that are remembered, of each watched id."""


@dataclass(frozen=True, slots=True)
class RefusedVersion:
    """A version in a watched source that is not to be taken (again), until its files change."""

    stamp: str
    """Of its files (service/watched_source)."""
    version: str
    error: str
    """Why it could not be loaded; "": somebody rolled back from it."""


@dataclass(frozen=True, slots=True)
class Book:
    """Made by its own methods; check() has found no name that means two things."""

    entries: Mapping[str, CatalogEntry] = field(default_factory=lambda: MappingProxyType({}))
    """By CatalogEntry.key, in the order in which they came; is_default is as `defaults` has it."""
    defaults: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Of each id the versions that it meant, in order; the last one is meant now."""
    refused: Mapping[str, tuple[RefusedVersion, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Of each watched id, in order."""

    @classmethod
    def of(
        cls,
        entries: Iterable[CatalogEntry],
        defaults: Mapping[str, tuple[str, ...]],
        refused: Mapping[str, tuple[RefusedVersion, ...]] = MappingProxyType({}),
    ) -> "Book":
        """As a store has kept it: `defaults` decides, not the entries' own is_default."""
        return cls({entry.key: entry for entry in entries}, defaults, refused)._settled()

    def find(self, name: str) -> CatalogEntry:
        """By id@version, or the version that an id means. Raises ModelNotFound that names what is near."""
        found = self.entries.get(name) or next((e for e in self.versions(name) if e.is_default), None)
        if found is None:
            near = get_close_matches(name, {*self.entries, *self.defaults}, 3, 0.6)
            hint = f"did you mean {', '.join(near)}?" if near else "`headway models list` shows those there are"
            raise ModelNotFound(f"the catalog has no model {name[:200]!r}; {hint}", param="id")
        return found

    def versions(self, id_: str) -> list[CatalogEntry]:
        """All entries of an id."""
        return [entry for entry in self.entries.values() if entry.id == id_]

    def add(self, entry: CatalogEntry) -> "Book":
        """With one more. Raises InvalidRequest for one that is there, and for names that another has."""
        if entry.key in self.entries:
            raise InvalidRequest(
                f"{entry.key} is in the catalog already: change it, remove it first, or give another version",
                param="id",
            )
        return self.put(entry)

    def put(self, *given: CatalogEntry) -> "Book":
        """With these, each in the place of one of the same key; what was measured stays where the source is the same.

        Raises InvalidRequest for names that two have in the end. In time that grows with the number of all entries.
        """
        entries, defaults, refused = dict(self.entries), dict(self.defaults), dict(self.refused)
        for entry in given:
            before = entries.get(entry.key)
            if before is not None and before.source == entry.source and entry.measured_bytes is None:
                entry = replace(entry, measured_bytes=before.measured_bytes, measured_load_s=before.measured_load_s)
            if before is not None and before.source != entry.source:
                refused.pop(entry.id, None)
            entries[entry.key] = entry
            history = defaults.get(entry.id, ())
            if not history or (entry.is_default and history[-1] != entry.version):
                defaults[entry.id] = (*history, entry.version)[-MAX_HISTORY:]
        return Book(entries, defaults, refused)._settled().check()

    def remove(self, name: str) -> "Book":
        """Without an entry (id@version), or all versions of an id. Raises ModelNotFound."""
        gone = {name} if name in self.entries else {entry.key for entry in self.versions(name)}
        if not gone:
            self.find(name)
        entries = {key: entry for key, entry in self.entries.items() if key not in gone}
        return replace(self, entries=entries)._settled()

    def set_default(self, id_: str, version: str) -> "Book":
        """The id means this version from now on. Raises ModelNotFound; InvalidRequest for names that another has."""
        key = f"{id_}@{version}" if version else id_
        if key not in self.entries:
            known = ", ".join(entry.version or "(none)" for entry in self.versions(id_)) or "no version at all"
            raise ModelNotFound(f"{id_} has no version {version[:100]!r}; it has {known}", param="version")
        if self.defaults[id_][-1] == version:
            return self
        return self._with_default(id_, version)._settled().check()

    def roll_back(self, id_: str) -> "Book":
        """The id means what it meant before. Raises ModelNotFound; InvalidRequest where there is no before."""
        id_ = self.find(id_).id
        history = self.defaults[id_]
        earlier = [number for number, version in enumerate(history) if version != history[-1]]
        if not earlier:
            raise InvalidRequest(
                f"{id_} has meant no other version before {history[-1] or '(none)'}: there is nothing to go back to",
                param="id",
            )
        return replace(self, defaults={**self.defaults, id_: history[: earlier[-1] + 1]})._settled().check()

    def refuse(self, id_: str, refused: RefusedVersion) -> "Book":
        """With a version that is not to be taken; of an id that is not watched (any more): unchanged."""
        if not any(entry.is_watched for entry in self.versions(id_)):
            return self
        others = tuple(each for each in self.refused.get(id_, ()) if each.stamp != refused.stamp)
        return replace(self, refused={**self.refused, id_: (*others, refused)[-MAX_REFUSED:]})

    def measured(self, key: str, num_bytes: int, load_s: float) -> "Book":
        """With what the last load of an entry took; one that is not there any more: unchanged."""
        entry = self.entries.get(key)
        if entry is None:
            return self
        changed = replace(entry, measured_bytes=num_bytes, measured_load_s=load_s)
        return replace(self, entries={**self.entries, key: changed})

    def check(self) -> "Book":
        """Itself. Raises InvalidRequest for a name that two models have."""
        owners: dict[str, str] = {}
        num_versions = Counter(entry.id for entry in self.entries.values())
        for entry in self.entries.values():
            if not entry.version and num_versions[entry.id] > 1:
                raise InvalidRequest(
                    f"{entry.id} is in the catalog with and without versions: give each entry one", param="version"
                )
            others = [*entry.aliases, *(preset.name for preset in entry.presets)] if entry.is_default else []
            for name in [entry.id, *others]:
                owner = owners.setdefault(name, entry.id)
                if owner != entry.id:
                    raise InvalidRequest(
                        f"{name!r} is a name of {owner}, and so can be none of {entry.id}: choose another", param="id"
                    )
        return self

    def _with_default(self, id_: str, version: str) -> "Book":
        history = (*self.defaults.get(id_, ()), version)[-MAX_HISTORY:]
        return replace(self, defaults={**self.defaults, id_: history})

    def _settled(self) -> "Book":
        """With a default for each id, of the versions that are there, is_default as it says, and nothing refused of ids
        that are not watched."""
        versions: dict[str, list[str]] = {}
        for entry in self.entries.values():
            versions.setdefault(entry.id, []).append(entry.version)
        defaults = {}
        for id_, there in versions.items():
            kept = tuple(version for version in self.defaults.get(id_, ()) if version in there)
            defaults[id_] = kept or (there[-1],)
        entries = {
            key: entry
            if entry.is_default == (defaults[entry.id][-1] == entry.version)
            else replace(entry, is_default=not entry.is_default)
            for key, entry in self.entries.items()
        }
        watched = {entry.id for entry in entries.values() if entry.is_watched}
        return Book(entries, defaults, {id_: found for id_, found in self.refused.items() if id_ in watched})
