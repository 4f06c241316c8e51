"""A PyTorch module's weights from a file: safetensors, or a state dict that torch.load reads with weights_only.

Nothing of a file is executed. What does not match the module is listed, and refused unless the caller said otherwise.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.predictors.options import file_inside, invalid_config, unsupported_model
from headway_wire import PredictorError

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
_MAX_LISTED = 10


@dataclass(frozen=True)
class Mismatch:
    """What of a file and a module do not belong together: names, or name and both shapes."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshapen)

    def __str__(self) -> str:
        """ "2 missing (a, b); 1 misshapen (c [2, 3], the module has [3, 2])"."""
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "misshapen": self.misshapen}
        return "; ".join(f"{len(names)} {kind} ({_listed(names)})" for kind, names in kinds.items() if names)


def find_weights(folder: Path, name: str | None) -> Path:
    """The file `name`, or where it is None model.safetensors, or the only file of weights there is.

    Raises PredictorError where there is none, or more than one.
    """
    if name is not None:
        return file_inside(folder, name, "weights")
    if (folder / "model.safetensors").is_file():
        return folder / "model.safetensors"
    found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    if len(found) != 1:
        names = ", ".join(path.name for path in found[:_MAX_LISTED]) or "none"
        raise invalid_config(
            f"{folder} has {len(found)} files of weights ({names}): name one as the option weights, or null for none",
            "weights",
        )
    return found[0]


def read_state_dict(path: Path, key: str | None = None) -> dict[str, Any]:
    """Tensors by name, on the CPU.

    Args:
        key: of a file that holds more: where its state dict is.

    Raises PredictorError (UnsupportedModel, CorruptCheckpoint, InvalidConfig).
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    _refuse_programs(path)
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of unpickling, of the archive, of the operating system
        words = str(error).split("\n")[0][:300]
        kind = "UnsupportedModel" if "weights_only" in str(error).lower() or "WeightsUnpickler" in str(error) else None
        raise PredictorError(
            kind or "CorruptCheckpoint",
            f"{path} is no file of tensors alone, and nothing else is read: {words}; save model.state_dict(), or by"
            " safetensors.torch.save_file",
        ) from error
    return _select(found, key, path)


def load_weights(module: Any, state: Mapping[str, Any], *, strict: bool, where: Path) -> Mismatch:
    """Copies the tensors into the module; returns what did not match, which with `strict` is nothing.

    Raises PredictorError (TensorMismatch) that lists it, and where nothing at all matches.
    """
    own = module.state_dict()
    mismatch = _compare(own, state)
    fitting = {
        name: tensor for name, tensor in state.items() if name in own and tuple(own[name].shape) == tuple(tensor.shape)
    }
    if mismatch and (strict or not fitting):
        advice = "" if not fitting else "; strict: false loads what matches"
        raise PredictorError("TensorMismatch", f"{where} and the module do not match: {mismatch}{advice}")
    module.load_state_dict(fitting, strict=False)
    return mismatch


def _compare(own: Mapping[str, Any], state: Mapping[str, Any]) -> Mismatch:
    # A tensor that two names share may be in the file under one of them.
    given = {own[name].data_ptr() for name in state if name in own and own[name].numel()}
    return Mismatch(
        missing=[name for name in own if name not in state and own[name].data_ptr() not in given],
        unexpected=[name for name in state if name not in own],
        misshapen=[
            f"{name} {list(tensor.shape)}, the module has {list(own[name].shape)}"
            for name, tensor in state.items()
            if name in own and tuple(own[name].shape) != tuple(tensor.shape)
        ],
    )


def _read_safetensors(path: Path) -> dict[str, Any]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise unsupported_model(
            f"{path} is read by safetensors, which is not installed: pip install safetensors"
        ) from error
    try:
        return load_file(path)
    except Exception as error:  # the library's own, of Rust
        raise PredictorError("CorruptCheckpoint", f"{path} is no whole safetensors file: {str(error)[:300]}") from error


def _refuse_programs(path: Path) -> None:
    """Raises PredictorError for archives that hold a program and not only tensors: TorchScript, torch.export."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise PredictorError("CorruptCheckpoint", f"{path} is no whole archive: {error}") from error
    for kind, mark in (("a TorchScript", "constants.pkl"), ("a torch.export", "archive_format")):
        if mark in names:
            raise unsupported_model(
                f"{path} is {kind} archive, a program and not only weights: export it to ONNX (framework onnx), or give"
                " the module's file and its state dict"
            )


def _select(found: Any, key: str | None, path: Path) -> dict[str, Any]:
    """The state dict of what a file holds. Raises PredictorError."""
    import torch

    if key is not None:
        if not isinstance(found, dict) or key not in found:
            raise invalid_config(f"{path} has nothing named {key!r}; it has {_keys(found)}", "weights_key")
        found = found[key]
    if isinstance(found, dict) and found and all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        return found
    raise unsupported_model(f"{path} holds no state dict but {_keys(found)}: name the one with it as weights_key")


def _keys(found: Any) -> str:
    if not isinstance(found, dict):
        return f"a {type(found).__name__}"
    return _listed([str(name) for name in found]) or "nothing"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
