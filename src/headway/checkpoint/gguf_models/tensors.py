"""A GGUF file's tensors under canonical names.

llama.cpp's converter interleaves the halves of each head's q and k rows for the architectures that it rotates in
neighbouring pairs (llama, which mistral files also say, granite, smollm3), not for those it rotates in halves.
MappedWeights undoes it. Fused tensors (q, k and v; Phi's gate and up) are runs of their rows.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_reader import GgufTensor
from headway.checkpoint.pieces import Piece, Rows, Split, stacked_qkv
from headway.checkpoint.shape import ModelShape
from headway.checkpoint.weights import WeightView
from headway.errors import CorruptCheckpoint

OUTSIDE: Mapping[str, str] = {
    "token_embd": "embed",
    "position_embd": "positions",
    "output_norm": "final_norm",
    "output": "lm_head",
}
PARTS: Mapping[str, str] = {
    "attn_norm": "attn_norm",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_output": "attn.o",
    "attn_q_norm": "attn.q_norm",
    "attn_k_norm": "attn.k_norm",
    "post_attention_norm": "attn_out_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
    "post_ffw_norm": "mlp_out_norm",
    "ffn_gate_inp": "mlp.router",
    "exp_probs_b": "mlp.choice",
    "ffn_gate_shexp": "mlp.shared.gate",
    "ffn_up_shexp": "mlp.shared.up",
    "ffn_down_shexp": "mlp.shared.down",
    "ffn_gate_inp_shexp": "mlp.shared_gate",
    "attn_q_a": "attn.q_a",
    "attn_q_a_norm": "attn.q_a_norm",
    "attn_q_b": "attn.q_b",
    "attn_kv_a_norm": "attn.latent_norm",
    "attn_k_b": "attn.k_up",
    "attn_v_b": "attn.v_up",
}
_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_NAME = re.compile(r"(\w+(?:\.output)?)\.(weight|bias)")
_DERIVED = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.attn_rot_embd(\.weight)?")
"""Not weights: they follow from the metadata, or are read with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufNames:
    """What an architecture does with its tensors beside naming them as all do."""

    is_interleaved: bool = False
    """The rows of q and k stand in neighbouring pairs."""
    splits: Mapping[str, Split] = field(default_factory=lambda: {"attn_qkv": stacked_qkv})
    """Tensors of a layer that hold several."""
    outside: Mapping[str, str] = field(default_factory=lambda: OUTSIDE)
    """Names outside of the layers: canonical ones."""
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    """Names in a layer: canonical ones."""
    norm_shift: float = 0.0
    """Added to norms' weights as they are read (the converter writes Gemma's as 1 + w)."""


def views_by_name(file: GgufFile, shape: ModelShape, names: GgufNames) -> dict[str, WeightView]:
    """Each tensor under its canonical name; one without keeps its own name, so that a comparison shows it.

    Raises CorruptCheckpoint where two tensors are the same one, or one does not split into its parts.
    """
    found: dict[str, WeightView] = {}
    for tensor in file.tensors.values():
        if _DERIVED.fullmatch(tensor.name):
            continue
        for canonical, view in _views_of(file, tensor, shape, names):
            if canonical in found:
                raise CorruptCheckpoint(
                    f"{file.file.path}: {tensor.name!r} and {found[canonical].name!r} are both {canonical}"
                )
            found[canonical] = view
    return found


def _views_of(
    file: GgufFile, tensor: GgufTensor, shape: ModelShape, names: GgufNames
) -> Iterator[tuple[str, WeightView]]:
    name = tensor.name
    if match := _LAYER.fullmatch(name):
        layer, part, kind = match.groups()
        for piece in _pieces(file, tensor, shape, names, part):
            view_shape = piece.shape_in(tensor.shape, f"{file.file.path}: {name!r}")
            yield (
                f"layers.{int(layer)}.{piece.part}.{kind}",
                WeightView(
                    file,
                    name,
                    view_shape,
                    rows=None if view_shape == tensor.shape else piece.rows,
                    interleaved_heads=_interleaved_heads(file, shape, names, name, piece),
                    turned_heads=piece.turned_heads,
                    shift=names.norm_shift if part.endswith("norm") else 0.0,
                ),
            )
        if part in names.parts or part in names.splits:
            return
    elif (match := _NAME.fullmatch(name)) and match[1] in names.outside:
        shift = names.norm_shift if match[1].endswith("norm") else 0.0
        yield f"{names.outside[match[1]]}.{match[2]}", WeightView(file, name, tensor.shape, shift=shift)
        return
    yield name, WeightView(file, name, tensor.shape)


def _pieces(file: GgufFile, tensor: GgufTensor, shape: ModelShape, names: GgufNames, part: str) -> tuple[Piece, ...]:
    """What a layer's tensor holds; nothing where its name is unknown."""
    num_rows = tensor.shape[0]
    if part in names.splits:
        pieces = names.splits[part](shape)
        height = sum(piece.rows.num_rows for piece in pieces)
        if num_rows != height:
            held = " and ".join(", ".join(piece.part for piece in pieces).rsplit(", ", 1))
            raise CorruptCheckpoint(
                f"{file.file.path}: {tensor.name!r} has {num_rows} rows, {held} together have {height}"
            )
        return pieces
    if part not in names.parts:
        return ()
    # One row, which files may hold as a vector.
    view_shape = (1, num_rows) if part == "ffn_gate_inp_shexp" and len(tensor.shape) == 1 else None
    return (Piece(names.parts[part], Rows(0, num_rows), view_shape),)


def _interleaved_heads(file: GgufFile, shape: ModelShape, names: GgufNames, name: str, piece: Piece) -> int | None:
    if not names.is_interleaved:
        return None
    heads = {"attn.q": shape.num_heads, "attn.k": shape.num_kv_heads}.get(piece.part)
    if heads is not None and piece.rows.num_rows % (heads * 2):
        raise CorruptCheckpoint(f"{file.file.path}: {name!r} has {piece.rows.num_rows} rows for {heads} heads")
    return heads
