"""From a request's bytes to a checked body. One parser, one rule each, for every route.

- JSON as RFC 8259 has it: no NaN, no Infinity, UTF-8, no lone surrogates, at most 1,024 levels; of a key that comes
  twice the last one counts, for all layers, since nobody else parses the body. The Content-Type is not looked at.
- The bytes are the JSON's own: a Content-Encoding (gzip) is a 415.
- Types are strict: true is no integer, "3" is no number, 16.0 is no integer; 1 is a number.
- null is the same as leaving the field out.
- A field that others have and Headway has not is refused by name, unless its value asks for nothing; a field of
  OpenAI's that changes nothing in an answer is taken and left unused; any other unknown field is refused.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from headway.errors import InvalidRequest, UnsupportedEncoding, UnsupportedFeature
from headway.server.headers import find_header

MAX_NAME_LENGTH = 64
"""Characters of a caller's field name that an error repeats."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that is refused by name."""

    advice: str
    """What to do instead."""
    neutral: tuple[object, ...] = ()
    """Values that ask for nothing, and so are taken."""


def without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """An object's fields that are there: null is the same as absent."""
    return {name: value for name, value in fields.items() if value is not None}


class Body(BaseModel):
    """Base of all request bodies."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Known fields that change nothing here."""
    refused: ClassVar[Mapping[str, Refusal]] = {}

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, fields: object) -> object:
        """null is the same as absent, at every depth, for unknown fields too: clients send all that they know of."""
        return without_nulls(fields) if isinstance(fields, dict) else fields


def _check_name(name: str) -> str:
    if not name:
        raise InvalidRequest("model is empty; it must be one of GET /v1/models", param="model")
    return name


ModelName = Annotated[str, AfterValidator(_check_name)]
"""The model that a body names; not the empty text, also where the name may be left out."""

BodyT = TypeVar("BodyT", bound=Body)


async def read_body(request: Request, model: type[BodyT]) -> BodyT:
    """The request's body as a `model`.

    Raises InvalidRequest, UnsupportedEncoding, ClientDisconnect, or PayloadTooLarge through the receive channel.
    """
    return parse_body(await read_bytes(request), model)


async def read_bytes(request: Request) -> bytes:
    """The request's body as it came. Raises as read_body(), but for InvalidRequest."""
    check_encoding(request.scope)
    return await _receive_all(request.receive)


def check_encoding(scope: Scope) -> None:
    """Raises UnsupportedEncoding for a compressed body."""
    encoding = find_header(scope, b"content-encoding")
    if encoding and encoding.lower() != "identity":
        raise UnsupportedEncoding(
            f"the body's Content-Encoding is {_name(encoding)}; send it as it is, without that header"
        )


async def _receive_all(receive: Receive) -> bytes:
    """As starlette's Request.body(), which makes an asynchronous generator for the one piece that most bodies are."""
    pieces: list[bytes] = []
    more_body = True
    while more_body:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        more_body = message.get("more_body", False)
    return b"".join(pieces)


def parse_body(data: bytes, model: type[BodyT]) -> BodyT:
    """`data` as a `model`. Raises InvalidRequest that names the field."""
    fields = parse_json(data)
    if not isinstance(fields, dict):
        raise InvalidRequest(f"the body is {describe(fields)}; it must be a JSON object")
    return check_fields(fields, model)


def check_fields(fields: Mapping[str, Any], model: type[BodyT]) -> BodyT:
    """parse_body(), of what is parsed already."""
    known, kept = _field_names(model), {}
    for name, value in fields.items():
        if value is None or name in model.ignored:
            continue
        refusal = model.refused.get(name)
        if refusal is not None:
            _check_refused(name, value, refusal)
            continue
        if name not in known:
            raise InvalidRequest(f"{_name(name)} is no field of this route: leave it out", param=_name(name))
        kept[name] = value
    try:
        return model.model_validate(kept)
    except ValidationError as error:
        raise _to_invalid_request(error) from None


@cache
def _field_names(model: type[Body]) -> frozenset[str]:
    return frozenset(model.model_fields)


def parse_json(data: bytes) -> Any:
    """Raises InvalidRequest that says where the text stops being JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "infinity" in error.msg:
            raise _infinite_number(data) from None
        raise InvalidRequest(f"the body is no valid JSON: {error.msg} (character {error.pos})") from None


def describe(value: object) -> str:
    """A value in an error: numbers and booleans as they are, what may be long or private by its type alone."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"{value:.20g}" if isinstance(value, float) else str(value)[:40]
    names: tuple[tuple[type, str], ...] = ((str, "a string"), (list, "a list"), (dict, "an object"))
    return next((name for kind, name in names if isinstance(value, kind)), "another type")


def _check_refused(name: str, value: object, refusal: Refusal) -> None:
    if not any(type(value) is type(neutral) and value == neutral for neutral in refusal.neutral):
        raise UnsupportedFeature(f"{name} is not supported: {refusal.advice}", param=name)


def _name(name: str) -> str:
    """A name or word of the caller's, as an error repeats it."""
    if not name:
        return '""'
    return name if len(name) <= MAX_NAME_LENGTH else name[:MAX_NAME_LENGTH] + "..."


_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_LIMITS = {
    "string_too_long": "have at most {max_length}",
    "string_too_short": "have at least {min_length}",
    "greater_than_equal": "be at least {ge}",
    "less_than": "be below {lt}",
}
_INT64_END = 2.0**63
"""JSON's integers from here on are read as floats."""


def _to_invalid_request(error: ValidationError) -> InvalidRequest:
    """The first of pydantic's errors, in our words: field, what it is, what it must be."""
    first: ErrorDetails = error.errors(include_url=False, include_context=True)[0]
    path = _path(first["loc"])
    kind = first["type"]
    if kind == "missing":
        return InvalidRequest(f"{path} is missing: it must be given", param=path)
    if kind == "extra_forbidden":
        return InvalidRequest(f"{path} is no field of this object: leave it out", param=path)
    value = first["input"]
    if kind == "int_type" and isinstance(value, float) and abs(value) >= _INT64_END:
        return InvalidRequest(f"{path} is {describe(value)}; it must be an integer of at most 64 bits", param=path)
    if kind in _EXPECTED:
        return InvalidRequest(f"{path} is {describe(value)}; it must be {_EXPECTED[kind]}", param=path)
    if kind in _LIMITS:
        limit = _LIMITS[kind].format(**first.get("ctx", {}))
        what = f"has {len(value)} characters" if isinstance(value, str) else f"is {describe(value)}"
        return InvalidRequest(f"{path} {what}; it must {limit}", param=path)
    more = len(error.errors(include_url=False, include_context=False, include_input=False)) - 1
    tail = f" (and {more} more)" if more else ""
    return InvalidRequest(f"{path}: {first['msg'][:300]}{tail}", param=path)


def _path(location: tuple[int | str, ...]) -> str:
    """messages[0].content; a caller's own key is cut."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f"{'.' if path else ''}{_name(step)}"
    return path


def _infinite_number(data: bytes) -> InvalidRequest:
    """A number beyond a double: the lenient parser is only asked where it stands."""
    try:
        path = _find_infinity(json.loads(data))
    except (ValueError, RecursionError):
        path = None
    if path is None:
        return InvalidRequest("the body is no valid JSON: a number is over what a double can hold")
    return InvalidRequest(f"{path} is over what a double can hold; it must be a finite number", param=path)


def _find_infinity(value: object) -> str | None:
    """Path of the first infinite number at the top level or one below it."""
    if not isinstance(value, dict):
        return None
    for name, inner in value.items():
        leaves = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else (inner,)
        if any(isinstance(leaf, float) and math.isinf(leaf) for leaf in leaves):
            return _name(name)
    return None
