"""What another server answered instead of what was asked for, as an error of ours: by status, with its own words.

400, 422      the caller's: InvalidRequest             429           UpstreamLimited, with its Retry-After
413           the caller's: PayloadTooLarge            408, 504      UpstreamTimeout
401, 403      our key is wrong: UpstreamFailed         503, 529      UpstreamUnavailable, with its Retry-After
the rest      UpstreamFailed, which is a 502 whatever it was
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from headway.errors import (
    ContextLengthExceeded,
    HeadwayError,
    InvalidRequest,
    PayloadTooLarge,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)

MAX_BODY_BYTES = 64 * 1024
"""Of an error's body, what is read."""
_MAX_WORDS = 500
_RETRIED = frozenset((429, 502, 503, 529))
_DOWN = frozenset((502, 503, 504, 529))
"""That the server is not well. A 500 may be one request's own fault, which must not close the way for the others."""
_TAGS = re.compile(r"<(?:script|style)\b.*?</|<[^>]*>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error, and what it means for the next call."""

    error: HeadwayError
    can_retry: bool
    """The same call may work in a moment."""
    is_servers_fault: bool
    """The circuit breaker counts it."""


def refusal_of(server: str, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
    """Of an answer whose status is 300 or more.

    Args:
        server: its name in the error's words.
        headers: by names in small letters.
    """
    fields = error_fields(body)
    return Refusal(
        _error(server, status, headers, fields),
        can_retry=status in _RETRIED,
        is_servers_fault=status in _DOWN,
    )


def stream_error(server: str, error: object) -> HeadwayError:
    """Of an error event in the middle of a stream; its code says whose it is, if it has one."""
    fields = _fields_of(error)
    code = fields.code if isinstance(fields.code, int) and 400 <= fields.code < 600 else 500
    return _error(server, code, {}, fields)


@dataclass(frozen=True, slots=True)
class ErrorFields:
    """What servers put into an error's body."""

    message: str
    param: str | None = None
    code: object = None


def error_fields(body: bytes) -> ErrorFields:
    """The words of a body: JSON of any server's usual shape, HTML without its tags, or plain text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if "<" in text:
            text = html.unescape(_TAGS.sub(" ", text))
        return ErrorFields(_clip(text))
    return _fields_of(told)


def _fields_of(told: object) -> ErrorFields:
    """OpenAI's {"error": {...}}, Triton's {"error": "..."}, FastAPI's {"detail": ...}, or the inner object alone."""
    inner: Any = told.get("error", told) if isinstance(told, dict) else told
    if not isinstance(inner, dict):
        return ErrorFields(_clip(inner if isinstance(inner, str) else str(inner)))
    words = inner.get("message") or inner.get("detail") or inner
    param, code = inner.get("param"), inner.get("code")
    return ErrorFields(_clip(str(words)), param[:200] if isinstance(param, str) else None, code)


def _clip(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_WORDS else text[: _MAX_WORDS - 3] + "..."


def _error(server: str, status: int, headers: Mapping[str, str], fields: ErrorFields) -> HeadwayError:
    words = fields.message or _phrase(status)
    wait_s = _retry_after_s(headers.get("retry-after"))
    match status:
        case 400 | 422:
            kind = ContextLengthExceeded if fields.code == ContextLengthExceeded.code else InvalidRequest
            return kind(f"{server} refused the request: {words}", param=fields.param)
        case 413:
            return PayloadTooLarge(f"{server} refused the request: {words}")
        case 401 | 403:
            return UpstreamFailed(
                f"{server} refuses this server's key ({status}): {words}. Correct the variable that "
                "options.api_key_env names"
            )
        case 408 | 504:
            return UpstreamTimeout(f"{server} answered {status}: {words}")
        case 429:
            return UpstreamLimited(f"{server} is asked too much of (429): {words}", retry_after_s=wait_s)
        case 503 | 529:
            return UpstreamUnavailable(f"{server} can not answer now ({status}): {words}", retry_after_s=wait_s)
        case _ if 300 <= status < 400:
            target = headers.get("location", "nowhere")[:200]
            return UpstreamFailed(
                f"{server} answered {status}, a redirection to {target}, which is not followed: write the right address"
            )
    return UpstreamFailed(f"{server} answered {status}: {words}", status=status)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no words"


def _retry_after_s(header: str | None) -> float | None:
    """Of whole seconds; a date, which servers of models do not send, is none."""
    if header is None or not re.fullmatch(r"\d{1,6}(\.\d+)?", header.strip()):
        return None
    return float(header)
