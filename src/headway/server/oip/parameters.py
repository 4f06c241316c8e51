"""Parameters of requests, tensors and outputs, the same over REST and gRPC: ours, refused, or the model's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.body import describe

_REFUSED: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "sequence_id": ("no model keeps a state between requests", (0, "")),
    "sequence_start": ("no model keeps a state between requests", (False,)),
    "sequence_end": ("no model keeps a state between requests", (False,)),
    "priority": ("requests go in the order of their arrival", (0,)),
}
"""Of requests: what to know, and the values that ask for nothing."""
_SHARED_MEMORY = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
MAX_PARAMETERS = 64
MAX_CLASSES = 1 << 20


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """Of a whole request."""

    is_binary: bool = False
    """Outputs that say nothing are told as binary data."""
    timeout_s: float | None = None
    for_model: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that the caller wants."""

    name: str
    num_classes: int = 0
    """0: the tensor itself; k: the k largest of its elements, as "value:index:label"."""
    is_binary: bool | None = None
    """None: as the request says."""


def read_request_parameters(parameters: Mapping[str, Any] | None) -> RequestParameters:
    """Raises InvalidRequest, and UnsupportedFeature for what Headway has not."""
    if not parameters:
        return RequestParameters()
    if len(parameters) > MAX_PARAMETERS:
        raise InvalidRequest(
            f"parameters has {len(parameters)} entries; at most {MAX_PARAMETERS} are taken", param="parameters"
        )
    rest = dict(parameters)
    for name, (reason, neutral) in _REFUSED.items():
        value = rest.pop(name, None)
        if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
            raise UnsupportedFeature(f"parameters.{name} is not supported: {reason}", param=f"parameters.{name}")
    is_binary = _boolean(rest.pop("binary_data_output", None), "parameters.binary_data_output")
    timeout_s = _timeout_s(rest.pop("timeout", None))
    for name, value in rest.items():
        if not isinstance(value, bool | int | float | str):
            raise InvalidRequest(
                f"parameters.{name[:64]} is {describe(value)}; it must be true or false, a number or a string",
                param="parameters",
            )
    return RequestParameters(bool(is_binary), timeout_s, rest)


def read_output(name: str, parameters: Mapping[str, Any] | None) -> WantedOutput:
    """Raises as read_request_parameters()."""
    if not parameters:
        return WantedOutput(name)
    check_no_shared_memory(name, parameters)
    classes = parameters.get("classification")
    if classes is not None and (type(classes) is not int or not 1 <= classes <= MAX_CLASSES):
        raise InvalidRequest(
            f"classification of output {name[:100]} is {describe(classes)}; it must be an integer from 1 to"
            f" {MAX_CLASSES}",
            param="outputs",
        )
    return WantedOutput(name, classes or 0, _boolean(parameters.get("binary_data"), "outputs.parameters.binary_data"))


def check_no_shared_memory(name: str, parameters: Mapping[str, Any]) -> None:
    """Raises UnsupportedFeature: callers and models share no memory here."""
    if any(each in parameters for each in _SHARED_MEMORY):
        raise UnsupportedFeature(
            f"{name[:100]} is in shared memory, which is not supported: send it as binary data", param="parameters"
        )


def _boolean(value: object, place: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(f"{place} is {describe(value)}; it must be true or false", param=place)


def _timeout_s(value: object) -> float | None:
    """Microseconds; 0: none, as Triton has it."""
    if value is None or (type(value) is int and value == 0):
        return None
    if type(value) is not int or value < 0:
        raise InvalidRequest(
            f"parameters.timeout is {describe(value)}; it must be an integer of microseconds",
            param="parameters.timeout",
        )
    return value / 1e6
