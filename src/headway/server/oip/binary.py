"""The binary tensor data extension: a body of JSON, and behind it tensors' bytes in the order of its inputs.

┌────────── Inference-Header-Content-Length ──────────┐
{"inputs": [{..., "parameters": {"binary_data_size": n}}]}n bytes, n bytes, ...
"""

from headway.errors import InvalidRequest

HEADER = "inference-header-content-length"


class Blobs:
    """The bytes behind the JSON, taken piece by piece; nothing is copied."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._taken = 0

    def take(self, size: int, name: str) -> memoryview:
        """The next `size` bytes. Raises InvalidRequest where there are not so many."""
        left = len(self._data) - self._taken
        if not 0 <= size <= left:
            raise InvalidRequest(
                f"{name[:100]} has a binary_data_size of {size}; {left} bytes are left behind the JSON, whose length"
                f" the header {HEADER} tells",
                param="inputs",
            )
        self._taken += size
        return self._data[self._taken - size : self._taken]

    def check_end(self) -> None:
        """Raises InvalidRequest if some are left over."""
        left = len(self._data) - self._taken
        if left:
            raise InvalidRequest(
                f"{left} bytes of the body belong to no input: binary_data_size of the inputs is {self._taken} in all",
                param="inputs",
            )


def split_body(data: bytes, header_length: str | None) -> tuple[bytes, Blobs]:
    """The JSON, and what is behind it. Raises InvalidRequest. `header_length`: as it came; None: all is JSON."""
    if header_length is None:
        return data, Blobs(memoryview(b""))
    text = header_length.strip()
    length = int(text[:20]) if text.isascii() and text.isdigit() else -1
    if not 0 < length <= len(data):
        raise InvalidRequest(
            f"the header {HEADER} is {text[:40]!r}; the body has {len(data)} bytes: it must be the length of the JSON"
            " that the body begins with",
            param=HEADER,
        )
    return data[:length], Blobs(memoryview(data)[length:])
