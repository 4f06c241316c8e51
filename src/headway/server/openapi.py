"""The OpenAPI description: bodies are read by body.py and not by the framework, so their schemas are told here."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from headway.server.body import Body

_REF = "#/components/schemas/{model}"
_documented: dict[str, type[Body]] = {}


def takes(model: type[Body]) -> dict[str, Any]:
    """A route's openapi_extra: its body is a `model`."""
    _documented[model.__name__] = model
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe_app(app: FastAPI) -> dict[str, Any]:
    """The app's openapi(): the framework's own, and the bodies' schemas. Made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
        models = [(model, "validation") for model in _documented.values()]
        _, definitions = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions.get("$defs", {}))
        app.openapi_schema = document
    return app.openapi_schema
