"""A foreign interpreter can import the wire without Headway."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headway_wire

FILES = sorted(Path(headway_wire.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_source_is_that_of_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_annotation_needs_a_later_python(path: Path) -> None:
    # `int | None` parses under 3.9 and fails when msgspec evaluates it.
    annotations = [
        annotation
        for node in ast.walk(ast.parse(path.read_text()))
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if annotation is not None
    ]
    unions = [node for each in annotations for node in ast.walk(each) if isinstance(node, ast.BinOp)]
    assert not [node.lineno for node in unions if isinstance(node.op, ast.BitOr)]


def test_importing_it_imports_neither_headway_nor_numpy() -> None:
    script = (
        "import sys, headway_wire;"
        "print([name for name in sys.modules if name.split('.')[0] in ('headway', 'numpy', 'torch', 'pydantic')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
