"""Environments: interpreters with a framework of their own, made by `headway env create`, for models that name one.

Each is a virtual environment in a folder under XDG_DATA_HOME/headway/envs, by its name.
"""

import os
import re
from pathlib import Path

from headway.errors import InvalidConfig

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def default_envs_dir() -> Path:
    """XDG_DATA_HOME/headway/envs, or ~/.local/share/headway/envs."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "headway" / "envs"


def check_env_name(name: str) -> str:
    """The name. Raises InvalidConfig for one that could leave the folder."""
    if not _NAME.fullmatch(name):
        raise InvalidConfig(
            f"the environment's name is {name[:100]!r}; it must be 1 to 64 letters, digits, dots, dashes and"
            " underscores, and begin with a letter or digit",
            param="interpreter",
        )
    return name


def find_interpreter(interpreter: str, folder: Path | None = None) -> str:
    """The Python that ModelConfig.interpreter means: a path, or the name of an environment. Raises InvalidConfig.

    What has a slash in it is a path; a virtual environment's folder means its Python.
    """
    if os.sep in interpreter:
        path = Path(interpreter).expanduser().absolute()
        path = path / "bin" / "python" if path.is_dir() else path
        advice = "give the path of a Python, or the name of an environment (headway env list)"
    else:
        path = (folder or default_envs_dir()) / check_env_name(interpreter) / "bin" / "python"
        advice = f"make it: headway env create {interpreter}"
    if not os.access(path, os.X_OK) or not path.is_file():
        raise InvalidConfig(
            f"interpreter is {interpreter!r}, and there is no Python at {path}: {advice}", param="interpreter"
        )
    return str(path)
