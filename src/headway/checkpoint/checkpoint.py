"""Opens a model on disk: what it is (ModelShape), how it speaks (TextSource), and its weights, mapped and checked.

Opening reads headers and configuration only; a tensor is converted when it is read. Formats: a GGUF file, or any part
of one that was split; a Hugging Face folder (config.json, a tokenizer, safetensors in one file or many). Pickle is
refused.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from headway.checkpoint import gguf_models, gguf_text, huggingface, huggingface_text
from headway.checkpoint.fields import Fields
from headway.checkpoint.gguf import GgufFile, read_architecture
from headway.checkpoint.gguf_reader import MAGIC
from headway.checkpoint.mapping import MappedFile
from headway.checkpoint.safetensors import SafetensorsFile
from headway.checkpoint.shape import ModelShape
from headway.checkpoint.weights import MappedWeights
from headway.errors import CorruptCheckpoint, UnsupportedModel
from headway.text.source import TextSource

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An open model."""

    path: Path
    format: Literal["gguf", "safetensors"]
    shape: ModelShape
    text: TextSource
    weights: MappedWeights
    created: int
    """Unix seconds: when the weights were last written."""
    identity: str
    """Changes when a weight file's size or time does: 16 hexadecimal digits."""


def open_checkpoint(path: Path) -> Checkpoint:
    """The model in this file or folder.

    Raises:
        UnsupportedModel: a format, architecture, tensor type or use of one that Headway does not have, named.
        CorruptCheckpoint: a file is not there, or is not what it says.
    """
    check_path(path)
    try:
        return _open_folder(path) if path.is_dir() else _open_gguf(path)
    except OSError as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error


def open_text(folder: Path) -> TextSource:
    """The text of a folder alone, for models that something else runs: whatever their architecture.

    Raises UnsupportedModel and CorruptCheckpoint as open_checkpoint, but for what is wrong with weights.
    """
    try:
        config = Fields.of_json(folder / "config.json")
        inner = config.mapping("text_config") if config.has("text_config") else config.values
        vocab_size = Fields(inner, config.where).integer("vocab_size", low=1)
        return huggingface_text.read_text(folder, config, vocab_size)
    except OSError as error:
        raise CorruptCheckpoint(f"{folder} cannot be read: {error}") from error


def is_encoder(path: Path) -> bool:
    """Whether an encoder is in this file or folder, by its configuration alone. Raises as open_checkpoint."""
    if not path.is_dir():
        return path.is_file() and read_architecture(path) in gguf_models.GGUF_ENCODERS
    return huggingface.read_shape(Fields.of_json(path / "config.json")).encoder is not None


def check_path(path: Path) -> None:
    """Raises as open_checkpoint for what can be told from names and the first four bytes: no more is read."""
    try:
        if path.is_dir():
            _check_folder(path)
        elif path.is_file():
            _check_file(path)
        else:
            raise CorruptCheckpoint(f"{path} is not there")
    except OSError as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error


def _check_file(path: Path) -> None:
    check_no_pickle(path)
    if path.suffix == ".safetensors":
        raise UnsupportedModel(f"{path} holds weights only: give the folder that has it and its config.json")
    with path.open("rb") as file:
        magic = file.read(4)
    if path.suffix != ".gguf" and magic != MAGIC:
        raise UnsupportedModel(f"{path} is neither a GGUF file nor a folder with a config.json")


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UnsupportedModel(f"{folder} has no config.json{_near_miss(folder)}")
    if (folder / WEIGHTS_NAME).is_file() or (folder / INDEX_NAME).is_file():
        return
    if pickles := sorted(path for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES):
        check_no_pickle(pickles[0])
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    hint = f"; {', '.join(others[:5])} has another name" if others else ""
    raise UnsupportedModel(f"{folder} has neither {WEIGHTS_NAME} nor {INDEX_NAME}{hint}")


def check_no_pickle(path: Path) -> None:
    """Raises UnsupportedModel for a file that only pickle could read: that runs whatever code the file holds."""
    if path.suffix in PICKLE_SUFFIXES:
        raise UnsupportedModel(
            f"{path} is a pickle file, which can run code when it is read, and is refused: "
            f"make a safetensors folder of it with `headway convert {path.parent} OUT`"
        )


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufFile(path)
    shape = gguf_models.read_shape(file)
    found = gguf_models.canonical_views(file, shape)
    views = {name: replace(view, file=file.part_of(view.name)) for name, view in found.items()}
    file.check_readable([view.name for view in views.values()])
    text = gguf_text.read_text(file, shape.vocab_size)
    return Checkpoint(path, "gguf", shape, text, MappedWeights(views), *_stamp(part.file for part in file.parts))


def _open_folder(folder: Path) -> Checkpoint:
    config = Fields.of_json(folder / "config.json")
    shape = huggingface.with_pooling(folder, huggingface.read_shape(config))
    files = _weight_files(folder)
    huggingface.refuse_quantised_tensors(config, (name for file in files for name in file.tensors))
    weights = MappedWeights(huggingface.folder_views(files, shape))
    text = huggingface_text.read_text(folder, config, shape.vocab_size)
    return Checkpoint(folder, "safetensors", shape, text, weights, *_stamp(file.file for file in files))


def _near_miss(folder: Path) -> str:
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        return f", but GGUF files: give one of {', '.join(ggufs[:5])}"
    return ": it is not a model as Hugging Face lays it out"


def _weight_files(folder: Path) -> list[SafetensorsFile]:
    """One file if it is there, else those of the index; each is a plain name inside the folder."""
    if (folder / WEIGHTS_NAME).is_file():
        return [SafetensorsFile(folder / WEIGHTS_NAME)]
    return _sharded_files(folder, Fields.of_json(folder / INDEX_NAME))


def _sharded_files(folder: Path, index: Fields) -> list[SafetensorsFile]:
    tensors_of: dict[str, set[str]] = {}
    for tensor, name in index.mapping("weight_map").items():
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            index.fail("weight_map", f"names {str(name)[:100]!r}, not a safetensors file of this folder")
        tensors_of.setdefault(name, set()).add(tensor)
    if not tensors_of:
        index.fail("weight_map", "is missing or empty")
    files = []
    for name, tensors in sorted(tensors_of.items()):
        path = folder / name
        if not path.is_file():
            raise CorruptCheckpoint(f"{path} is not there, but {INDEX_NAME} names it: the download is not complete")
        files.append(SafetensorsFile(path))
        if lacking := sorted(tensors - files[-1].tensors.keys()):
            raise CorruptCheckpoint(f"{path} does not have {lacking[0]!r}, as {INDEX_NAME} says")
    return files


def _stamp(files: Iterable[MappedFile]) -> tuple[int, str]:
    """(created, identity) of the weight files together."""
    stamps = [(file.path.name, file.size, file.modified_ns) for file in files]
    created = max(modified_ns for _, _, modified_ns in stamps) // 1_000_000_000
    return created, hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
