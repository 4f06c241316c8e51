"""API keys: whether what a request brings is one of the server's, and one that may do what it asks.

1. asked of admins, and there are admin keys    one of them: let in; a user's: PermissionDenied; else Unauthorized
2. else, and there are user keys                one of them, or an admin's: let in; else Unauthorized
3. else                                         let in
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from headway.errors import HeadwayError, PermissionDenied, Unauthorized

REFUSAL = "no valid API key: send the header Authorization: Bearer KEY, or x-api-key: KEY"
ADMIN_REFUSAL = f"this needs an admin key of the server: {REFUSAL}"
USER_REFUSAL = (
    "this key may not change the catalog, load or unload models, nor see how they are run: send one of --admin-api-key"
)


class ApiKeys:
    """The server's keys. Without any, every request is let in."""

    def __init__(self, keys: Iterable[str], admin_keys: Iterable[str] = ()) -> None:
        self._keys = [_digest(key.encode()) for key in keys]
        self._admin_keys = [_digest(key.encode()) for key in admin_keys]

    def refusal(self, headers: Sequence[tuple[bytes, bytes]], *, for_admin: bool = False) -> HeadwayError | None:
        """Why a request with these headers is not let in; numbered as in the module. Names of headers are lower case.

        `for_admin`: what it asks is for admins.
        """
        is_guarded = for_admin and bool(self._admin_keys)
        if not is_guarded and not self._keys:  # 3
            return None
        given = given_key(headers)
        is_admin, is_user = _is_among(given, self._admin_keys), _is_among(given, self._keys)
        if is_admin or (is_user and not is_guarded):
            return None
        if is_guarded:  # 1
            return PermissionDenied(USER_REFUSAL) if is_user else Unauthorized(ADMIN_REFUSAL)
        return Unauthorized(REFUSAL)  # 2


def given_key(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The API key that a request brings; None: no key, or more than one.

    That is exactly one Authorization header, or none and one X-Api-Key. The scheme's case does not matter (RFC 9110,
    11.1).
    """
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        keys = [value for name, value in headers if name == b"x-api-key"]
        return keys[0].strip() if len(keys) == 1 else None
    scheme, _, given = values[0].partition(b" ")
    return given.strip() if len(values) == 1 and scheme.lower() == b"bearer" else None


def _is_among(given: bytes | None, digests: Sequence[bytes]) -> bool:
    """Digests are compared, all of them, so that the time tells neither a key's length nor how much of it was right."""
    digest = _digest(given or b"")
    matches = [hmac.compare_digest(digest, each) for each in digests]
    return given is not None and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
