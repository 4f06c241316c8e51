"""Prints native/tests/known_rows.inc: hashes of what the gguf package makes of the bytes that test_products.cpp packs.

Run it as `python tests/native/known_rows.py > native/tests/known_rows.inc`.
"""

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

NUM_ROWS, NUM_COLS, SEED = 7, 512, 1
HALF_PLACES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where a block has float16 numbers; 0 where nothing is said."""
BLOCKS = {
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Columns and bytes of a block."""


def random_bytes(count: int) -> bytearray:
    """The linear congruential generator of test_products.cpp."""
    state = SEED
    made = bytearray()
    for _ in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        made.append(state >> 24)
    return made


def random_rows(name: str) -> np.ndarray:
    """random_rows() of test_products.cpp: [NUM_ROWS, bytes]."""
    block_cols, block_bytes = BLOCKS[name]
    row_bytes = NUM_COLS // block_cols * block_bytes
    made = random_bytes(NUM_ROWS * row_bytes)
    for block in range(0, len(made), block_bytes):
        for place in HALF_PLACES.get(name, (0,)):
            made[block + place + 1] = made[block + place + 1] & 0x83 | 0x20
    return np.frombuffer(bytes(made), np.uint8).reshape(NUM_ROWS, row_bytes)


def fnv1a(data: bytes) -> int:
    """The 64-bit hash FNV-1a."""
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


for type_name in BLOCKS:
    values = dequantize(random_rows(type_name), GGMLQuantizationType[type_name])
    print(f"{{GgmlType::{type_name.lower()}, 0x{fnv1a(values.astype('<f4').tobytes()):016x}u}},")
