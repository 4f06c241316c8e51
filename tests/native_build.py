"""Builds of native/'s standalone test, each in a folder of its own under build/; what did not change is kept."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def find_tool(name: str) -> str:
    """Beside this Python (a package of the dev extra) or on the path."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found, f"{name} is missing: pip install {name}"
    return found


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """Its stdout; it has to end with 0."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build_tests(name: str, *options: str) -> Path:
    """The test program of build/`name`, with every warning an error."""
    folder = ROOT / "build" / name
    ninja = find_tool("ninja")
    options = ("-DHEADWAY_TESTS=ON", "-DHEADWAY_WERROR=ON", f"-DCMAKE_MAKE_PROGRAM={ninja}", *options)
    run(find_tool("cmake"), "-S", str(ROOT / "native"), "-B", str(folder), "-G", "Ninja", *options)
    run(find_tool("cmake"), "--build", str(folder), "--parallel", "2")
    return folder / "headway_native_tests"
