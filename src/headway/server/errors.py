"""The one table from the error tree to HTTP, and the usual shape of an error body (OpenAI's).

{"error": {"message", "type", "param", "code"}}, at most a few kB, without class names, traces or the caller's input.
Every class of the tree has its own row, which a contract test checks: a new class can not slip through as a 500.
refusals.py gives a Problem the shape of the API that was called.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headway import errors
from headway.errors import CapacityError, HeadwayError, UpstreamError

MAX_MESSAGE_LENGTH = 2000
"""Characters of an error's message that leave the house."""
DEFAULT_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """How one error class is told over HTTP."""

    status: int
    type: str
    public_message: str | None = None
    """Said instead of the error's own words, where those may hold file names or traces."""


_BAD_REQUEST = Row(400, "invalid_request_error")
_UNAVAILABLE = Row(503, "service_unavailable_error")
_MODEL_FAULT = Row(500, "server_error")
_UPSTREAM_FAULT = Row(502, "upstream_error")
_OUR_FAULT = Row(500, "server_error", "an internal error: the server's log tells more under this request's id")

ERROR_TABLE: dict[type[HeadwayError], Row] = {
    errors.HeadwayError: _OUR_FAULT,
    errors.CallerError: _BAD_REQUEST,
    errors.InvalidRequest: _BAD_REQUEST,
    errors.ContextLengthExceeded: _BAD_REQUEST,
    errors.UnsupportedFeature: _BAD_REQUEST,
    errors.TemplateRefused: _BAD_REQUEST,
    errors.ModelNotFound: Row(404, "invalid_request_error"),
    errors.ResponseNotFound: Row(404, "invalid_request_error"),
    errors.PayloadTooLarge: Row(413, "invalid_request_error"),
    errors.UnsupportedEncoding: Row(415, "invalid_request_error"),
    errors.Unauthorized: Row(401, "authentication_error"),
    errors.PermissionDenied: Row(403, "permission_error"),
    errors.HostNotAllowed: Row(403, "invalid_request_error"),
    # At a request: of an entry of the catalog, whose model could not be loaded.
    errors.InvalidConfig: _MODEL_FAULT,
    errors.CapacityError: _UNAVAILABLE,
    errors.ModelNotReady: _UNAVAILABLE,
    errors.QueueFull: _UNAVAILABLE,
    errors.ShuttingDown: _UNAVAILABLE,
    errors.PreemptionLimit: _UNAVAILABLE,
    errors.DeadlineExceeded: Row(504, "timeout_error"),
    errors.CatalogUnavailable: _UNAVAILABLE,
    errors.OutOfMemory: _UNAVAILABLE,
    errors.ModelError: _MODEL_FAULT,
    errors.UnsupportedModel: _MODEL_FAULT,
    errors.CorruptCheckpoint: _MODEL_FAULT,
    errors.TensorMismatch: _MODEL_FAULT,
    errors.DownloadFailed: _MODEL_FAULT,
    errors.InferenceFailed: _MODEL_FAULT,
    errors.NonFiniteLogits: _MODEL_FAULT,
    errors.UpstreamError: _UPSTREAM_FAULT,
    errors.UpstreamFailed: _UPSTREAM_FAULT,
    errors.UpstreamTimeout: Row(504, "upstream_error"),
    errors.UpstreamUnavailable: Row(503, "upstream_error"),
    errors.UpstreamLimited: Row(429, "rate_limit_error"),
    errors.InternalError: _OUR_FAULT,
    errors.WorkerDied: Row(
        503,
        "service_unavailable_error",
        "the model's process ended while this request was open; it is being restarted: try again",
    ),
    errors.WorkerStalled: Row(
        503,
        "service_unavailable_error",
        "the model's process made no progress and was killed; it is being restarted: try again",
    ),
    errors.InvariantBroken: _OUR_FAULT,
}


class ErrorDetail(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """What every failed request answers, and what a stream sends when it fails after the 200."""

    error: ErrorDetail


def row_of(error: BaseException) -> Row:
    """The table's row; anything outside the tree is our fault."""
    return ERROR_TABLE.get(type(error), _OUR_FAULT) if isinstance(error, HeadwayError) else _OUR_FAULT


def error_body(error: BaseException) -> ErrorBody:
    """The body for an error, bounded, and silent about what is ours to know."""
    row = row_of(error)
    if not isinstance(error, HeadwayError):
        return ErrorBody(ErrorDetail(row.public_message or "", row.type, None, "internal_error"))
    message = _clip(row.public_message or error.message)
    param = None if error.param is None else _clip(error.param, 200)
    return ErrorBody(ErrorDetail(message, row.type, param, error.code))


@dataclass(frozen=True, slots=True)
class Problem:
    """What a request is refused with, before it gets the shape of an API."""

    status: int
    detail: ErrorDetail
    headers: Mapping[str, str] = field(default_factory=dict)


def problem_of(error: BaseException) -> Problem:
    """Status, Retry-After and WWW-Authenticate where they belong, and what is told."""
    row = row_of(error)
    headers = {}
    if row.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        headers["retry-after"] = str(_retry_after_s(error))
    if row.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return Problem(row.status, error_body(error).error, headers)


def http_problem(error: Exception) -> Problem:
    """The framework's own refusals: no such route, wrong method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    messages = {
        404: ("there is no such route: /openapi.json lists those there are", "not_found"),
        405: ("this route does not answer to that method; the Allow header lists those it does", "method_not_allowed"),
    }
    message, code = messages.get(status, (HTTPStatus(status).phrase, "http_error"))
    return Problem(status, ErrorDetail(message, "invalid_request_error", None, code), headers)


def problem_response(problem: Problem) -> Response:
    """In OpenAI's shape."""
    return json_response(ErrorBody(problem.detail), status=problem.status, headers=problem.headers)


def error_response(error: BaseException) -> Response:
    """problem_response() of an error."""
    return problem_response(problem_of(error))


def json_response(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`body` by msgspec (structs, dicts) as an answer."""
    return Response(msgspec.json.encode(body), status_code=status, headers=headers, media_type="application/json")


def _retry_after_s(error: BaseException) -> int:
    """Whole seconds, at least 1."""
    wished = error.retry_after_s if isinstance(error, CapacityError | UpstreamError) else None
    return max(1, math.ceil(wished if wished is not None else DEFAULT_RETRY_AFTER_S))


def _clip(text: str, limit: int = MAX_MESSAGE_LENGTH) -> str:
    """`text` of at most `limit` characters that can be encoded."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 3] + "..."
