"""Refusals as the protocol tells them: {"error": "..."}, with the one error table's words and statuses."""

import msgspec

from headway.server.errors import error_body

PATH = "/v2"


class ToldError(msgspec.Struct, frozen=True):
    """The whole body, and the last event of a stream that failed."""

    error: str


def is_oip(path: str) -> bool:
    """Whether a path is one of the protocol's."""
    return path == PATH or path.startswith(PATH + "/")


def told_error(error: BaseException) -> ToldError:
    """What is told of an error."""
    return ToldError(error_body(error).error.message)
