"""The kernels in a program of their own, under the address and undefined-behaviour sanitisers."""

import os
from pathlib import Path

import pytest

from native_build import build_tests, find_tool, run

# Optimised little: the sanitisers' checks make the compiler slow.
SANITISED = ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1")
pytestmark = pytest.mark.timeout(1200)  # compiling takes minutes on a busy machine


@pytest.fixture(scope="module")
def program() -> Path:
    return build_tests("native-tests", "-DHEADWAY_SANITIZE=ON", *SANITISED)


def test_the_kernels_are_right_and_clean_under_the_sanitisers(program: Path) -> None:
    env = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "detect_leaks=0"}
    run(str(program), env=env)


def test_files_for_one_instruction_set_share_no_inline_code(program: Path) -> None:
    """Of a weak symbol the linker keeps one copy, which could be the one that a smaller machine cannot run."""
    tables = {f"row_kernels_{isa}" for isa in ("avx2", "avx512")}
    tables |= {f"exec_kernels_{isa}" for isa in ("avx2", "avx2_vnni", "avx512", "avx512_bf16")}
    for table in sorted(tables):
        found = list(program.parent.rglob(f"{table}.cpp.o"))
        if not found:
            continue  # not an x86 machine
        symbols = [line.split(maxsplit=2)[-2:] for line in run(find_tool("nm"), "-C", str(found[0])).splitlines()]
        weak = [name for kind, name in symbols if kind in "Wu"]
        defined = [name for kind, name in symbols if kind in "TDBR" and not name.startswith("__odr_asan")]
        assert weak == []
        assert [name for name in defined if "headway::" in name] == [f"headway::{table}"]
