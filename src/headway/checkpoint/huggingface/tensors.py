"""A folder's tensors under canonical names, by the table of names that a family has."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headway.checkpoint.pieces import Split
from headway.checkpoint.safetensors import SafeTensor, SafetensorsFile
from headway.checkpoint.shape import ModelShape
from headway.checkpoint.weights import WeightView
from headway.errors import CorruptCheckpoint

ROTARY = r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"
"""Tables that older files hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """How a family names its tensors."""

    outside: Mapping[str, str]
    """Whole names outside of the layers: canonical ones."""
    layers: str = r"model\.layers"
    """What stands before the number of a layer, as a regular expression."""
    parts: Mapping[str, str | Split]
    """Names in a layer, without .weight and .bias: the canonical one, or what the tensor splits into. A `*` in both
    stands for a number."""
    whole: Mapping[str, str] = field(default_factory=dict)
    """Names in a layer that end in neither: canonical ones."""
    drops_more_layers: bool = False
    """Layers behind the last are another model's, which predicts further tokens (DeepSeek-V3)."""
    transposed: frozenset[str] = field(default_factory=frozenset)
    """Those of parts whose weights stand as [in, out]."""
    derived: str = ROTARY
    """Names of what is no weight but follows from the config."""

    def views(self, file: SafetensorsFile, tensor: SafeTensor, shape: ModelShape) -> Iterator[tuple[str, WeightView]]:
        """What a tensor is, canonically; its own name where it has no other, nothing where it is to be ignored."""
        name = tensor.name
        canonical = self.outside.get(name, name)
        if re.fullmatch(self.derived, name) or (shape.is_tied and canonical == "lm_head.weight"):
            return
        layer = re.fullmatch(rf"{self.layers}\.(0|[1-9]\d{{0,5}})\.([\w.]+)", name)
        if layer and self.drops_more_layers and int(layer[1]) >= shape.num_layers:
            return
        if layer and layer[2] in self.whole:
            yield f"layers.{layer[1]}.{self.whole[layer[2]]}", WeightView(file, name, tensor.shape)
            return
        match = re.fullmatch(rf"{self.layers}\.(0|[1-9]\d{{0,5}})\.([\w.]+)\.(weight|bias)", name)
        part = self._part(match[2]) if match else None
        if match is None or part is None:
            yield canonical, WeightView(file, name, tensor.shape)
            return
        is_transposed = match[2] in self.transposed and match[3] == "weight" and len(tensor.shape) == 2
        whole = tensor.shape[::-1] if is_transposed else tensor.shape
        if isinstance(part, str):
            yield f"layers.{match[1]}.{part}.{match[3]}", WeightView(file, name, whole, is_transposed=is_transposed)
            return
        pieces = part(shape)
        height = sum(piece.rows.num_rows for piece in pieces)
        if not whole or whole[0] != height:
            raise CorruptCheckpoint(f"{file.file.path}: {name!r} has the shape {tensor.shape}, not {height} rows")
        for piece in pieces:
            view = WeightView(
                file,
                name,
                piece.shape_in(whole, f"{file.file.path}: {name!r}"),
                rows=piece.rows,
                turned_heads=piece.turned_heads,
                is_transposed=is_transposed,
            )
            yield f"layers.{match[1]}.{piece.part}.{match[3]}", view

    def _part(self, name: str) -> str | Split | None:
        found = self.parts.get(name)
        number = re.search(r"\.(0|[1-9]\d{0,5})\.", name)
        if found is not None or number is None:
            return found
        part = self.parts.get(name.replace(number[0], ".*.", 1))
        return part.replace("*", number[1]) if isinstance(part, str) else part


def views_by_name(files: Sequence[SafetensorsFile], shape: ModelShape, names: TensorNames) -> dict[str, WeightView]:
    """Each canonical tensor of the folder's files.

    Raises CorruptCheckpoint where one is there twice or is not as large as its parts; UnsupportedModel for a dtype.
    """
    found: dict[str, WeightView] = {}
    for file in files:
        kept = []
        for tensor in file.tensors.values():
            for canonical, view in names.views(file, tensor, shape):
                if canonical in found:
                    before = found[canonical]
                    where = "in another file" if before.file is not file else f"there as {before.name!r}"
                    raise CorruptCheckpoint(f"{file.file.path}: {tensor.name!r} is also {where}")
                found[canonical] = view
                kept.append(tensor.name)
        file.check_readable(kept)
    return found
