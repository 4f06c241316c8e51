"""What predictors of tensors share about Load.options: typed, with errors that name the option."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headway_wire import PredictorError

CORES_VARIABLE = "HEADWAY_CORES"
"""Of the environment: cores that the server may use, by the quotas of its control groups too."""
Options = TypeVar("Options", bound=msgspec.Struct)


def read_options(options: Mapping[str, Any], kind: type[Options]) -> Options:
    """Options as `kind`, whose fields are those that there are. Raises PredictorError (InvalidConfig)."""
    known = kind.__struct_encode_fields__
    for name in options:
        if name not in known:
            raise invalid_config(
                f"there is no option {name[:100]!r}; there are {', '.join(sorted(known))}", param=name[:100]
            )
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        raise invalid_config(f"the options do not fit: {error}") from error


def invalid_config(message: str, param: str | None = "options") -> PredictorError:
    """What was configured can not be used."""
    return PredictorError("InvalidConfig", message, param)


def invalid_input(message: str, param: str | None = None) -> PredictorError:
    """What was asked with can not be used."""
    return PredictorError("InvalidRequest", message, param)


def unsupported_model(message: str) -> PredictorError:
    """The files are of a kind that is not read."""
    return PredictorError("UnsupportedModel", message)


def num_threads(wanted: int | None) -> int:
    """`wanted`, or the cores that this process may use: its affinity, or what the server found it may use if that is
    less. Raises PredictorError for less than 1."""
    if wanted is not None and wanted < 1:
        raise invalid_config(f"threads is {wanted}; it must be 1 or more", param="threads")
    told = os.environ.get(CORES_VARIABLE, "")
    cores = len(os.sched_getaffinity(0))
    return wanted or (min(cores, int(told)) if told.isdecimal() and int(told) else cores)


def file_inside(folder: Path, name: str, param: str) -> Path:
    """The file `name` of a model's folder: a path that stays in it, or an absolute one, which its owner wrote.

    Raises PredictorError for one that leaves the folder, and for one that is not there.
    """
    path = Path(name)
    if not path.is_absolute():
        path = folder / path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise invalid_config(f"{param} is {name[:200]!r}, which is outside {folder}: give its whole path", param)
    if not path.is_file():
        raise invalid_config(f"{param} is {name[:200]!r}, and there is no file {path}", param)
    return path


def read_labels(labels: list[str] | str | None, folder: Path) -> list[str] | None:
    """Names of classes: as they are, or of a file: a line each, a JSON list, or JSON of a class's number to its name.

    Raises PredictorError for a file that is none of these.
    """
    if not isinstance(labels, str):
        return labels
    path = file_inside(folder, labels, "labels")
    if path.stat().st_size > _MAX_LABEL_BYTES:
        raise invalid_config(
            f"{path} has {path.stat().st_size} bytes; labels have at most {_MAX_LABEL_BYTES}", "labels"
        )
    try:
        text = path.read_text(encoding="utf-8")
        return _labels_of_json(msgspec.json.decode(text)) if path.suffix == ".json" else text.splitlines()
    except (ValueError, KeyError, TypeError) as error:
        raise invalid_config(f"{path} holds no labels: {error}", "labels") from error


def check_num_labels(labels: list[str] | None, num_classes: int) -> None:
    """Raises PredictorError where they are not one a class."""
    if labels is not None and len(labels) != num_classes:
        raise invalid_config(f"there are {len(labels)} labels, and the model has {num_classes} classes", "labels")


_MAX_LABEL_BYTES = 16 * 1024 * 1024


def _labels_of_json(found: Any) -> list[str]:
    """Raises ValueError, KeyError or TypeError for what is neither a list nor a map of numbers."""
    if isinstance(found, dict):
        found = [found[str(number)] for number in range(len(found))]
    if not isinstance(found, list):
        raise ValueError(f"it is a {type(found).__name__}, and neither a list nor a map")
    # ImageNet's well-known class index has [synset, name].
    return [str(label[-1] if isinstance(label, list) else label) for label in found]
