"""The routes of /v1/responses: they read, convert, answer, and keep."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request, Response

from headway.errors import InvalidRequest, ResponseNotFound, UnsupportedFeature
from headway.server.body import read_body
from headway.server.disconnect import run_watched
from headway.server.errors import json_response
from headway.server.events import EventStream
from headway.server.generation import Generation
from headway.server.keys import given_key
from headway.server.openai.responses.answers import Asked, ItemsSink
from headway.server.openai.responses.convert import in_own_words, to_request
from headway.server.openai.responses.events import ResponseEvents
from headway.server.openai.responses.items import read_items
from headway.server.openai.responses.output import OutputItems
from headway.server.openai.responses.schema import DeletedOut, Item, ItemList, ResponseOut, ResponsesBody
from headway.server.openai.responses.store import ResponseStore, Turn, make_turn
from headway.server.openapi import asks, takes
from headway.server.state import ServerState, state_of

router = APIRouter(prefix="/v1/responses", tags=["OpenAI"])

MAX_LISTED = 100
"""Items of one page; 20 unless another number is asked for."""


@router.post("", openapi_extra=takes(ResponsesBody))
async def create_response(request: Request) -> Response:
    """A conversation's next response."""
    state = state_of(request)
    arrived_s = state.clock.now()
    body = await read_body(request, ResponsesBody)
    is_kept = _is_kept(body, state.responses)
    owner = owner_of(request)
    previous = _previous(body, state.responses, owner)
    defaults = await state.service.generation_defaults(body.model)
    items = read_items(body.input)
    generate = to_request(body, previous.history() if previous is not None else (), items, defaults)
    asked = Asked(body, generate, is_kept)
    keep = _Keeper(state.responses, owner, items, previous).keep if is_kept else _keep_nothing
    with in_own_words():
        if body.stream:
            opened = Generation.open(state, [generate], arrived_s)
            generation = await run_watched(request.receive, opened, request.scope)
            events = partial(ResponseEvents, asked, keep)
            return EventStream(generation, events, write_timeout_s=state.config.slow_reader_timeout_s)
        response = await run_watched(request.receive, _run_whole(state, asked, arrived_s), request.scope)
    keep(response)
    return json_response(response)


async def _run_whole(state: ServerState, asked: Asked, arrived_s: float) -> ResponseOut:
    items = OutputItems(has_logprobs=asked.has_logprobs)
    async with await Generation.open(state, [asked.request], arrived_s) as generation:
        await generation.feed(ItemsSink(items))
        return asked.ended(generation, items)


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Puts a response into the store."""

    store: ResponseStore
    owner: bytes
    items: list[Item]
    previous: Turn | None

    def keep(self, response: ResponseOut) -> None:
        self.store.add(self.owner, response.id, make_turn(response, self.items, self.previous))


def _keep_nothing(_: ResponseOut) -> None:
    """Of a response that is not to be kept."""


@router.get("/{response_id}")
async def get_response(request: Request, response_id: str) -> Response:
    """A response that was kept."""
    for name in ("stream", "starting_after"):
        if request.query_params.get(name, "false") != "false":
            raise UnsupportedFeature(f"{name} is not supported: a kept response is answered whole", param=name)
    return Response(_kept(request, response_id).response, media_type="application/json")


@router.delete("/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forgets a response; those that went on from it keep what it said."""
    _kept(request, response_id)
    state_of(request).responses.delete(owner_of(request), response_id)
    return json_response(DeletedOut(response_id))


@router.post("/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Refused: nothing runs in the background."""
    raise UnsupportedFeature(
        "a response can not be cancelled here: there are none in the background, and closing the connection ends one"
    )


_LISTED = asks(
    limit={"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": 20},
    order={"enum": ["asc", "desc"], "default": "desc"},
    after={"type": "string", "description": "The id of the item that the page begins behind."},
)


@router.get("/{response_id}/input_items", openapi_extra=_LISTED)
async def list_input_items(request: Request, response_id: str) -> Response:
    """The items that a response was asked with, the last one first (order: asc for the first)."""
    items = _kept(request, response_id).input_items()
    limit, is_ascending, after = _page(request)
    if not is_ascending:
        items.reverse()
    if after:
        items = items[_place_of(after, items) + 1 :]
    page = items[:limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return json_response(ItemList(page, first, last, has_more=len(items) > limit))


def _page(request: Request) -> tuple[int, bool, str]:
    """limit, whether the first comes first, and the id behind which the page begins."""
    query = request.query_params
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= MAX_LISTED):
        raise InvalidRequest(f"limit must be a number from 1 to {MAX_LISTED}", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", param="order")
    return int(limit), order == "asc", query.get("after", "")


def _place_of(item_id: str, items: Sequence[Item]) -> int:
    for place, item in enumerate(items):
        if item.id == item_id:
            return place
    raise InvalidRequest("after names no item of this response: send an id of the list", param="after")


def owner_of(request: Request) -> bytes:
    """Whose responses a request may see: those of its API key, all where the server asks for no key."""
    if not state_of(request).config.api_keys:
        return b""
    return hashlib.sha256(given_key(request.scope["headers"]) or b"").digest()


def _kept(request: Request, response_id: str) -> Turn:
    turn = state_of(request).responses.get(owner_of(request), response_id)
    if turn is None:
        raise ResponseNotFound("no response of that id is kept: " + _why(state_of(request).responses))
    return turn


def _is_kept(body: ResponsesBody, store: ResponseStore) -> bool:
    if body.store and not store.is_on:
        raise UnsupportedFeature(
            "store is true, and this server keeps no responses (--response-store 0): leave it out", param="store"
        )
    return body.store is not False and store.is_on


def _previous(body: ResponsesBody, store: ResponseStore, owner: bytes) -> Turn | None:
    """The turn that the body goes on from."""
    if body.previous_response_id is None:
        return None
    turn = store.get(owner, body.previous_response_id)
    if turn is None:
        raise InvalidRequest(
            f"previous_response_id names no response that is kept: {_why(store)}; send the items of the conversation "
            "as input instead",
            param="previous_response_id",
        )
    return turn


def _why(store: ResponseStore) -> str:
    if not store.is_on:
        return "this server keeps none (--response-store 0)"
    return (
        f"the {store.max_responses:,} last used of up to {store.max_bytes:,} bytes are, until the server ends, and not "
        "those with store: false"
    )
