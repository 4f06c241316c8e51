"""Which models an OpenAI-compatible server has, and which of them is meant."""

import msgspec

from headway.errors import UpstreamFailed
from headway.service.remote.upstream import Upstream

_MAX_NAMES_TOLD = 20
_NO_LIST = frozenset((404, 405, 501))
"""Statuses of a server that has no list of its models."""


class RemoteCard(msgspec.Struct):
    """One model of the list."""

    id: str
    max_model_len: int | None = None
    """As vLLM and Headway tell it."""


class _Listing(msgspec.Struct):
    data: list[RemoteCard]


async def list_models(upstream: Upstream, timeout_s: float, timeout_name: str) -> list[RemoteCard] | None:
    """None: the server has no list. Raises UpstreamError."""
    try:
        _, answer = await upstream.call("GET", "models", timeout_s=timeout_s, timeout_name=timeout_name)
    except UpstreamFailed as error:
        if error.status in _NO_LIST:
            return None
        raise
    try:
        return msgspec.json.decode(answer, type=_Listing).data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamFailed(
            f"{upstream.title} answered /models with what is no list of models ({error}): options.url must be the "
            "address of an OpenAI-compatible API, mostly one that ends with /v1"
        ) from error


def choose_model(server: str, cards: list[RemoteCard] | None, wanted: str | None) -> RemoteCard:
    """The model that is wanted, or the only one. Raises UpstreamFailed that lists those there are."""
    if cards is None:
        if wanted is None:
            raise UpstreamFailed(f"{server} has no list of its models: name one as options.model")
        return RemoteCard(wanted)
    for card in cards:
        if card.id == wanted or (wanted is None and len(cards) == 1):
            return card
    names = ", ".join(card.id for card in cards[:_MAX_NAMES_TOLD]) or "none"
    what = "has several models" if wanted is None and cards else f"has no model {(wanted or '')[:200]!r}"
    raise UpstreamFailed(f"{server} {what}; name one of these as options.model: {names}")
