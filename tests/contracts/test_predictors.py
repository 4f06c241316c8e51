"""Predictors of tensors run in interpreters where Headway is not installed: what their files may import, and when."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway
from headway.service.frameworks import FRAMEWORKS

FOLDER = Path(headway.__file__).parent / "predictors"
EVERYWHERE = {"msgspec", "numpy", "headway_wire"}


def file_of(module: str) -> Path:
    return FOLDER / f"{module.removeprefix('headway.predictors.')}.py"


def imports(path: Path, *, at_once: bool) -> set[str]:
    """Modules that the file imports; `at_once`: those alone that are imported with the file."""
    tree = ast.parse(path.read_text())
    nodes = _at_once(tree.body) if at_once else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def _at_once(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not is_for_types and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _at_once([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])


def files_of(framework: str) -> set[Path]:
    """The framework's file, and those beside it that it imports."""
    files, left = set(), [file_of(FRAMEWORKS[framework].predictor.partition(":")[0])]
    while left:
        path = left.pop()
        if path not in files:
            files.add(path)
            left += [file_of(name) for name in imports(path, at_once=False) if name.startswith("headway.predictors.")]
    return files


@pytest.mark.parametrize("framework", [name for name, it in FRAMEWORKS.items() if it.kind == "infer"])
def test_a_predictor_imports_nothing_else_of_headway_and_its_framework_only_as_it_loads(framework: str) -> None:
    for path in files_of(framework):
        for module in imports(path, at_once=False):
            if module.split(".")[0] == "headway":
                assert module.startswith("headway.predictors."), f"{path.name} imports {module}"
        for module in imports(path, at_once=True):
            top = module.split(".")[0]
            is_beside = module.startswith("headway.predictors.")
            assert top in sys.stdlib_module_names or top in EVERYWHERE or is_beside, f"{path.name} imports {module}"
