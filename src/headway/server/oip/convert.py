"""REST bodies to an Asked, valid by construction."""

from typing import Any

import headway_wire as wire
from headway.errors import InvalidRequest
from headway.server.body import describe, parse_body
from headway.server.oip.binary import Blobs, split_body
from headway.server.oip.parameters import check_no_shared_memory, read_output, read_request_parameters
from headway.server.oip.plane import Asked
from headway.server.oip.schema import InferBody, TensorIn
from headway.server.oip.targets import Target
from headway.server.tensors import tensor_from_binary, tensor_from_json

MAX_TENSORS = 4096


def read_infer(data: bytes, header_length: str | None, target: Target) -> Asked:
    """A body of POST .../infer. `header_length`: as the request's header tells it. Raises InvalidRequest."""
    head, blobs = split_body(data, header_length)
    body = parse_body(head, InferBody)
    if not 1 <= len(body.inputs) <= MAX_TENSORS:
        raise InvalidRequest(f"inputs has {len(body.inputs)} tensors; 1 to {MAX_TENSORS} are taken", param="inputs")
    # Cheaper than to look at the type of each of a million numbers, where there is no such word in all of the text.
    may_have_booleans = b"true" in head or b"false" in head
    tensors = [_read_tensor(tensor, blobs, may_have_booleans) for tensor in body.inputs]
    blobs.check_end()
    return Asked(
        target=target,
        id=body.id or "",
        tensors=tensors,
        wanted=[read_output(output.name, output.parameters) for output in body.outputs or ()],
        parameters=read_request_parameters(body.parameters),
    )


def _read_tensor(tensor: TensorIn, blobs: Blobs, may_have_booleans: bool) -> wire.Tensor:
    size = _binary_size(tensor)
    if size is not None:
        data = blobs.take(size, tensor.name)
        return tensor_from_binary(tensor.name, tensor.datatype, tensor.shape, data, param="inputs")
    return tensor_from_json(
        tensor.name,
        tensor.datatype,
        tensor.shape,
        tensor.data,
        param="inputs",
        may_have_booleans=may_have_booleans,
    )


def _binary_size(tensor: TensorIn) -> int | None:
    """Its bytes behind the JSON; None: it is in the JSON. Raises InvalidRequest for both, and for neither."""
    parameters: dict[str, Any] = tensor.parameters or {}
    check_no_shared_memory(tensor.name, parameters)
    size = parameters.get("binary_data_size")
    if size is not None and (type(size) is not int or size < 0):
        raise InvalidRequest(
            f"binary_data_size of {tensor.name[:100]} is {describe(size)}; it must be an integer, and not negative",
            param="inputs",
        )
    if (size is None) == (tensor.data is None):
        raise InvalidRequest(
            f"{tensor.name[:100]} must have either data or parameters.binary_data_size: it has"
            f" {'neither' if size is None else 'both'}",
            param="inputs",
        )
    return size
