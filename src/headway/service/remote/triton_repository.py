"""A model in a folder that a Triton server has as its model repository: written whole, or not at all.

REPOSITORY/NAME/config.pbtxt       from options.config, or the source folder's own
REPOSITORY/NAME/VERSION/...        the source: a file (model.py, model.onnx, ...), or what is in its folder
REPOSITORY/NAME/.headway           says that it is ours: no other folder is ever replaced or removed
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from headway.errors import InvalidConfig, ModelError
from headway.service.remote.triton_config import TritonModelConfig, check_model_name, write_config

_MARK = ".headway"


def put_model(repository: Path, name: str, version: str, source: Path, config: TritonModelConfig) -> Path:
    """Writes the model beside its place and moves it there; its folder. Blocks.

    A source folder that has a config.pbtxt is a whole model, with its version folders, and is copied as it is.

    Raises InvalidConfig for a repository, name or source that can not be used.
    """
    folder = repository / check_model_name(name)
    if not repository.is_dir():
        raise InvalidConfig(
            f"options.repository is {str(repository)!r}, which is no folder here", param="options.repository"
        )
    if folder.exists() and not (folder / _MARK).is_file():
        raise InvalidConfig(
            f"{folder} is a model that was not put there by Headway, and is left as it is: give the model another name "
            "by options.model, or leave options.repository out to use it",
            param="options.model",
        )
    if not source.exists():
        raise InvalidConfig(f"the model's source {str(source)!r} is no file or folder", param="source")
    made = Path(tempfile.mkdtemp(prefix=".headway-", dir=repository))
    try:
        made.chmod(0o755)
        _fill(made, name, version or "1", source, config)
        (made / _MARK).touch()
        _replace(folder, made)
    except OSError as error:
        raise ModelError(f"the model can not be put into {folder}: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def remove_model(folder: Path) -> None:
    """Takes away what put_model() wrote; another one's folder stays. Blocks."""
    if (folder / _MARK).is_file():
        shutil.rmtree(folder, ignore_errors=True)


def _fill(made: Path, name: str, version: str, source: Path, config: TritonModelConfig) -> None:
    if (source / "config.pbtxt").is_file():
        shutil.copytree(source, made, dirs_exist_ok=True)
        return
    if not version.isdigit() or int(version) < 1:
        raise InvalidConfig(
            f"options.version is {version[:50]!r}; a repository's versions are whole numbers from 1 on",
            param="options.version",
        )
    (made / "config.pbtxt").write_text(write_config(name, config), encoding="utf-8")
    if source.is_dir():
        shutil.copytree(source, made / version)
    else:
        (made / version).mkdir()
        shutil.copy2(source, made / version / f"model{source.suffix}")


def _replace(folder: Path, made: Path) -> None:
    """A folder can not be renamed over one that is not empty: the old one is moved aside first."""
    aside = made.with_name(made.name + ".old")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, aside)
    os.rename(made, folder)
    shutil.rmtree(aside, ignore_errors=True)
