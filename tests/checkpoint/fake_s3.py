"""fsspec's own store in memory, in the place of s3."""

import importlib

from fsspec.implementations.memory import MemoryFileSystem

REGISTRY = importlib.import_module("fsspec.registry")  # fsspec's attribute of this name is another thing


class FakeS3(MemoryFileSystem):
    protocol = "s3"
    store: dict[str, object] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("s3://").strip("/")
