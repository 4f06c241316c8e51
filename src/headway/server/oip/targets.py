"""Which model a route or a call means: names may have slashes, and a version beside them.

A model without versions has the version "1" here: the protocol's clients want one, as a number.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.errors import ModelNotFound
from headway.server.state import ServerState
from headway.service.protocol import ModelCard

NO_VERSION = "1"
_VERSIONS = "/versions/"


@dataclass(frozen=True, slots=True)
class Target:
    """A model that is served."""

    name: str
    """As it was asked for."""
    version: str
    key: str
    """What the service is asked for: the name, or id@version."""
    card: ModelCard

    @property
    def statistics_key(self) -> tuple[str, str]:
        """The model's id and version, whatever name it was asked by."""
        return self.card.model or self.card.id, self.version


def split_path(path: str) -> tuple[str, str]:
    """Name and version of NAME or NAME/versions/VERSION; "" where there is no version."""
    name, _, version = path.rpartition(_VERSIONS)
    return (name, version) if name and version and "/" not in version else (path, "")


def find_target(state: ServerState, name: str, version: str = "") -> Target:
    """Raises ModelNotFound, for an unknown version with those there are."""
    card = state.service.card(name)
    if version in ("", version_of(card)):
        return Target(name, version_of(card), name, card)
    key = f"{card.model or name}@{version}"
    try:
        return Target(name, version, key, state.service.card(key))
    except ModelNotFound:
        known = ", ".join(versions_of(state, card))
        raise ModelNotFound(
            f"model {name[:200]} has no version {version[:40]!r}; it has: {known}", param="version"
        ) from None


def version_of(card: ModelCard) -> str:
    """What the protocol calls a model's version."""
    return card.version or NO_VERSION


def versions_of(state: ServerState, card: ModelCard) -> list[str]:
    """Of the model that a card is of, all that are served."""
    own = card.model or card.id
    found = {version_of(each) for each in state.service.models() if (each.model or each.id) == own}
    return sorted(found | {version_of(card)}, key=lambda version: (len(version), version))


def listed_models(state: ServerState) -> list[ModelCard]:
    """A card for each model and version: aliases and presets are other names of these."""
    found: Mapping[tuple[str, str], ModelCard] = {
        (card.model or card.id, version_of(card)): card for card in state.service.models() if card.kind == "model"
    }
    return list(found.values())
