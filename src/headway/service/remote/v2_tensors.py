"""Tensors over the Open Inference Protocol's REST with its binary data extension: a request's body, an answer's parts.

    JSON header | data of input 0 | data of input 1 | ...      Inference-Header-Content-Length says where JSON ends

A server without the extension answers in JSON alone, which is read too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import headway_wire as wire
from headway.core.infer import InferRequest
from headway.errors import UpstreamFailed
from headway_wire.tensors import ITEM_BYTES, NUMPY_NAMES, from_array, num_elements, pack_bytes, unpack_bytes

LENGTH_HEADER = "inference-header-content-length"


class _Parameters(msgspec.Struct):
    binary_data_size: int | None = None


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: _Parameters | None = None
    data: list[Any] | None = None


_MAX_AXES = 64
"""As numpy has them."""


class _Answer(msgspec.Struct):
    outputs: list[_Output]


def pack_request(request: InferRequest) -> tuple[dict[str, str], bytes]:
    """Headers and body."""
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "parameters": {"binary_data_size": len(tensor.data)},
        }
        for tensor in request.tensors
    ]
    head: dict[str, Any] = {"id": request.request_id, "inputs": inputs}
    parameters = {name: value for name, value in request.parameters.items() if not name.startswith("binary_data")}
    if request.outputs:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in request.outputs]
    else:
        parameters["binary_data_output"] = True
    if parameters:
        head["parameters"] = parameters
    text = msgspec.json.encode(head)
    headers = {"content-type": "application/octet-stream", LENGTH_HEADER: str(len(text))}
    return headers, b"".join((text, *(tensor.data for tensor in request.tensors)))


def unpack_answer(server: str, headers: Mapping[str, str], body: bytes) -> list[wire.Tensor]:
    """The output tensors. Raises UpstreamFailed for what is no such answer."""
    try:
        told = headers.get(LENGTH_HEADER)
        head_length = len(body) if told is None else int(told)
        answer = msgspec.json.decode(body[:head_length], type=_Answer)
        return _read_outputs(answer.outputs, memoryview(body)[head_length:])
    except (ValueError, TypeError, OverflowError) as error:  # msgspec's are ValueErrors
        raise UpstreamFailed(f"{server} answered with what are no tensors: {error}") from error


def _read_outputs(outputs: Sequence[_Output], rest: memoryview) -> list[wire.Tensor]:
    tensors = []
    for output in outputs:
        size = output.parameters.binary_data_size if output.parameters else None
        if size is None:
            data = _pack_json(output)
        else:
            if not 0 <= size <= len(rest):
                raise ValueError(f"output {output.name!r} has {size} bytes, and {len(rest)} are left")
            data, rest = bytes(rest[:size]), rest[size:]
        tensor = wire.Tensor(name=output.name, datatype=output.datatype, shape=output.shape, data=data)
        _check(tensor)
        tensors.append(tensor)
    return tensors


def _check(tensor: wire.Tensor) -> None:
    size = ITEM_BYTES.get(tensor.datatype)
    if size is None and tensor.datatype != "BYTES":
        raise ValueError(f"output {tensor.name!r} has the datatype {tensor.datatype!r}")
    if len(tensor.shape) > _MAX_AXES or any(size < 0 for size in tensor.shape):
        raise ValueError(f"output {tensor.name!r} has a shape of {len(tensor.shape)} sizes that is none")
    if tensor.datatype == "BYTES" and len(unpack_bytes(tensor.data)) != num_elements(tensor.shape):
        raise ValueError(f"output {tensor.name!r} of shape {tensor.shape} has another number of elements")
    if size is not None and len(tensor.data) != size * num_elements(tensor.shape):
        raise ValueError(f"output {tensor.name!r} of shape {tensor.shape} has {len(tensor.data)} bytes")


def _pack_json(output: _Output) -> bytes:
    """Row-major data of JSON, nested or flat."""
    import numpy as np

    if output.datatype == "BYTES":
        flat = np.array(output.data or [], dtype=object).reshape(-1).tolist()
        return pack_bytes([str(item).encode() for item in flat])
    if output.datatype not in NUMPY_NAMES:
        raise ValueError(f"output {output.name!r} has the datatype {output.datatype!r} in JSON")
    return from_array(output.name, np.array(output.data or [], dtype=NUMPY_NAMES[output.datatype])).data
