"""gRPC's messages to an Asked, and what was answered to messages."""

from collections.abc import Mapping, Sequence
from typing import Any

import headway_wire as wire
from headway.errors import InvalidRequest
from headway.server.oip.convert import MAX_TENSORS
from headway.server.oip.parameters import check_no_shared_memory, read_output, read_request_parameters
from headway.server.oip.plane import Asked
from headway.server.oip.rpc.messages import InferResponse
from headway.server.oip.targets import Target
from headway.server.tensors import check_shape, tensor_from_binary, tensor_from_json
from headway_wire.tensors import pack_bytes

_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of InferTensorContents that holds a datatype's elements."""


def read_infer(message: Any, target: Target) -> Asked:
    """A ModelInferRequest. Raises InvalidRequest that names the tensor."""
    raw = message.raw_input_contents
    if not 1 <= len(message.inputs) <= MAX_TENSORS:
        raise InvalidRequest(f"inputs has {len(message.inputs)} tensors; 1 to {MAX_TENSORS} are taken", param="inputs")
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(
            f"raw_input_contents has {len(raw)} entries and inputs {len(message.inputs)} tensors: give one for each, or"
            " contents for all",
            param="raw_input_contents",
        )
    return Asked(
        target=target,
        id=message.id,
        tensors=[_read_tensor(each, raw[i] if raw else None) for i, each in enumerate(message.inputs)],
        wanted=[read_output(each.name, read_parameters(each.parameters)) for each in message.outputs],
        parameters=read_request_parameters(read_parameters(message.parameters)),
    )


def read_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A map of InferParameter, or ModelRepositoryParameter, as plain values. Raises InvalidRequest for one without."""
    values = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise InvalidRequest(f"parameter {name[:64]} has no value: give it one", param="parameters")
        values[name] = getattr(parameter, kind)
    return values


def make_response(asked: Asked, tensors: Sequence[wire.Tensor], parameters: Mapping[str, bool] | None = None) -> Any:
    """A ModelInferResponse; the tensors' data are raw_output_contents."""
    return InferResponse(
        model_name=asked.target.name,
        model_version=asked.target.version,
        id=asked.id,
        parameters={name: {"bool_param": value} for name, value in (parameters or {}).items()},
        outputs=[{"name": each.name, "datatype": each.datatype, "shape": each.shape} for each in tensors],
        raw_output_contents=[bytes(each.data) for each in tensors],
    )


def _read_tensor(tensor: Any, raw: bytes | None) -> wire.Tensor:
    name, datatype, shape = tensor.name, tensor.datatype, list(tensor.shape)
    check_no_shared_memory(name, tensor.parameters)
    if raw is not None:
        if tensor.HasField("contents"):
            raise InvalidRequest(
                f"{name[:100]} has contents, where raw_input_contents are given: give one of them", param="inputs"
            )
        return tensor_from_binary(name, datatype, shape, raw, param="inputs")
    check_shape(name, datatype, shape, param="inputs")
    field = _CONTENTS.get(datatype)
    if field is None:
        raise InvalidRequest(
            f"{name[:100]} is {datatype}, which has no contents: give raw_input_contents", param="inputs"
        )
    elements = list(getattr(tensor.contents, field))
    if datatype == "BYTES":
        return tensor_from_binary(name, datatype, shape, pack_bytes(elements), param="inputs")
    return tensor_from_json(name, datatype, shape, elements, param="inputs", may_have_booleans=False)
