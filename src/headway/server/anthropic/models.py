"""Served models as Anthropic's clients list them."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request

from headway.server.headers import find_header
from headway.service.protocol import ModelCard


class ModelInfo(msgspec.Struct, frozen=True, tag_field="type", tag="model"):
    """A served model."""

    id: str
    display_name: str
    created_at: str
    """RFC 3339."""
    max_input_tokens: int | None
    """The context: of prompt and output together."""
    max_tokens: int | None
    lifecycle: str = "active"


class ModelPage(msgspec.Struct, frozen=True):
    """All of them, on one page."""

    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


VERSION_HEADER = b"anthropic-version"
"""Which version of its API a client of Anthropic's means: it tells such a client where one path serves both APIs."""


def asks_for_anthropic(request: Request) -> bool:
    """Whether a client of Anthropic's asks."""
    return find_header(request.scope, VERSION_HEADER) is not None


def model_info(card: ModelCard) -> ModelInfo:
    """One of them."""
    created = datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelInfo(card.id, card.id, created, card.max_model_len, card.max_model_len)


def model_page(cards: Sequence[ModelCard]) -> ModelPage:
    """The list."""
    ids = [card.id for card in cards]
    return ModelPage([model_info(card) for card in cards], ids[0] if ids else None, ids[-1] if ids else None)
