"""What is asked of a model against what it takes: names, datatypes, shapes, bytes. Pure; raises InvalidRequest."""

from collections.abc import Sequence

import headway_wire as wire
from headway.errors import InvalidRequest, UnsupportedFeature
from headway_wire.tensors import ITEM_BYTES, num_elements

_MAX_NAMES = 20


def check_infer(signature: wire.Signature, request: wire.Infer) -> None:
    """Raises InvalidRequest that names the tensor, what came and what is wanted; UnsupportedFeature for a value where
    only tensors are taken."""
    if not request.tensors:
        _check_value(signature, request)
        return
    if not signature.inputs:
        raise UnsupportedFeature(
            f"the model takes no tensors ({_names(request.tensors)} came): give it a value by /predict", param="inputs"
        )
    for tensor, spec in zip(request.tensors, _specs_of(signature, request.tensors), strict=True):
        check_tensor(tensor)
        _check_spec(tensor, spec)
    if request.outputs:
        _check_outputs(signature, request.outputs)


def check_tensor(tensor: wire.Tensor) -> None:
    """That its datatype is one of the protocol, and its bytes fill its shape."""
    if tensor.datatype != "BYTES" and tensor.datatype not in ITEM_BYTES:
        known = ", ".join([*ITEM_BYTES, "BYTES"])
        raise InvalidRequest(
            f"input {tensor.name!r} has the datatype {tensor.datatype[:50]!r}; it must be one of {known}",
            param="inputs",
        )
    if min(tensor.shape, default=0) < 0:
        raise InvalidRequest(f"input {tensor.name!r} has the shape {tensor.shape}: no size is negative", param="inputs")
    count = num_elements(tensor.shape)
    if tensor.datatype == "BYTES":
        # Each element is counted where the tensor is read; fewer bytes than lengths are seen here.
        if len(tensor.data) < 4 * count:
            raise _wrong_bytes(tensor, f"at least {4 * count}")
    elif len(tensor.data) != count * ITEM_BYTES[tensor.datatype]:
        raise _wrong_bytes(tensor, str(count * ITEM_BYTES[tensor.datatype]))


def fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a shape is one of those that a TensorSpec means."""
    return len(shape) == len(wanted) and all(want in (-1, size) for size, want in zip(shape, wanted, strict=True))


def _check_value(signature: wire.Signature, request: wire.Infer) -> None:
    if not signature.takes_values:
        wanted = ", ".join(f"{spec.name} ({spec.datatype} {spec.shape})" for spec in signature.inputs[:_MAX_NAMES])
        raise UnsupportedFeature(f"the model takes tensors and no value: {wanted}", param="inputs")
    if request.outputs:
        raise InvalidRequest("outputs can only be chosen where tensors are given, and a value came", param="outputs")


def _specs_of(signature: wire.Signature, tensors: Sequence[wire.Tensor]) -> Sequence[wire.TensorSpec]:
    """Of each tensor. Raises InvalidRequest for names that are not the model's inputs, or not all of them."""
    specs = signature.inputs
    if [tensor.name for tensor in tensors] == [spec.name for spec in specs]:  # as nearly every request has them
        return specs
    _check_names(signature, tensors)
    by_name = {spec.name: spec for spec in specs}
    return [by_name[tensor.name] for tensor in tensors]


def _check_names(signature: wire.Signature, tensors: Sequence[wire.Tensor]) -> None:
    given = [tensor.name for tensor in tensors]
    known = {spec.name for spec in signature.inputs}
    wanted = ", ".join(spec.name for spec in signature.inputs[:_MAX_NAMES])
    for name in given:
        if name not in known:
            raise InvalidRequest(f"the model has no input {name[:100]!r}; it has: {wanted}", param="inputs")
        if given.count(name) > 1:
            raise InvalidRequest(f"input {name!r} came {given.count(name)} times: give it once", param="inputs")
    missing = [spec.name for spec in signature.inputs if not spec.is_optional and spec.name not in given]
    if missing:
        came = ", ".join(given[:_MAX_NAMES])
        raise InvalidRequest(f"input {', '.join(missing[:_MAX_NAMES])} is missing; there came: {came}", param="inputs")


def _check_spec(tensor: wire.Tensor, spec: wire.TensorSpec) -> None:
    if tensor.datatype != spec.datatype:
        raise InvalidRequest(
            f"input {tensor.name!r} has the datatype {tensor.datatype}; the model takes {spec.datatype}", param="inputs"
        )
    if not fits(tensor.shape, spec.shape):
        raise InvalidRequest(
            f"input {tensor.name!r} has the shape {tensor.shape}; the model takes {spec.shape} (-1: any size)",
            param="inputs",
        )


def _check_outputs(signature: wire.Signature, outputs: Sequence[str]) -> None:
    known = [spec.name for spec in signature.outputs]
    for name in outputs:
        if known and name not in known:
            raise InvalidRequest(
                f"the model has no output {name[:100]!r}; it has: {', '.join(known[:_MAX_NAMES])}", param="outputs"
            )


def _wrong_bytes(tensor: wire.Tensor, wanted: str) -> InvalidRequest:
    return InvalidRequest(
        f"input {tensor.name!r} has {len(tensor.data)} bytes; {tensor.datatype} of shape {tensor.shape} has {wanted}",
        param="inputs",
    )


def _names(tensors: Sequence[wire.Tensor]) -> str:
    return ", ".join(tensor.name[:100] for tensor in tensors[:_MAX_NAMES])
