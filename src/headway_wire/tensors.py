"""The datatypes of the Open Inference Protocol (v2), and tensors from and to numpy arrays.

numpy is imported when it is first used: this package needs none of it otherwise.
Source: the protocol's "Tensor Data Types" and its binary tensor data extension.
"""

import struct
from functools import lru_cache
from typing import Any, Dict, List, Sequence

from headway_wire.messages import Tensor

ITEM_BYTES: Dict[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""Bytes of an element; BYTES has none of its own."""

NUMPY_NAMES: Dict[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""BF16 has no type of numpy's: to_array gives float32. BYTES is an array of objects, each bytes."""

_DATATYPES = {name: datatype for datatype, name in NUMPY_NAMES.items()}


def num_elements(shape: Sequence[int]) -> int:
    """Their product; 1 of an empty shape."""
    product = 1
    for size in shape:
        product *= size
    return product


def pack_bytes(elements: Sequence[bytes]) -> bytes:
    """The data of a BYTES tensor."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def unpack_bytes(data: bytes) -> List[bytes]:
    """The elements of a BYTES tensor. Raises ValueError that tells where it ends too early."""
    elements: List[bytes] = []
    start = 0
    while start < len(data):
        end = start + 4
        length = struct.unpack_from("<I", data, start)[0] if end <= len(data) else 0
        if end + length > len(data):
            raise ValueError(
                f"element {len(elements)} of a BYTES tensor begins at byte {start} and ends behind its {len(data)}"
            )
        elements.append(bytes(data[end : end + length]))
        start = end + length
    return elements


def to_array(tensor: Tensor) -> Any:
    """A numpy array of the tensor's shape; it shares the bytes and is read-only, but for BF16 and BYTES.

    Raises ValueError where the bytes do not fit the shape.
    """
    import numpy as np

    if tensor.datatype == "BYTES":
        elements = unpack_bytes(tensor.data)
        if len(elements) != num_elements(tensor.shape):
            raise ValueError(f"{len(elements)} elements do not fill the shape {tensor.shape}")
        array = np.empty(len(elements), dtype=object)
        array[:] = elements
        return array.reshape(tensor.shape)
    if tensor.datatype == "BF16":
        wide = np.frombuffer(tensor.data, dtype="<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(tensor.shape)
    return np.frombuffer(tensor.data, dtype=dtype_of(tensor.datatype)).reshape(tensor.shape)


def from_array(name: str, array: Any, *, datatype: str = "") -> Tensor:
    """A tensor of a numpy array; of objects and strings: BYTES, text as UTF-8. `datatype` "BF16" rounds float32 to it.

    Raises ValueError for a type that the protocol has not.
    """
    import numpy as np

    shape = list(array.shape)
    if array.dtype.kind in "OSU":
        elements = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1).tolist()]
        return Tensor(name=name, datatype="BYTES", shape=shape, data=pack_bytes(elements))
    if datatype == "BF16":
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet = np.where(np.isnan(array), (bits >> 16) | 0x40, rounded)
        return Tensor(name=name, datatype="BF16", shape=shape, data=quiet.astype("<u2").tobytes())
    known = datatype_of(array.dtype)
    if not known:
        raise ValueError(f"{name} has the type {array.dtype}, which the protocol has not")
    return Tensor(name=name, datatype=known, shape=shape, data=array.astype(dtype_of(known), copy=False).tobytes())


@lru_cache(maxsize=64)
def dtype_of(datatype: str) -> Any:
    """numpy's dtype of a datatype of NUMPY_NAMES, little-endian."""
    import numpy as np

    return np.dtype(NUMPY_NAMES[datatype]).newbyteorder("<")


@lru_cache(maxsize=64)
def datatype_of(dtype: Any) -> str:
    """The datatype of a dtype of numpy's, whatever its byte order; "": none, or one without a name there (BYTES)."""
    return _DATATYPES.get(dtype.name, "")
