"""Tensors as JSON tells them, for every door: the elements flat or nested row by row, as the shape has them.

Source: the Open Inference Protocol's "Tensor Data". JSON's types are strict, as in all bodies: 1 is no boolean and 1.0
no integer; an integer is a number where a float is wanted. FP16 is told as numbers, which other servers refuse; BF16 is
not, since few clients could make one of a number: it goes as binary data.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import headway_wire as wire
from headway.errors import InvalidRequest
from headway.server.body import describe
from headway_wire.tensors import ITEM_BYTES, num_elements, pack_bytes, to_array, unpack_bytes

if TYPE_CHECKING:
    import numpy as np

MAX_AXES = 32
MAX_ELEMENTS = 1 << 48
"""Of a shape, its zeros left out: what is more fits no memory, and overflows sums of sizes."""
_CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""struct's."""
_LARGEST = {"FP16": 65504.0, "FP32": 3.4028234663852886e38, "FP64": 1.7976931348623157e308}
DATATYPES = (*ITEM_BYTES, "BYTES")


def tensor_from_json(
    name: str, datatype: str, shape: Sequence[int], data: Any, *, param: str, may_have_booleans: bool = True
) -> wire.Tensor:
    """The tensor of JSON's `data`: a list of the elements in row-major order, or lists nested as the shape is.

    Args:
        param: the body's field that holds the tensor, for errors.
        may_have_booleans: False where the caller knows that none are in `data`: looking for them takes a while.

    Raises InvalidRequest that names the tensor, the element and its value.
    """
    check_shape(name, datatype, shape, param=param)
    elements = _flatten(data, shape, f"{name[:100]}.data", param)
    if datatype == "BF16":
        raise InvalidRequest(
            f"{name[:100]} is BF16, which JSON does not tell: send it as binary data (binary_data_size)", param=param
        )
    packed = _pack_texts(elements) if datatype == "BYTES" else _pack(elements, datatype, may_have_booleans)
    return wire.Tensor(name=name, datatype=datatype, shape=list(shape), data=packed)


def tensor_from_binary(
    name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview, *, param: str
) -> wire.Tensor:
    """The tensor of bytes in the protocol's layout, which are not copied. Raises InvalidRequest for a wrong size, for
    BYTES whose lengths do not add up, and for a BOOL that is neither 0 nor 1."""
    check_shape(name, datatype, shape, param=param)
    count = num_elements(shape)
    if datatype == "BYTES":
        _check_lengths(name, data, count, param)
    elif len(data) != count * ITEM_BYTES[datatype]:
        raise InvalidRequest(
            f"{name[:100]} has {len(data)} bytes; {datatype} of shape {list(shape)} has {count * ITEM_BYTES[datatype]}",
            param=param,
        )
    elif datatype == "BOOL" and (others := bytes(data).translate(None, b"\0\1")):
        raise InvalidRequest(f"{name[:100]} has a byte {others[0]}; BOOL is a byte of 0 or 1", param=param)
    # Whoever reads it takes any buffer; a copy of what may be megabytes is what this door is for not making.
    return wire.Tensor(name=name, datatype=datatype, shape=list(shape), data=data)  # type: ignore[arg-type]


def check_shape(name: str, datatype: str, shape: Sequence[int], *, param: str) -> None:
    """Raises InvalidRequest for an unknown datatype, a negative size, and a shape that no memory holds."""
    if datatype not in DATATYPES:
        raise InvalidRequest(
            f"{name[:100]} has the datatype {datatype[:50]!r}; it must be one of {', '.join(DATATYPES)}", param=param
        )
    if len(shape) > MAX_AXES:
        raise InvalidRequest(f"{name[:100]} has {len(shape)} axes; at most {MAX_AXES} are taken", param=param)
    for size in shape:
        if size < 0:
            raise InvalidRequest(f"{name[:100]} has the shape {list(shape)}: no size may be negative", param=param)
    if math.prod(size for size in shape if size) > MAX_ELEMENTS:
        raise InvalidRequest(
            f"{name[:100]} has the shape {list(shape)}; at most {MAX_ELEMENTS} elements are taken", param=param
        )


def json_elements(tensor: wire.Tensor) -> "np.ndarray | list[str]":
    """All elements as JSON tells them, flat and in row-major order: an array of numbers or booleans, or texts.

    Raises InvalidRequest for what JSON has no words for: NaN, infinities, BF16, bytes that are no UTF-8.
    """
    import numpy as np

    if tensor.datatype == "BYTES":
        return _texts(tensor)
    if tensor.datatype == "BF16":
        raise _untold(tensor.name, "is BF16")
    if tensor.datatype == "BOOL":
        return np.frombuffer(tensor.data, np.uint8).astype(bool)
    array = cast("np.ndarray", to_array(tensor)).reshape(-1)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = int(np.flatnonzero(~np.isfinite(array))[0])
        raise _untold(tensor.name, f"has {array[place]} as element {place}")
    return array


def _untold(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"output {name[:100]} {what}, which JSON does not tell: ask for it as binary data (binary_data: true)",
        param="outputs",
    )


def _texts(tensor: wire.Tensor) -> list[str]:
    texts = []
    for place, element in enumerate(unpack_bytes(tensor.data)):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError:
            raise _untold(tensor.name, f"has bytes that are no UTF-8 as element {place}") from None
    return texts


@dataclass(frozen=True, slots=True)
class _Elements:
    """What `data` holds, in row-major order."""

    values: list[Any]
    sizes: Sequence[int]
    """Of the lists that they stood in: one where they came flat."""
    place: str
    param: str

    def refusal(self, index: int, wanted: str) -> InvalidRequest:
        """Of one of them."""
        found = self.values[index]
        value = repr(found) if isinstance(found, float) else describe(found)
        return InvalidRequest(f"{self.place}{_index(index, self.sizes)} is {value}; {wanted}", param=self.param)


def _flatten(data: Any, shape: Sequence[int], place: str, param: str) -> _Elements:
    """Whether each is a tensor's element is not looked at. Raises InvalidRequest for the nesting."""
    if type(data) is not list:
        raise InvalidRequest(f"{place} is {describe(data)}; it must be a list", param=param)
    is_nested = bool(data) and type(data[0]) is list and len(shape) > 1
    sizes = shape if is_nested else [num_elements(shape)]
    rows = [data]
    for axis, size in enumerate(sizes):
        for index, row in enumerate(rows):
            if type(row) is not list or len(row) != size:
                raise _wrong_nesting(f"{place}{_index(index, sizes[:axis])}", row, shape, size, param)
        rows = data if axis == 0 else list(chain.from_iterable(rows))
    return _Elements(rows, sizes, place, param)


def _wrong_nesting(place: str, row: Any, shape: Sequence[int], size: int, param: str) -> InvalidRequest:
    """Of a list that is none, or has not `size` elements."""
    what = f"has {len(row)} elements" if isinstance(row, list) else f"is {describe(row)}"
    return InvalidRequest(
        f"{place} {what}, where the shape {list(shape)} has {size}: elements come nested as the shape is, or all in one"
        " flat list",
        param=param,
    )


def _index(flat: int, sizes: Sequence[int]) -> str:
    """[i][j] of a flat place within `sizes`; nothing of no sizes."""
    steps = []
    for size in reversed(sizes):
        flat, step = divmod(flat, size)
        steps.append(f"[{step}]")
    return "".join(reversed(steps))


def _pack(elements: _Elements, datatype: str, may_have_booleans: bool) -> bytes:
    """Numbers and booleans, little-endian. Raises InvalidRequest for the first that the datatype does not hold."""
    if datatype == "BOOL" or may_have_booleans:
        _check_booleans(elements, datatype)
    code = _CODES[datatype]
    try:
        return struct.pack(f"<{len(elements.values)}{code}", *elements.values)
    except (struct.error, OverflowError):
        index = next(index for index, value in enumerate(elements.values) if not _holds(code, value))
        raise elements.refusal(index, _wanted(datatype)) from None


def _check_booleans(elements: _Elements, datatype: str) -> None:
    """struct takes anything as a boolean, and booleans as numbers."""
    types, is_boolean = set(map(type, elements.values)), datatype == "BOOL"
    if (types - {bool}) if is_boolean else (bool in types):
        misfits = (index for index, value in enumerate(elements.values) if isinstance(value, bool) != is_boolean)
        raise elements.refusal(next(misfits), _wanted(datatype))


def _holds(code: str, value: Any) -> bool:
    try:
        struct.pack("<" + code, value)
    except (struct.error, OverflowError):
        return False
    return True


def _wanted(datatype: str) -> str:
    if datatype == "BOOL":
        return "BOOL takes true and false"
    if datatype in _LARGEST:
        return f"{datatype} takes numbers from -{_LARGEST[datatype]:.8g} to {_LARGEST[datatype]:.8g}"
    bits = 8 * ITEM_BYTES[datatype]
    low, high = (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return f"{datatype} takes integers from {low} to {high}"


def _pack_texts(elements: _Elements) -> bytes:
    """Strings as BYTES has them, in UTF-8."""
    if set(map(type, elements.values)) - {str}:
        index = next(index for index, element in enumerate(elements.values) if type(element) is not str)
        raise elements.refusal(index, "BYTES takes strings")
    return pack_bytes([element.encode() for element in elements.values])


def _check_lengths(name: str, data: bytes | memoryview, count: int, param: str) -> None:
    """That BYTES are `count` elements, each behind its length, and nothing more."""
    start = found = 0
    while start < len(data) and found <= count:
        end = start + 4
        start = end + (struct.unpack_from("<I", data, start)[0] if end <= len(data) else 0)
        found += 1
        if start > len(data) or end > len(data):
            raise InvalidRequest(
                f"{name[:100]}: element {found - 1} ends behind the tensor's {len(data)} bytes; each element stands"
                " behind its length in 4 bytes, little-endian",
                param=param,
            )
    if found != count:
        raise InvalidRequest(
            f"{name[:100]} has {'more' if found > count else found} elements; its shape has {count}", param=param
        )
