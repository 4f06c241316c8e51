"""Makes a safetensors folder of a pickle checkpoint. torch reads it with weights_only=True: tensors, and no code.

Written one file for each that is read, with an index where there are several; tensors that share their memory (tied
weights) are written under each name.
"""

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.checkpoint.checkpoint import INDEX_NAME, PICKLE_SUFFIXES, WEIGHTS_NAME
from headway.checkpoint.fields import Fields
from headway.checkpoint.progress import Progress, silent
from headway.errors import CorruptCheckpoint, InvalidConfig, UnsupportedModel

_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.bin", "scheduler.pt", "rng_state.pth")
_BESIDE = (".json", ".jinja", ".txt", ".model")
_PICKLE_INDEX = "pytorch_model.bin.index.json"


def convert(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Reads a folder with pickle weights (or one such file) and writes the folder `target`, whole or not at all.

    Configuration and tokenizer files beside the weights are copied. Raises InvalidConfig (no torch, nothing to
    convert, a target that is there), UnsupportedModel (the pickle holds more than tensors), CorruptCheckpoint.
    """
    progress = progress or silent
    weights = _weight_files(source)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidConfig(f"{target} is there already: name a folder that is not", param="target")
    torch = _import_torch()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.part-", dir=target.parent))
    try:
        _write_all(torch, weights, part, progress)
        for path in sorted((source if source.is_dir() else source.parent).iterdir()):
            if path.suffix in _BESIDE and path.name != _PICKLE_INDEX and path.is_file():
                shutil.copyfile(path, part / path.name)
        part.chmod(0o755)
        if target.is_dir():
            target.rmdir()
        part.rename(target)
    except OSError as error:
        raise InvalidConfig(f"{target} could not be written: {error}", param="target") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _weight_files(source: Path) -> list[Path]:
    if source.is_file():
        if source.suffix in (".gguf", ".safetensors"):
            raise InvalidConfig(
                f"{source} is no pickle checkpoint, and nothing has to be converted: serve it as it is", param="source"
            )
        return [source]
    if not source.is_dir():
        raise InvalidConfig(f"there is no file or folder {source}", param="source")
    index_path = source / _PICKLE_INDEX
    if index_path.is_file():
        index = Fields.of_json(index_path)
        names = sorted({str(name) for name in index.mapping("weight_map").values()})
        for name in names:
            if Path(name).name != name or not (source / name).is_file():
                index.fail("weight_map", f"names {name[:100]!r}, which is no file of this folder")
        return [source / name for name in names]
    found = sorted(
        path for path in source.iterdir() if path.suffix in PICKLE_SUFFIXES and path.name not in _NOT_WEIGHTS
    )
    if not found:
        raise InvalidConfig(f"{source} has no pickle weights ({', '.join(PICKLE_SUFFIXES)})", param="source")
    return found


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise InvalidConfig("reading pickle needs torch: pip install 'headway[torch]'") from error
    return torch


def _write_all(torch: Any, weights: list[Path], folder: Path, progress: Progress) -> None:
    total_bytes = sum(path.stat().st_size for path in weights)
    done_bytes, num_bytes = 0, 0
    weight_map: dict[str, str] = {}
    for number, path in enumerate(weights, 1):
        progress(f"converting {path.name}", done_bytes, total_bytes)
        count = len(weights)
        name = WEIGHTS_NAME if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        tensors = _load(torch, path)
        if twice := tensors.keys() & weight_map.keys():
            raise CorruptCheckpoint(f"{path} has {min(twice)!r}, which another file has too")
        num_bytes += write_safetensors(torch, tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
        done_bytes += path.stat().st_size
        progress(f"converting {path.name}", done_bytes, total_bytes)
    if len(weights) > 1:
        index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
        (folder / INDEX_NAME).write_text(json.dumps(index, indent=1), encoding="utf-8")


def _load(torch: Any, path: Path) -> dict[str, Any]:
    """The tensors by name; a training checkpoint's are under state_dict or model."""
    import pickle

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = _reason(error)
        if "GLOBAL" not in reason.upper():
            raise CorruptCheckpoint(f"{path} cannot be read by torch: {reason}") from error
        raise UnsupportedModel(f"{path} holds more than tensors, and only tensors are read: {reason}") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise CorruptCheckpoint(f"{path} cannot be read by torch: {_short(error)}") from error
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not loaded:
        raise UnsupportedModel(f"{path} holds {type(loaded).__name__}, not tensors by name")
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise UnsupportedModel(f"{path}: {str(name)[:100]!r} is {type(tensor).__name__}, not a dense tensor")
    return loaded


_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_safetensors(torch: Any, tensors: Mapping[str, Any], path: Path) -> int:
    """Writes and syncs the file; returns the bytes of all tensors. Raises UnsupportedModel for another dtype."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        dtype = _DTYPES.get(str(tensor.dtype).removeprefix("torch."))
        if dtype is None:
            raise UnsupportedModel(f"{name!r} has the dtype {tensor.dtype}, which cannot be converted")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start aligned
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
    return end


def _reason(error: Exception) -> str:
    """What the unpickler said, without torch's advice to read the file unsafely."""
    advice = ("Weights only", "Please file", "Check the documentation")
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith(advice)]
    return lines[0][:200] if lines else type(error).__name__


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
