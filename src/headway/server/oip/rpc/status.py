"""The one error table's statuses as gRPC's."""

from collections.abc import Mapping

import grpc

from headway.errors import HeadwayError, UnsupportedFeature
from headway.server.errors import problem_of

_CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
MAX_DETAIL_BYTES = 4000
"""A status travels in headers, of which clients take 8 kB, and is written in percent signs where it is no ASCII."""


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Code, details, and trailing metadata: retry-after, in seconds, where trying again can help."""
    problem = problem_of(error)
    code = _CODES.get(problem.status, grpc.StatusCode.INTERNAL)
    if isinstance(error, UnsupportedFeature):
        code = grpc.StatusCode.UNIMPLEMENTED
    if not isinstance(error, HeadwayError):
        code = grpc.StatusCode.INTERNAL
    trailing = tuple((name, value) for name, value in problem.headers.items() if name == "retry-after")
    return code, _clip(problem.detail.message), trailing


def _clip(text: str) -> str:
    """As much of it as fits, by what it takes on the wire."""
    taken = 0
    for place, character in enumerate(text):
        taken += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode())
        if taken > MAX_DETAIL_BYTES:
            return text[:place] + "..."
    return text
