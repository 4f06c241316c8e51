"""The OpenAPI description: bodies are read by body.py and not by the framework, so their schemas are told here."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from headway.server.body import Body

DESCRIPTION = """
Bodies are JSON (RFC 8259), whatever the Content-Type says; of a key that comes twice, the last one counts.
Types are strict: `true` is no integer, `"3"` is no number, `16.0` is no integer. `null` is the same as leaving out.

OpenAI's fields that change nothing in an answer (`user`, `store`, `metadata`, `service_tier`, ...) are taken.
Fields that Headway does not support are refused by name with a 400, and so is any other unknown field.

Every error is `{"error": {"message", "type", "param", "code"}}`. A stream that fails on its way sends one such event;
`data: [DONE]` is the last event of every stream, but not of `/v1/responses` and `/v1/messages`, whose events have names
of their own, nor of `/v2`. Errors of `/v1/messages` have Anthropic's form, and those of `/v2` are `{"error": "..."}`.
Keys, where the server has any, go in `Authorization: Bearer KEY` or `x-api-key: KEY`. A server with admin keys
wants one of them for what changes models.
"""
"""The rules of all routes, as /docs shows them."""

_REF = "#/components/schemas/{model}"
_documented: dict[str, type[Body]] = {}


def takes(model: type[Body]) -> dict[str, Any]:
    """A route's openapi_extra: its body is a `model`."""
    _documented[model.__name__] = model
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def asks(**parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A route's openapi_extra: its query has these parameters (name: schema), all of which may be left out."""
    return {
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in parameters.items()
        ]
    }


def in_path(name: str, description: str) -> dict[str, Any]:
    """A route's openapi_extra: its path has this parameter, which the endpoint reads itself."""
    parameter = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    return {"parameters": [parameter | {"description": description}]}


def describe_app(app: FastAPI) -> dict[str, Any]:
    """The app's openapi(): the framework's own, and the bodies' schemas. Made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
        models = [(model, "validation") for model in _documented.values()]
        _, definitions = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]
        _leave_out_422(document)
        document.setdefault("components", {})["schemas"] = definitions.get("$defs", {})
        app.openapi_schema = document
    return app.openapi_schema


def _leave_out_422(document: dict[str, Any]) -> None:
    """The framework's own answer to paths that it can not read, which ours are not: they are texts."""
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
