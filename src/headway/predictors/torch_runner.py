"""A PyTorch module run on numpy arrays: threads, device, number type, and what its inputs and outputs are.

Used by the predictors of torch and torchvision. torch is imported by whoever loads.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from headway.predictors.arrays import Arrays
from headway.predictors.options import invalid_config, num_threads
from headway_wire import PredictorError, TensorSpec
from headway_wire.tensors import NUMPY_NAMES

TORCH_NAMES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
"""The protocol's datatypes as torch's."""
FREE = -1


class InputOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input of the model."""

    shape: list[int]
    """-1: any. The first -1 in front is the batch's: requests may be computed together."""
    name: str = ""
    """"": the parameter of forward() at its place."""
    datatype: str = "FP32"
    """Of the Open Inference Protocol."""
    warm_shape: list[int] | None = None
    """What the model is warmed up with; None: 1 for each -1."""


class TorchRunner:
    """A module on its device; one thread calls it."""

    def __init__(self, module: Any, *, device: str, dtype: str | None, threads: int | None) -> None:
        """Moves the module. Raises PredictorError for a device that is not there, or an unknown number type."""
        import torch

        self.threads = num_threads(threads)
        set_threads(self.threads)
        self.device = find_device(device)
        self._dtype = None if dtype is None else find_dtype(dtype)
        self.module = module.eval().requires_grad_(False).to(self.device, self._dtype)
        self._torch = torch
        self._specs: dict[str, TensorSpec] = {}

    def set_inputs(self, inputs: Sequence[TensorSpec]) -> None:
        """What run() is given from now on; forward() takes them by position, in this order."""
        for spec in inputs:
            if spec.datatype not in TORCH_NAMES:
                raise invalid_config(f"{spec.name} is {spec.datatype}; torch has {', '.join(TORCH_NAMES)}", "inputs")
        self._specs = {spec.name: spec for spec in inputs}

    def run(self, arrays: Arrays) -> Arrays:
        """The outputs by name; bfloat16 as float32. Raises what the module raises."""
        with self._torch.inference_mode():
            found = self.module(*(self._to_tensor(arrays[name], spec) for name, spec in self._specs.items()))
            return {name: to_numpy(tensor) for name, tensor in name_outputs(found).items()}

    def outputs_of(self, arrays: Arrays) -> dict[str, tuple[str, list[int]]]:
        """Datatype and shape of each output for these inputs."""
        with self._torch.inference_mode():
            found = self.module(*(self._to_tensor(arrays[name], spec) for name, spec in self._specs.items()))
        return {name: (datatype_of(tensor, name), list(tensor.shape)) for name, tensor in name_outputs(found).items()}

    def facts(self) -> dict[str, Any]:
        """For people."""
        parameters = list(self.module.parameters())
        return {
            "device": str(self.device),
            "threads": self.threads,
            "num_parameters": sum(parameter.numel() for parameter in parameters),
            "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
        }

    def _to_tensor(self, array: np.ndarray, spec: TensorSpec) -> Any:
        # from_numpy warns of arrays that can not be written, as those of a request are.
        writable = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
        tensor = self._torch.from_numpy(writable)
        if tensor.is_floating_point():
            dtype = self._dtype or getattr(self._torch, TORCH_NAMES[spec.datatype])
            return tensor.to(self.device, dtype)
        return tensor.to(self.device)


def set_threads(threads: int) -> None:
    """For computing; one for torch's own graph of operators, which a single request has no use for."""
    import torch

    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        # Refused once any work was done: then another model of this process has set it.
        try:
            torch.set_num_interop_threads(1)
        except RuntimeError:
            return


def find_device(name: str) -> Any:
    """A torch.device: cpu, cuda, cuda:N; auto: a GPU if there is one. Raises PredictorError."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise invalid_config(f"device is {name[:100]!r}; it must be auto, cpu or cuda:N", "device") from error
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 1
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= num_gpus):
        raise invalid_config(f"device is {name[:100]!r}, and torch sees {num_gpus} GPUs: give auto or cpu", "device")
    return device


def find_dtype(name: str) -> Any:
    """A torch.dtype of floating point. Raises PredictorError."""
    import torch

    if name not in ("float32", "bfloat16", "float16"):
        raise invalid_config(f"dtype is {name[:100]!r}; it must be float32, bfloat16 or float16", "dtype")
    return getattr(torch, name)


def to_numpy(tensor: Any) -> np.ndarray:
    """A tensor's values on the CPU; bfloat16 as float32."""
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return np.asarray(tensor.cpu().numpy())


def datatype_of(tensor: Any, name: str) -> str:
    """The protocol's. Raises PredictorError (UnsupportedModel) for a type that it has not."""
    own = str(tensor.dtype).removeprefix("torch.")
    for datatype, torch_name in TORCH_NAMES.items():
        if torch_name == own:
            return datatype
    raise PredictorError("UnsupportedModel", f"the output {name} is {own}, which the Open Inference Protocol has not")


def name_outputs(found: Any) -> dict[str, Any]:
    """Tensors by name: of a mapping its own names, of a tuple output_0, output_1, ..., of one tensor alone `output`.

    Raises PredictorError (UnsupportedModel) for anything else.
    """
    import torch

    if isinstance(found, torch.Tensor):
        return {"output": found}
    if isinstance(found, Mapping):
        named = {str(name): value for name, value in found.items() if isinstance(value, torch.Tensor)}
    elif isinstance(found, (tuple, list)):
        fields = getattr(found, "_fields", [f"output_{place}" for place in range(len(found))])
        named = {name: value for name, value in zip(fields, found, strict=True) if isinstance(value, torch.Tensor)}
    else:
        named = {}
    if not named:
        raise PredictorError(
            "UnsupportedModel", f"forward() gave a {type(found).__name__}; it must be tensors: one, a tuple or a dict"
        )
    return named


def forward_parameters(module: Any) -> list[str]:
    """Names of what forward() takes by position, in order."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, value in inspect.signature(module.forward).parameters.items() if value.kind in kinds]


def make_input_specs(inputs: Sequence[InputOptions], module: Any) -> list[TensorSpec]:
    """Specs of inputs, named after forward()'s parameters where they have no name.

    Raises PredictorError for more of them than it takes, and for two of one name.
    """
    parameters = forward_parameters(module)
    has_rest = any(
        value.kind is inspect.Parameter.VAR_POSITIONAL
        for value in inspect.signature(module.forward).parameters.values()
    )
    if len(inputs) > len(parameters) and not has_rest:
        raise invalid_config(
            f"there are {len(inputs)} inputs, and forward() takes {len(parameters)}: {', '.join(parameters)}", "inputs"
        )
    names = [
        spec.name or (parameters[place] if place < len(parameters) else f"input_{place}")
        for place, spec in enumerate(inputs)
    ]
    if len(set(names)) < len(names):
        raise invalid_config(f"two inputs have one name: {', '.join(names)}", "inputs")
    return [
        TensorSpec(name=name, datatype=spec.datatype, shape=spec.shape)
        for name, spec in zip(names, inputs, strict=True)
    ]


def warm_arrays(specs: Sequence[TensorSpec], shapes: Sequence[Sequence[int] | None], batch_size: int) -> Arrays:
    """Zeros for each input; where its batch is free, of `batch_size`."""
    arrays = {}
    for spec, told in zip(specs, shapes, strict=True):
        shape = list(told) if told is not None else [1 if size == FREE else size for size in spec.shape]
        if spec.shape and spec.shape[0] == FREE:
            shape[0] = batch_size
        name = "float32" if spec.datatype == "BF16" else NUMPY_NAMES.get(spec.datatype, "float32")
        arrays[spec.name] = np.zeros(shape, dtype=name)
    return arrays


def warm_up(
    runner: TorchRunner, inputs: Sequence[TensorSpec], shapes: Sequence[Sequence[int] | None]
) -> tuple[list[TensorSpec], bool]:
    """The outputs, from running the model on zeros, and whether requests can be computed together.

    They can if every input's first axis is free, and of every output the first axis follows it and no other one: an
    output of items by items is about all that are computed together.

    Raises PredictorError with the model's own words.
    """
    is_free = all(spec.shape and spec.shape[0] == FREE for spec in inputs)
    try:
        one = runner.outputs_of(warm_arrays(inputs, shapes, 1))
        two = runner.outputs_of(warm_arrays(inputs, shapes, 2)) if is_free else one
    except PredictorError:
        raise
    except Exception as error:  # the user's code
        told = ", ".join(f"{spec.name} {spec.datatype} {spec.shape}" for spec in inputs)
        raise PredictorError(
            "ModelError", f"the model failed on zeros of its inputs ({told}): {type(error).__name__}: {error}"
        ) from error
    made = {name: (shape, two[name][1]) for name, (_, shape) in one.items()}
    can_batch = is_free and all(of_one[:1] == [1] and of_two == [2, *of_one[1:]] for of_one, of_two in made.values())
    outputs = [
        TensorSpec(name=name, datatype=datatype, shape=_free_shape(*made[name])) for name, (datatype, _) in one.items()
    ]
    return outputs, can_batch


def _free_shape(of_one: list[int], of_two: list[int]) -> list[int]:
    """Sizes that are others for two items than for one are free."""
    if len(of_one) != len(of_two):
        return of_one
    return [one if one == two else FREE for one, two in zip(of_one, of_two, strict=True)]
