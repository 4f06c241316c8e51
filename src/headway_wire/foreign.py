"""Starts serve.py in an interpreter that has msgspec, but not this package: it is run by its path.

Only this one folder becomes importable there, as headway_wire, and nothing that lies beside it: a site-packages on the
path would bring its own numpy.
"""

import importlib.util
import os
import socket
import struct
import sys


def load_package() -> None:
    """Makes headway_wire importable from this file's folder, and its files under no other name."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != folder]
    path = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("headway_wire", path, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} can not be loaded")
    package = importlib.util.module_from_spec(spec)
    sys.modules["headway_wire"] = package
    spec.loader.exec_module(package)


def tell_missing(error: ImportError) -> None:
    """A Failed message to the parent, written by hand: what would encode it is what is missing."""
    words = f"{sys.executable} can not serve a model: {error}; install msgspec there, or headway env create another"
    message = _map({"type": _text("failed"), "error": _map({"kind": _text("InvalidConfig"), "message": _text(words)})})
    with socket.socket(fileno=int(sys.argv[-1])) as connection:
        connection.sendall(struct.pack("<I", len(message)) + message)


def _text(text: str) -> bytes:
    """A str 16 of msgpack."""
    data = text.encode()[:0xFFFF]
    return b"\xda" + struct.pack(">H", len(data)) + data


def _map(fields: "dict[str, bytes]") -> bytes:
    """A fixmap of msgpack."""
    return bytes([0x80 | len(fields)]) + b"".join(_text(name) + value for name, value in fields.items())


if __name__ == "__main__":
    try:
        load_package()
    except ImportError as error:
        tell_missing(error)
        os._exit(1)
    from headway_wire.serve import main

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
