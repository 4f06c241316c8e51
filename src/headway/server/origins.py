"""Which pages may change what is served.

A browser sends a simple POST of any page without asking first, and only hides the answer from it: no rule of CORS holds
such a request back. With a key the page would have to know it.
"""

import re

from starlette.requests import Request

from headway.errors import HostNotAllowed
from headway.server.headers import find_header
from headway.server.state import state_of

LOCAL_ORIGINS = r"^https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$"


def check_origin(request: Request) -> None:
    """Raises HostNotAllowed for a page of another origin, where no key is needed."""
    config, header = state_of(request).config, find_header(request.scope, b"origin")
    if header is None or config.api_keys or config.admin_api_keys:
        return
    if header not in config.allowed_origins and not re.fullmatch(LOCAL_ORIGINS, header):
        raise HostNotAllowed(
            f"a page of {header[:200]} may not change what is served here: add it with --allowed-origins"
        )
