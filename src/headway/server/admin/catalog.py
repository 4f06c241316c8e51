"""The catalog over HTTP: entries are added, changed and removed, models loaded, unloaded and rolled back.

POST   /admin/models                   adds an entry (service/catalog_form has its fields)
GET    /admin/models/{name}            one model: its state, and its entry
PATCH  /admin/models/{name}            fields of an entry
DELETE /admin/models/{name}            an entry (id@version), or all versions of an id
POST   /admin/models/{name}/load       and /unload, /rollback
GET    /admin/catalog?format=json      all entries, as a file; POST takes such a file

A change acts at once on this server. An entry may name code to be run, so changes need an API key wherever others can
reach the server (an admin key, if it has any: middleware.Gate), and come from no page of another origin.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from headway.errors import InvalidConfig, InvalidRequest, ModelError, Unauthorized, UnsupportedFeature
from headway.server.admin.cards import describe
from headway.server.body import parse_json, read_bytes
from headway.server.disconnect import run_watched
from headway.server.errors import json_response
from headway.server.hosts import is_loopback
from headway.server.openapi import asks
from headway.server.origins import check_origin
from headway.server.state import state_of
from headway.service.catalog import Catalog
from headway.service.catalog_form import dump_entries, entry_out, list_entries, read_entry

router = APIRouter(tags=["Catalog"])
_OBJECT = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
_FORMS = {"json": "application/json", "yaml": "application/yaml"}


@router.post("/admin/models", openapi_extra=_OBJECT)
async def add(request: Request) -> Response:
    """Adds an entry; its model can be asked at once."""
    catalog = _changeable(request)
    entry = await catalog.add(read_entry(await _read(request)))
    return json_response(entry_out(entry), status=201)


@router.get("/admin/catalog", openapi_extra=asks(format={"type": "string", "enum": list(_FORMS)}))
async def export(request: Request) -> Response:
    """All entries; POST to the same path takes them."""
    form = request.query_params.get("format", "json")
    if form not in _FORMS:
        raise InvalidRequest(f"format is {form[:64]!r}; it must be one of {', '.join(_FORMS)}", param="format")
    text = await asyncio.to_thread(dump_entries, _catalog(request).entries, form)  # of thousands it takes seconds
    return Response(text, media_type=_FORMS[form])


@router.post("/admin/catalog", openapi_extra=_OBJECT)
async def take(request: Request) -> Response:
    """Adds entries, or puts them in the place of those of the same id and version: all, or none."""
    catalog = _changeable(request)
    content = await _read(request)
    entries = await asyncio.to_thread(list_entries, content, place="the body")
    num_added, num_replaced = await catalog.take(entries)
    return json_response({"added": num_added, "replaced": num_replaced})


@router.post("/admin/models/{name:path}/load")
async def load(request: Request, name: str) -> Response:
    """Loads the model, and answers once it is ready."""
    check_origin(request)
    service = state_of(request).service
    try:
        card = await run_watched(request.receive, service.load(name), request.scope)
    except (ModelError, InvalidConfig) as error:
        # Whoever loads a model named it: its files are his to mend, and his request's fault.
        raise InvalidRequest(f"{name} can not be loaded: {error.message}", param="source") from error
    return json_response(describe(card))


@router.post("/admin/models/{name:path}/unload")
async def unload(request: Request, name: str) -> Response:
    """Ends the model once nothing uses it; the next request loads it again."""
    check_origin(request)
    service = state_of(request).service
    return json_response(describe(await run_watched(request.receive, service.unload(name), request.scope)))


@router.post("/admin/models/{name:path}/rollback")
async def roll_back(request: Request, name: str) -> Response:
    """The id means the version that it meant before."""
    return json_response(entry_out(await _changeable(request).roll_back(name)))


@router.get("/admin/models/{name:path}")
async def show(request: Request, name: str) -> Response:
    """One model: its state, and its entry if the catalog has one."""
    state = state_of(request)
    card = state.service.card(name)
    found = None if state.catalog is None else state.catalog.find_served(card.model, card.version)
    return json_response(describe(card) | {"entry": None if found is None else entry_out(found)})


@router.patch("/admin/models/{name:path}", openapi_extra=_OBJECT)
async def change(request: Request, name: str) -> Response:
    """Fields of an entry are these from now on; null is the field's default."""
    catalog = _changeable(request)
    fields = await _read(request)
    if not isinstance(fields, Mapping):
        raise InvalidRequest("the body must be an object with the fields that change")
    return json_response(entry_out(await catalog.update(name, fields)))


@router.delete("/admin/models/{name:path}")
async def remove(request: Request, name: str) -> Response:
    """Removes an entry (id@version), or all versions of an id; requests under way end as they would."""
    await _changeable(request).remove(name)
    return Response(status_code=204)


async def _read(request: Request) -> Any:
    return parse_json(await read_bytes(request))


def _catalog(request: Request) -> Catalog:
    catalog = state_of(request).catalog
    if catalog is None:
        raise UnsupportedFeature("this server serves the models that it was started with, and has no catalog")
    return catalog


def _changeable(request: Request) -> Catalog:
    """The catalog, for who may change it. Raises Unauthorized, HostNotAllowed, UnsupportedFeature."""
    config = state_of(request).config
    if not (config.api_keys or config.admin_api_keys or is_loopback(config.host)):
        raise Unauthorized(
            f"this server listens on {config.host} without a key, so nobody may change its catalog over HTTP: start it "
            "with --api-key or --admin-api-key, or use `headway models` on its machine"
        )
    check_origin(request)
    return _catalog(request)
