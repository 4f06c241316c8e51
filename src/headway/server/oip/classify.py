"""The classification extension: an output's largest elements as texts, "value:index:label"."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import headway_wire as wire
from headway.errors import InvalidRequest
from headway_wire.tensors import pack_bytes, to_array

if TYPE_CHECKING:
    import numpy as np


def classify(tensor: wire.Tensor, num_classes: int, labels: Sequence[str] | None) -> wire.Tensor:
    """The `num_classes` largest of each row of the last axis (all of a shorter one), in descending order, as BYTES.

    Ties go to the lower index. Raises InvalidRequest for an output that has no numbers in a row.
    """
    if tensor.datatype in ("BYTES", "BOOL") or not tensor.shape:
        raise InvalidRequest(
            f"output {tensor.name} is {tensor.datatype} of shape {tensor.shape}; classification is of numbers in a row",
            param="outputs",
        )
    array = to_array(tensor)
    count = min(num_classes, array.shape[-1])
    if not array.size:
        return wire.Tensor(name=tensor.name, datatype="BYTES", shape=[*array.shape[:-1], count], data=b"")
    # From the end of an ascending order that is stable over the reversed row: the lower of equal indexes comes first.
    reversed_order = array[..., ::-1].argsort(axis=-1, kind="stable")[..., ::-1]
    order = (array.shape[-1] - 1 - reversed_order)[..., :count].reshape(-1, count)
    rows = array.reshape(-1, array.shape[-1])
    texts = [_text(rows[row, index], index, labels) for row, indexes in enumerate(order.tolist()) for index in indexes]
    return wire.Tensor(name=tensor.name, datatype="BYTES", shape=[*array.shape[:-1], count], data=pack_bytes(texts))


def _text(value: "np.generic", index: int, labels: Sequence[str] | None) -> bytes:
    """As Triton writes it: floats with six digits, integers as they are."""
    number = f"{value:f}" if value.dtype.kind == "f" else str(value)
    label = f":{labels[index]}" if labels is not None and index < len(labels) else ""
    return f"{number}:{index}{label}".encode()
