"""Environments: virtual environments with a framework of their own, for models whose `interpreter` names one.

Each is a folder under XDG_DATA_HOME/headway/envs. It is built where it will stay, for its scripts name their own path;
what makes it one is its record, which is written last: a folder without is what an interrupted build left, is never
used, and is cleared by the next build.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headway.checkpoint.package_index import find_pip
from headway.errors import DownloadFailed, InvalidConfig
from headway.observe.processes import die_with_parent

NEEDED = ("msgspec>=0.19", "numpy>=1.26")
"""What every environment has: headway_wire's and the predictors'."""
RECORD = "headway-env.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LIST_CODE = """
import json, platform
from importlib import metadata
names = {it.metadata["Name"]: it.version for it in metadata.distributions() if it.metadata["Name"]}
print(json.dumps({"python": platform.python_version(), "packages": names}))
"""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A finished one, as its record tells."""

    name: str
    asked: list[str]
    """The packages that it was made with, as they were given to pip."""
    python: str
    """Its version."""
    packages: dict[str, str]
    """All that is in it: names and versions."""
    created: int
    """Unix seconds."""


def default_envs_dir() -> Path:
    """XDG_DATA_HOME/headway/envs, or ~/.local/share/headway/envs."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "headway" / "envs"


def find_interpreter(interpreter: str, folder: Path | None = None) -> str:
    """The Python that ModelConfig.interpreter means: a path, or the name of an environment. Raises InvalidConfig.

    What has a slash in it is a path; a virtual environment's folder means its Python.
    """
    if os.sep in interpreter:
        path = Path(interpreter).expanduser().absolute()
        path = _python_of(path) if path.is_dir() else path
        advice = "give the path of a Python, or the name of an environment (headway env list)"
    else:
        env = (folder or default_envs_dir()) / _checked(interpreter)
        path = _python_of(env)
        advice = f"make it: headway env create {interpreter}"
        if path.exists() and not (env / RECORD).is_file():
            raise InvalidConfig(f"the environment {interpreter!r} was not finished: {advice}", param="interpreter")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InvalidConfig(
            f"interpreter is {interpreter!r}, and there is no Python at {path}: {advice}", param="interpreter"
        )
    return str(path)


def create_environment(
    name: str,
    packages: Sequence[str],
    *,
    without: Sequence[str] = (),
    python: str | None = None,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Environment:
    """Makes an environment with pip's own output on stderr. Blocks for minutes.

    Raises InvalidConfig for a name that is taken, or bad, and for a Python that makes none; DownloadFailed where pip
    fails: then nothing stays.

    Args:
        packages: requirements, as pip takes them.
        without: packages that these bring along, and that are taken out again.
        python: the interpreter that it is made of; None: this one.
        say: is told each step.
    """
    env = (folder or default_envs_dir()) / _checked(name)
    try:
        with _alone(env):
            return _make_anew(env, name, lambda: _build(env, name, packages, without, python or sys.executable, say))
    except OSError as error:  # a full disk, a folder that may not be written, a Python that is not there
        raise InvalidConfig(f"the environment {name!r} can not be made in {env}: {error}; nothing was kept") from error


def _make_anew(env: Path, name: str, build: Callable[[], Environment]) -> Environment:
    """In place of what an interrupted build left; where this one fails, or is interrupted, nothing stays."""
    if (env / RECORD).is_file():
        raise InvalidConfig(f"there is an environment {name!r} already: headway env remove {name}, or another name")
    shutil.rmtree(env, ignore_errors=True)
    try:
        return build()
    except BaseException:
        shutil.rmtree(env, ignore_errors=True)
        raise


def list_environments(folder: Path | None = None) -> list[Environment]:
    """Those that are finished, by name."""
    folder = folder or default_envs_dir()
    return [_read(path) for path in sorted(folder.glob(f"*/{RECORD}"))] if folder.is_dir() else []


def remove_environment(name: str, folder: Path | None = None) -> None:
    """Raises InvalidConfig if there is none. Models that use it fail at their next load."""
    env = (folder or default_envs_dir()) / _checked(name)
    if not env.is_dir():
        known = ", ".join(it.name for it in list_environments(folder)) or "none"
        raise InvalidConfig(f"there is no environment {name!r}; there is: {known}")
    with _alone(env):
        (env / RECORD).unlink(missing_ok=True)  # first, so that what is half removed is not used
        shutil.rmtree(env)


def _build(
    env: Path,
    name: str,
    packages: Sequence[str],
    without: Sequence[str],
    python: str,
    say: Callable[[str], None],
) -> Environment:
    say(f"making a virtual environment of {python} in {env}")
    pip = find_pip()
    # Ours installs for it: one of its own takes longer to come than all that is needed.
    command = [python, "-m", "venv", *(["--without-pip"] if pip else []), str(env)]
    made = _run(command, capture_output=True, text=True)
    if made.returncode:
        words = (made.stdout + made.stderr).strip()[-500:]
        raise InvalidConfig(
            f"{python} can not make a virtual environment: {words}; install its venv module", param="python"
        )
    asked = [*NEEDED, *packages]
    say(f"installing {', '.join(asked)}")
    if _run_pip(env, pip, ["install", *asked]):
        raise DownloadFailed(f"pip could not install {', '.join(asked)} (its words are above); nothing was kept")
    if without and _run_pip(env, pip, ["uninstall", "--yes", *without]):
        raise DownloadFailed(f"pip could not take out {', '.join(without)} (its words are above); nothing was kept")
    found = _run([str(_python_of(env)), "-c", _LIST_CODE], capture_output=True)
    if found.returncode:
        words = found.stderr.decode(errors="replace").strip()[-500:]
        raise InvalidConfig(f"the Python of {env} can not tell what was installed: {words}; nothing was kept")
    facts = msgspec.json.decode(found.stdout)
    record = Environment(name=name, asked=list(packages), created=int(time.time()), **facts)
    _write(env / RECORD, msgspec.json.encode(record))
    return record


def _run_pip(env: Path, pip: Sequence[str] | None, arguments: Sequence[str]) -> int:
    """pip's exit code; what it says goes to stderr."""
    own = str(_python_of(env))
    command = [*pip, "--python", own] if pip else [own, "-m", "pip"]
    command += [arguments[0], "--no-input", "--disable-pip-version-check", *arguments[1:]]
    return _run(command, stdout=sys.stderr.fileno()).returncode


def _run(command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[Any]":
    """Waits for the command, which ends with us: nobody installs into a folder that nobody knows of any more."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent, **options)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def _read(path: Path) -> Environment:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Environment)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidConfig(
            f"{path} can not be read: {error}; remove the environment: headway env remove {path.parent.name}"
        ) from error


@contextlib.contextmanager
def _alone(env: Path) -> Iterator[None]:
    """Two that build or remove the same one wait for each other."""
    env.parent.mkdir(parents=True, exist_ok=True)
    with (env.parent / f".{env.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _python_of(env: Path) -> Path:
    return env / "bin" / "python"


def _checked(name: str) -> str:
    """Raises InvalidConfig for a name that could leave the folder."""
    if not _NAME.fullmatch(name):
        raise InvalidConfig(
            f"the environment's name is {name[:100]!r}; it must be 1 to 64 letters, digits, dots, dashes and"
            " underscores, and begin with a letter or digit",
            param="interpreter",
        )
    return name
