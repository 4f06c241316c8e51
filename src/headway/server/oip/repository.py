"""The repository as the protocol tells it: which models there are, loading them and letting them go."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headway.errors import InvalidConfig, InvalidRequest
from headway.server.body import check_fields
from headway.server.oip.schema import NoParameters, UnloadParameters
from headway.server.oip.targets import find_target, listed_models, version_of
from headway.server.state import ServerState
from headway.service.protocol import ModelCard

IndexState = Literal["READY", "LOADING", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A model's version."""

    name: str
    version: str
    state: IndexState
    reason: str
    """Why it is not ready; "": it is, or loads."""


def index(state: ServerState, *, only_ready: bool = False) -> list[IndexEntry]:
    """All models and versions, by name."""
    entries = [_entry(card) for card in listed_models(state)]
    return sorted(
        (entry for entry in entries if entry.state == "READY" or not only_ready),
        key=lambda entry: (entry.name, len(entry.version), entry.version),
    )


async def load(state: ServerState, name: str, parameters: Mapping[str, Any] | None) -> ModelCard:
    """Returns once the model is ready. Raises HeadwayError: ModelNotFound, why it can not be loaded."""
    check_fields(parameters or {}, NoParameters)
    try:
        return await state.service.load(find_target(state, name).key)
    except InvalidConfig as error:
        # What it is served by can not be used: whoever loads it is told, as by /admin.
        raise InvalidRequest(f"{name} can not be loaded: {error.message}", param="source") from error


async def unload(state: ServerState, name: str, parameters: Mapping[str, Any] | None) -> ModelCard:
    """Returns once the model is gone; what it computes is waited for. Raises HeadwayError."""
    check_fields(parameters or {}, UnloadParameters)
    return await state.service.unload(find_target(state, name).key)


def _entry(card: ModelCard) -> IndexEntry:
    name, version = card.model or card.id, version_of(card)
    if card.state == "ready":
        return IndexEntry(name, version, "READY", "")
    if card.state == "loading":
        return IndexEntry(name, version, "LOADING", "")
    reason = "unloaded: its next request loads it" if card.error is None else card.error.message
    return IndexEntry(name, version, "UNAVAILABLE", reason)
