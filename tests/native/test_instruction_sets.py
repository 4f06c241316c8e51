"""What is compiled for an instruction set holds none of a larger one, and runs where only that one is.

Sets that this machine lacks are emulated: whole machines by QEMU (user mode), AVX-512 and AVX-VNNI by SIMDe.
"""

import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from native_build import ROOT, build_tests, find_tool, run

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.timeout(1800),  # compiling and emulating take minutes on a busy machine
    pytest.mark.skipif(platform.machine() != "x86_64", reason="begins from an x86-64 machine"),
]
WIDE = re.compile(r"%zmm|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b")
SIMDE = Path("/usr/include/simde/x86/avx512.h")
ARM = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++")


def needs(command: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(command) is None, reason=f"{command} is missing: apt install {package}")


@pytest.fixture(scope="module")
def program() -> Path:
    """With the options of an installed build."""
    return build_tests("native-release", "-DCMAKE_BUILD_TYPE=Release")


def instructions(file: Path) -> Iterator[tuple[str, str]]:
    """Mnemonic and operands of everything in an object file."""
    for line in run(find_tool("objdump"), "-d", "--no-show-raw-insn", str(file)).splitlines():
        address, _, code = line.partition(":\t")
        if code and address.strip():
            mnemonic, _, operands = code.partition(" ")
            yield mnemonic, operands


def is_for_a_set(file: Path) -> bool:
    return re.search(r"_(avx2|avx2_vnni|avx512|avx512_bf16)\.cpp\.o$", file.name) is not None


def test_what_runs_everywhere_holds_no_avx_instruction(program: Path) -> None:
    """The kernels' library, and the Python module as it is installed."""
    objects = [*program.parent.rglob("*.o"), *(ROOT / "native" / "in_place").rglob("*.o")]
    base = [file for file in objects if not is_for_a_set(file)]
    assert {"isa.cpp.o", "exec_kernels_plain.cpp.o", "row_kernels_plain.cpp.o", "bindings.cpp.o"} <= {
        file.name for file in base
    }
    for file in base:
        found = {name for name, _ in instructions(file) if name.startswith("v") and name not in ("verr", "verw")}
        assert not found, f"{file} holds {sorted(found)}"


def test_avx2_files_hold_no_avx512_and_only_the_vnni_one_has_vnni(program: Path) -> None:
    found = {file.name: file for file in program.parent.rglob("*.o")}
    for name in ("row_kernels_avx2", "exec_kernels_avx2", "exec_kernels_avx2_vnni"):
        code = list(instructions(found[f"{name}.cpp.o"]))
        assert any("%ymm" in operands for _, operands in code), f"{name} was not compiled for AVX2"
        wide = {(mnemonic, operands) for mnemonic, operands in code if WIDE.search(operands)}
        assert not wide, f"{name} holds {sorted(wide)[:5]}"
        has_vnni = any(mnemonic.startswith("vpdp") for mnemonic, _ in code)
        assert has_vnni <= (name == "exec_kernels_avx2_vnni"), f"{name} holds AVX-VNNI"


@needs("qemu-x86_64", "qemu-user")
def test_the_plain_path_is_right_on_the_smallest_x86_64(program: Path) -> None:
    assert run("qemu-x86_64", "-cpu", "qemu64", str(program)) == "0 failures on plain\n"


@pytest.mark.skipif(not SIMDE.exists(), reason="SIMDe is missing: apt install libsimde-dev")
def test_avx512_and_avx_vnni_are_right_emulated() -> None:
    program = build_tests("native-emulated", "-DCMAKE_BUILD_TYPE=Release", "-DHEADWAY_EMULATE=ON")
    first, _, tables = run(str(program)).partition(" failures on ")
    assert first == "0"
    assert tables.rstrip().endswith("emulated avx2_vnni emulated avx512 emulated avx512_bf16")


@needs("qemu-aarch64", "qemu-user")
@needs("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
def test_the_plain_path_is_right_on_arm() -> None:
    program = build_tests("native-arm", "-DCMAKE_BUILD_TYPE=Release", *ARM)
    assert run("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", str(program)) == "0 failures on plain\n"
