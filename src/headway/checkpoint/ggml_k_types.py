"""The K types of GGUF files, made float32: blocks of 256 numbers in groups, whose scales are integers times one scale.

`d` and `m` are the block's float16 scales of the groups' scales and mins; `s` and `n` a group's own, integers:

    Q4_K  [d | m | 12 bytes: 8 x s, n of 6 bits | 128 bytes: 4 bits q]                             q * (d * s) - m * n
    Q5_K  [d | m | 12 bytes: the same | 32 bytes: fifth bits | 128 bytes: 4 bits q]                q * (d * s) - m * n
    Q6_K  [128 bytes: 4 bits q | 64 bytes: fifth and sixth bits | 16 signed bytes: s | d]          (q - 32) * (d * s)

Source: ggml-common.h and ggml-quants.c of ggml.
"""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


def from_q4_k(data: Bytes) -> Float32:
    """Numbers of whole blocks, in order."""
    blocks = data.reshape(-1, 144)
    return _scaled(_nibbles(blocks[:, 16:], 32), blocks)


def from_q5_k(data: Bytes) -> Float32:
    """Numbers of whole blocks, in order."""
    blocks = data.reshape(-1, 176)
    codes = _nibbles(blocks[:, 48:], 32)
    codes |= _planes(blocks[:, 16:48], 32, 1) << 4
    return _scaled(codes, blocks)


def from_q6_k(data: Bytes) -> Float32:
    """Numbers of whole blocks, in order."""
    blocks = data.reshape(-1, 210)
    codes = _nibbles(blocks[:, :128], 64)
    codes |= _planes(blocks[:, 128:192], 32, 2) << 4
    values = codes.reshape(-1, 16, 16).astype(np.float32)
    values -= 32
    values *= (half(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8).astype(np.float32))[:, :, None]
    return values.reshape(-1)


def half(pair: Bytes) -> Float32:
    """Two bytes of each block as its float16, [num_blocks, 1]."""
    return np.ascontiguousarray(pair).view(np.float16).astype(np.float32)


def _scaled(codes: Bytes, blocks: Bytes) -> Float32:
    """Codes of 8 groups of 32 with the scales and mins at the head of a Q4_K or Q5_K block."""
    scales, mins = _six_bits(blocks[:, 4:16])
    values = codes.reshape(-1, 8, 32).astype(np.float32)
    values *= (half(blocks[:, 0:2]) * scales)[:, :, None]
    values -= (half(blocks[:, 2:4]) * mins)[:, :, None]
    return values.reshape(-1)


def _six_bits(packed: Bytes) -> tuple[Float32, Float32]:
    """Scales and mins of 8 groups, [num_blocks, 8] each.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 mins 0-3 in their low six bits. Scale and min of group 4 + i have their low
    four bits in byte 8 + i, and their upper two on top of bytes i and 4 + i.
    """
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], 1)
    mins = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], 1)
    return scales.astype(np.float32), mins.astype(np.float32)


def _nibbles(packed: Bytes, width: int) -> Bytes:
    """Each run of `width` bytes holds twice as many numbers: all the low halves, then all the high ones."""
    runs = packed.reshape(-1, packed.shape[1] // width, 1, width)
    return np.concatenate([runs & 15, runs >> 4], 2).reshape(packed.shape[0], -1)


def _planes(packed: Bytes, width: int, num_bits: int) -> Bytes:
    """Each run of `width` bytes holds a number of num_bits in each place: the lowest bits of all, then the next."""
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)[:, None]
    runs = packed.reshape(-1, packed.shape[1] // width, 1, width)
    lowest = np.uint8((1 << num_bits) - 1)
    return ((runs >> shifts) & lowest).reshape(packed.shape[0], -1)
