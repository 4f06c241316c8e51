"""Models that llama-gguf-split has cut: NAME-00001-of-00003.gguf and so on, each a GGUF file with some of the tensors.

The first has all metadata; each says split.no (from 0), split.count, and how many tensors all have together.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from headway.checkpoint.fields import Fields
from headway.checkpoint.gguf_reader import Value
from headway.errors import CorruptCheckpoint

MAX_PARTS = 9999
_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_NUM_NAMED = 5


def part_paths(path: Path, metadata: Mapping[str, Value]) -> list[Path]:
    """All files of the model that this one with its metadata is a part of, in order; only itself where it is whole.

    Raises CorruptCheckpoint where its name is not that of such a part, or other parts are not beside it.
    """
    fields = Fields(metadata, str(path))
    count = fields.integer("split.count", 1, low=0, high=MAX_PARTS)
    if count <= 1:
        return [path]
    number = fields.integer("split.no", low=0, high=count - 1) + 1
    match = _NAME.fullmatch(path.name)
    if match is None or (int(match[2]), int(match[3])) != (number, count):
        raise CorruptCheckpoint(
            f"{path} is part {number} of {count}: it has to be named NAME-{number:05}-of-{count:05}.gguf, "
            "as all parts were when they were split"
        )
    paths = [path.with_name(name) for name in part_names(match[1], count)]
    if missing := [other.name for other in paths if not other.is_file()]:
        more = f" and {len(missing) - _NUM_NAMED} more" if len(missing) > _NUM_NAMED else ""
        raise CorruptCheckpoint(
            f"{path} is part {number} of {count}, and {', '.join(missing[:_NUM_NAMED])}{more} "
            f"{'is' if len(missing) == 1 else 'are'} not beside it: the download is not complete"
        )
    return paths


def part_names(stem: str, count: int) -> list[str]:
    """The file names of a model's parts."""
    return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def sibling_names(name: str) -> list[str]:
    """The names of all parts of the model that a file of this name is a part of; only itself where it is none."""
    match = _NAME.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]) <= MAX_PARTS:
        return [name]
    return part_names(match[1], int(match[3]))


def check_parts(
    paths: Sequence[Path], metadata: Sequence[Mapping[str, Value]], tensors: Sequence[Collection[str]]
) -> None:
    """Raises CorruptCheckpoint where the parts, by their metadata and names of tensors, are not one model's."""
    if len(paths) == 1:
        return
    owner: dict[str, Path] = {}
    for number, (path, values, names) in enumerate(zip(paths, metadata, tensors, strict=True)):
        fields = Fields(values, str(path))
        said = fields.integer("split.no", low=0), fields.integer("split.count", low=0)
        if said != (number, len(paths)):
            raise CorruptCheckpoint(f"{path} says that it is part {said[0] + 1} of {said[1]}, and not as it is named")
        for name in names:
            if name in owner:
                raise CorruptCheckpoint(f"{path} has the tensor {name!r}, which {owner[name].name} has too")
            owner[name] = path
    wanted = Fields(metadata[0], str(paths[0])).integer("split.tensors.count", len(owner), low=0)
    if len(owner) != wanted:
        raise CorruptCheckpoint(f"{paths[0]} and the parts beside it have {len(owner)} tensors; it says {wanted}")
