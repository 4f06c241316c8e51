"""The kernels in a program of their own, under the address and undefined-behaviour sanitisers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "native-tests"


def find_tool(name: str) -> str:
    """Beside this Python (a package of the dev extra) or on the path."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found, f"{name} is missing: pip install {name}"
    return found


def run(*command: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="session")
def program() -> Path:
    """Built with every warning an error; what did not change since the last time is kept."""
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    options = (
        "-DHEADWAY_TESTS=ON",
        "-DHEADWAY_SANITIZE=ON",
        "-DHEADWAY_WERROR=ON",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    )
    run(cmake, "-S", str(ROOT / "native"), "-B", str(BUILD), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *options)
    run(cmake, "--build", str(BUILD), "--parallel", "2")
    return BUILD / "headway_native_tests"


def test_the_kernels_are_right_and_clean_under_the_sanitisers(program: Path) -> None:
    env = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "detect_leaks=0"}
    run(str(program), env=env)


def test_files_for_one_instruction_set_share_no_inline_code(program: Path) -> None:
    """Of a weak symbol the linker keeps one copy, which could be the one that a smaller machine cannot run."""
    nm = find_tool("nm")
    tables = {f"row_kernels_{isa}" for isa in ("avx2", "avx512")}
    tables |= {f"exec_kernels_{isa}" for isa in ("avx2", "avx2_vnni", "avx512", "avx512_bf16")}
    for table in sorted(tables):
        found = list(BUILD.rglob(f"{table}.cpp.o"))
        if not found:
            continue  # not an x86 machine
        listing = subprocess.run([nm, "-C", str(found[0])], capture_output=True, text=True, check=True).stdout
        symbols = [line.split(maxsplit=2)[-2:] for line in listing.splitlines()]
        weak = [name for kind, name in symbols if kind in "Wu"]
        defined = [name for kind, name in symbols if kind in "TDBR" and not name.startswith("__odr_asan")]
        assert weak == []
        assert [name for name in defined if "headway::" in name] == [f"headway::{table}"]
