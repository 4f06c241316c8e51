"""Starts serve.py in an interpreter that has msgspec, but not this package: it is run by its path.

Only this one folder becomes importable there, as headway_wire, and nothing that lies beside it: a site-packages on the
path would bring its own numpy.
"""

import importlib.util
import os
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


if __name__ == "__main__":
    load_package()
    from headway_wire.serve import main

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
