"""A request's headers as ASGI has them: looked through, where starlette's Headers would be made for one look."""

from starlette.types import Scope


def find_header(scope: Scope, name: bytes) -> str | None:
    """The first value of that name (lower case), as text; None: there is none."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None
