"""Reads GGUF files: all metadata and tensor positions at once, tensor data when asked for.

A model may be split into several files; any of them stands for all (gguf_split.py).

The bytes are not trusted: whatever they are, a caller sees a GgufFile, CorruptCheckpoint or UnsupportedModel.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headway.checkpoint.ggml_types import READABLE_TYPES, dequantise
from headway.checkpoint.gguf_reader import GgufReader, GgufTensor, Value
from headway.checkpoint.gguf_split import check_parts, part_paths
from headway.checkpoint.mapping import MappedFile
from headway.errors import CorruptCheckpoint, UnsupportedModel

_MAX_ALIGNMENT = 1 << 20


def read_architecture(path: Path) -> str:
    """general.architecture, which stands first in a file; nothing behind it is read. Empty where there is none.

    Raises as GgufPart.
    """
    reader = GgufReader(MappedFile(path))
    _, num_entries = reader.header()
    found = reader.find("general.architecture", num_entries)
    return found if isinstance(found, str) else ""


class GgufPart:
    """One open, checked file: a whole model, or a part of one.

    Raises:
        CorruptCheckpoint: the bytes contradict themselves; the message says where.
        UnsupportedModel: version 1, big-endian, or an older format of ggml.
    """

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        reader = GgufReader(self.file)
        num_tensors, num_entries = reader.header()
        self.metadata: Mapping[str, Value] = reader.entries(num_entries)
        alignment = self._alignment()
        self.tensors: Mapping[str, GgufTensor] = reader.tensors(num_tensors, alignment)
        _check_no_overlap(path, self.tensors)

    def _alignment(self) -> int:
        found = self.metadata.get("general.alignment", 32)
        if type(found) is not int or not 0 < found <= _MAX_ALIGNMENT or found & (found - 1):
            raise CorruptCheckpoint(f"{self.file.path}: general.alignment is {found!r}, not a power of two")
        return found

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32 in its shape; of an F32 tensor a read-only view of the file.

        Raises UnsupportedModel for a type that is not one of ggml_types.READABLE_TYPES.
        """
        tensor = self.tensors[name]
        self.check_readable([name])
        return dequantise(tensor.type.name, self.file.array(tensor.start, tensor.num_bytes)).reshape(tensor.shape)

    def raw(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """The tensor's type and its bytes, a read-only view of the file. Raises UnsupportedModel as read()."""
        self.check_readable([name])
        tensor = self.tensors[name]
        return tensor.type.name, self.file.array(tensor.start, tensor.num_bytes)

    def check_readable(self, names: Sequence[str]) -> None:
        """Raises UnsupportedModel, naming the types, if one of these tensors cannot be read."""
        unread = {name: self.tensors[name].type.name for name in names}
        unread = {name: type_name for name, type_name in unread.items() if type_name not in READABLE_TYPES}
        if unread:
            example = next(iter(unread))
            raise UnsupportedModel(
                f"{self.file.path}: {len(unread)} tensors have the type {', '.join(sorted(set(unread.values())))} "
                f"(first {example!r}), which is not supported: convert the model to one of {', '.join(READABLE_TYPES)}"
            )


class GgufFile:
    """An open, checked model: one file, or all parts of one. Metadata are the first part's.

    Raises as GgufPart, and CorruptCheckpoint where a part is not there or belongs to another model.
    """

    def __init__(self, path: Path) -> None:
        opened = GgufPart(path)
        paths = part_paths(path, opened.metadata)
        self.parts = tuple(opened if other == path else GgufPart(other) for other in paths)
        check_parts(paths, [part.metadata for part in self.parts], [part.tensors for part in self.parts])
        self.file = self.parts[0].file
        """The first part's."""
        self.metadata: Mapping[str, Value] = self.parts[0].metadata
        self._part_of = {name: part for part in self.parts for name in part.tensors}
        self.tensors: Mapping[str, GgufTensor] = {name: part.tensors[name] for name, part in self._part_of.items()}

    def part_of(self, name: str) -> GgufPart:
        """The file that has this tensor."""
        return self._part_of[name]

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """As GgufPart.read."""
        return self.part_of(name).read(name)

    def raw(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """As GgufPart.raw."""
        return self.part_of(name).raw(name)

    def check_readable(self, names: Sequence[str]) -> None:
        """As GgufPart.check_readable."""
        for part in self.parts:
            part.check_readable([name for name in names if name in part.tensors])


def _check_no_overlap(path: Path, tensors: Mapping[str, GgufTensor]) -> None:
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.start):
        if tensor.start < end:
            raise CorruptCheckpoint(f"{path}: the tensors {before!r} and {tensor.name!r} overlap")
        end, before = tensor.start + tensor.num_bytes, tensor.name
