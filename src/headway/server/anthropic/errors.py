"""Refusals as Anthropic tells them: {"type": "error", "error": {"type", "message"}, "request_id"}.

The words are those of the one error table; fields in them have the names of this API.
"""

import re

import msgspec
from msgspec import UNSET, UnsetType

from headway.server.errors import ErrorDetail, Problem

MAX_MESSAGE_LENGTH = 2000
OVERLOADED = 529
"""Anthropic's status for a server with too much to do."""

_OVERLOADED_CODES = frozenset(("queue_full", "preemption_limit", "out_of_memory"))
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}
_NAMES = {
    "continue_final_message": "messages",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""Of what is called otherwise inside of the house, and begins the words about it."""
_TOOL_PATH = re.compile(r"(tools\[\d+\])\.function(?:\.(parameters)\b)?")


class ThreadDetails(msgspec.Struct, frozen=True):
    """What Anthropic's clients look for where a server keeps no conversations: they go on without."""

    error_code: str = "thread_unsupported_request"
    unsupported: tuple[str, ...] = ("thread",)


class AnthropicError(msgspec.Struct, frozen=True):
    """Its inner object."""

    type: str
    message: str
    details: ThreadDetails | UnsetType = UNSET


class AnthropicErrorBody(msgspec.Struct, frozen=True):
    """A failed request's answer, and the event that a failed stream ends with."""

    error: AnthropicError
    request_id: str | None = None
    type: str = "error"


def told_status(problem: Problem) -> int:
    """The HTTP status: 529 where the server has too much to do, else the table's."""
    return OVERLOADED if problem.detail.code in _OVERLOADED_CODES else problem.status


def told_body(problem: Problem, request_id: str | None) -> AnthropicErrorBody:
    """The body of a refusal."""
    status = told_status(problem)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = ThreadDetails() if problem.detail.param == "thread" else UNSET
    return AnthropicErrorBody(AnthropicError(kind, told_message(problem.detail), details), request_id)


def told_message(detail: ErrorDetail) -> str:
    """The words, with this API's names; what is too long begins as clients know it."""
    message = _TOOL_PATH.sub(lambda path: f"{path[1]}.input_schema" if path[2] else path[1], detail.message)
    name = _NAMES.get(detail.param or "")
    if name is not None:
        message = message.replace(str(detail.param), name, 1)
    if detail.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    return message[:MAX_MESSAGE_LENGTH]
