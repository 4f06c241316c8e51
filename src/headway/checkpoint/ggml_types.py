"""The tensor types of GGUF files: their names, their blocks, and the ones that are made float32 here.

A quantised type stores blocks of numbers; `d` and `m` below are the block's float16 scale and minimum:

    Q8_0  [d | 32 signed bytes q]                       q * d
    Q4_0  [d | 16 bytes: low nibbles, high nibbles q]   (q - 8) * d
    Q4_1  [d | m | 16 bytes: as Q4_0]                   q * d + m
    Q5_0  [d | 4 bytes: fifth bits | 16 bytes: as Q4_0]      (q - 16) * d
    Q5_1  [d | m | 4 bytes: fifth bits | 16 bytes: as Q4_0]  q * d + m
    Q4_K, Q5_K, Q6_K                                    ggml_k_types.py

Source: ggml-common.h and ggml-quants.c of ggml.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.checkpoint.ggml_k_types import from_q4_k, from_q5_k, from_q6_k, half

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A tensor type: `block_size` numbers are stored in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


_TYPES: dict[int, GgmlType] = {
    number: GgmlType(name, block_size, block_bytes)
    for number, name, block_size, block_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 40),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
    )
}

REMOVED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Numbers that ggml gave out and took back; files with them exist."""


def find_type(number: int) -> GgmlType | None:
    """The type of this number, or None."""
    return _TYPES.get(number)


def _from_f32(data: Bytes) -> Float32:
    values = data.view(np.float32)
    return values if values.flags.aligned else values.copy()


def _from_f16(data: Bytes) -> Float32:
    return data.view(np.float16).astype(np.float32)


def from_bf16(data: Bytes) -> Float32:
    """bfloat16 is the upper half of a float32."""
    widened = data.view(np.uint16).astype(np.uint32)
    widened <<= 16
    return widened.view(np.float32)


def _from_q8_0(data: Bytes) -> Float32:
    blocks = data.reshape(-1, 34)
    values = blocks[:, 2:].view(np.int8).astype(np.float32)  # [num_blocks, 32]
    values *= half(blocks[:, 0:2])
    return values.reshape(-1)


def _from_q4_0(data: Bytes) -> Float32:
    blocks = data.reshape(-1, 18)
    values = _nibbles(blocks[:, 2:])
    values -= 8
    values *= half(blocks[:, 0:2])
    return values.reshape(-1)


def _from_q4_1(data: Bytes) -> Float32:
    blocks = data.reshape(-1, 20)
    values = _nibbles(blocks[:, 4:])
    values *= half(blocks[:, 0:2])
    values += half(blocks[:, 2:4])
    return values.reshape(-1)


def _from_q5_0(data: Bytes) -> Float32:
    blocks = data.reshape(-1, 22)
    values = _nibbles(blocks[:, 6:])
    values += _fifth_bits(blocks[:, 2:6])
    values -= 16
    values *= half(blocks[:, 0:2])
    return values.reshape(-1)


def _from_q5_1(data: Bytes) -> Float32:
    blocks = data.reshape(-1, 24)
    values = _nibbles(blocks[:, 8:])
    values += _fifth_bits(blocks[:, 4:8])
    values *= half(blocks[:, 0:2])
    values += half(blocks[:, 2:4])
    return values.reshape(-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """16 where a number's fifth bit is set: bit i of the 32 is that of number i."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)  # [num_blocks, 32]


def _nibbles(packed: Bytes) -> Float32:
    values = np.empty((packed.shape[0], 32), np.float32)
    values[:, :16] = packed & 15
    values[:, 16:] = packed >> 4
    return values


_DEQUANTISE: dict[str, Callable[[Bytes], Float32]] = {
    "F32": _from_f32,
    "F16": _from_f16,
    "BF16": from_bf16,
    "Q8_0": _from_q8_0,
    "Q4_0": _from_q4_0,
    "Q4_1": _from_q4_1,
    "Q5_0": _from_q5_0,
    "Q5_1": _from_q5_1,
    "Q4_K": from_q4_k,
    "Q5_K": from_q5_k,
    "Q6_K": from_q6_k,
}
READABLE_TYPES = tuple(_DEQUANTISE)


def dequantise(type_name: str, data: Bytes) -> Float32:
    """All numbers of whole blocks, in order, one-dimensional. `type_name` is one of READABLE_TYPES.

    F32 comes back as a view of `data` where that is aligned, every other type as a new array. Infinities and NaN in the
    file come back as such.
    """
    with np.errstate(all="ignore"):
        return _DEQUANTISE[type_name](data)
