"""API keys: whether what a request brings is one of the server's."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

REFUSAL = "no valid API key: send the header Authorization: Bearer KEY, or x-api-key: KEY"


class ApiKeys:
    """The server's keys. Without any, every request is let in."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [_digest(key.encode()) for key in keys]

    def admit(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether there is exactly one Authorization header, or none and one X-Api-Key, and it holds one of the keys.

        The scheme's case does not matter (RFC 9110, 11.1). Digests are compared, all of them, so that the time
        tells neither a key's length nor how much of it was right. Names of headers are lower case.
        """
        if not self._keys:
            return True
        given = given_key(headers)
        digest = _digest(given or b"")
        matches = [hmac.compare_digest(digest, key) for key in self._keys]
        return given is not None and any(matches)


def given_key(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The API key that a request brings; None: no key, or more than one."""
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        keys = [value for name, value in headers if name == b"x-api-key"]
        return keys[0].strip() if len(keys) == 1 else None
    scheme, _, given = values[0].partition(b" ")
    return given.strip() if len(values) == 1 and scheme.lower() == b"bearer" else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
