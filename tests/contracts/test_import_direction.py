"""Rooms are in a line: each may import those before it, type-only imports included."""

import ast
from pathlib import Path

import pytest

import headway
import headway_wire

ROOMS = [
    "errors",
    "config",
    "core",
    "observe",
    "text",
    "checkpoint",
    "model",
    "planner",
    "executor",
    "cache",
    "scheduler",
    "engine",
    "predictors",
    "worker",
    "database",
    "service",
    "llm",
    "cluster",
    "agent",
    "bench",
    "server",
    "console",
    "testing",
    "cli",
]
SOURCE = Path(headway.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
# config.py is read by every room and may be named before them; errors.py is the only thing below it.
STANDARD_FOR_WIRE = {"msgspec"}


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            found.add(node.module or "")
            if node.module == "headway":
                found |= {f"headway.{alias.name}" for alias in node.names}
    return found


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "headway" and len(parts) > 1 else None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_rooms_before_it(path: Path) -> None:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts == ("__init__",):
        return  # the public names, loaded when they are used
    own = ROOMS.index(parts[0])
    for module in imported_modules(path):
        room = room_of(module)
        if room is None or room in ("_native", "__version__"):
            continue
        assert room in ROOMS, f"{path} imports {module}, which is no room"
        assert ROOMS.index(room) <= own, f"{path} imports {module}, a room after its own"


def test_the_wire_needs_nothing_of_headway_and_only_msgspec_beside_the_standard_library() -> None:
    import sys

    for path in Path(headway_wire.__file__).parent.rglob("*.py"):
        for module in imported_modules(path):
            top = module.split(".")[0]
            is_standard = top in sys.stdlib_module_names
            is_lazy = top == "numpy" and path.name == "tensors.py"  # tests/wire shows that the package loads without it
            assert top == "headway_wire" or is_standard or is_lazy or top in STANDARD_FOR_WIRE, f"{path}: {module}"


def test_importing_headway_loads_none_of_its_rooms() -> None:
    import subprocess
    import sys

    code = "import sys, headway; print([m for m in sys.modules if m.startswith(('headway.', 'numpy', 'torch'))])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
