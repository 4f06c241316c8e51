"""The README's tree has a line for every file of the package."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def files_of_the_tree() -> set[str]:
    """Paths under src/, from the indentation of the README's tree."""
    (block,) = re.findall(r"```\n(native/.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    stack: list[str] = []
    found = set()
    for line in block.splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        del stack[len(indent) // 2 :]
        stack.append(name.rstrip("/"))
        if name.endswith(".py"):
            assert len(line.split()) > 2, f"no word about {name}"
            found.add("/".join(stack))
    return found


@pytest.mark.parametrize("package", ["headway", "headway_wire"])
def test_the_tree_names_each_file_once_and_none_that_is_gone(package: str) -> None:
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src" / package).rglob("*.py")
        # A room's own line stands for its __init__.
        if path.name != "__init__.py" or path.parent.name == package
    }
    named = {path for path in files_of_the_tree() if path.startswith(f"src/{package}/")}
    assert named == there
