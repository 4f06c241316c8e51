"""Requests joined into one batch of numpy arrays, and answers split again; values of plain numbers as arrays."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from headway.predictors.options import invalid_input
from headway_wire import Infer, Outputs, PredictorError, TensorSpec
from headway_wire.tensors import NUMPY_NAMES, from_array, to_array

Arrays = dict[str, np.ndarray]


def run_batch(
    requests: Sequence[Infer],
    prepare: Callable[[Infer], Arrays],
    compute: Callable[[Arrays], Arrays],
    answer: Callable[[Infer, Arrays], Outputs],
) -> list[Outputs]:
    """An answer to each request, in order; what is wrong with one fails that one alone.

    `prepare` makes the inputs of one request; those that fit together are computed together, and each request gets its
    part of every output (`answer`). What `compute` raises is raised.
    """
    answers: dict[int, Outputs] = {}
    groups: dict[Any, list[tuple[int, Arrays]]] = {}
    for place, request in enumerate(requests):
        try:
            arrays = prepare(request)
        except PredictorError as error:
            answers[place] = Outputs(request_id=request.request_id, error=error.error)
        else:
            groups.setdefault(_form(arrays), []).append((place, arrays))
    for group in groups.values():
        results = compute_together([arrays for _, arrays in group], compute)
        for (place, _), arrays in zip(group, results, strict=True):
            answers[place] = answer(requests[place], arrays)
    return [answers[place] for place in range(len(requests))]


def compute_together(parts: Sequence[Arrays], compute: Callable[[Arrays], Arrays]) -> list[Arrays]:
    """The outputs of each of the inputs, joined along their first axes; one by one where an output does not follow it.

    Of one alone the outputs are as they are, whatever their first axes. Where the inputs of one have first axes of
    several lengths these count other things than its items, and each is computed alone.
    """
    if len(parts) == 1 or not all(_has_one_length(arrays) for arrays in parts):
        return [compute(arrays) for arrays in parts]
    sizes = [len(next(iter(arrays.values()))) for arrays in parts]
    joined = compute({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    if any(array.ndim == 0 or len(array) != sum(sizes) for array in joined.values()):
        return [compute(arrays) for arrays in parts]
    ends = np.cumsum(sizes)
    return [
        {name: array[end - size : end] for name, array in joined.items()} for end, size in zip(ends, sizes, strict=True)
    ]


def tensors_of_request(request: Infer) -> Arrays:
    """The request's tensors by name; names, datatypes and shapes were checked on the way (worker/infer_check).

    Raises PredictorError for bytes that are no elements of BYTES.
    """
    arrays = {}
    for tensor in request.tensors:
        try:
            arrays[tensor.name] = to_array(tensor)
        except ValueError as error:
            raise invalid_input(f"{tensor.name}: {error}", "inputs") from error
    return arrays


def tensor_outputs(request: Infer, arrays: Mapping[str, np.ndarray], bf16: Collection[str] = ()) -> Outputs:
    """The arrays, or those that the request wants. `bf16`: sent as BF16, from float32."""
    tensors = [
        from_array(name, array, datatype="BF16" if name in bf16 else "")
        for name, array in arrays.items()
        if not request.outputs or name in request.outputs
    ]
    return Outputs(request_id=request.request_id, tensors=tensors)


def array_of_value(value: Any, spec: TensorSpec) -> np.ndarray:
    """Nested lists of numbers (or texts, for BYTES) as a model's input; a batch of one where the batch's axis is left
    out.

    Raises PredictorError for lists of unequal length, for what are no numbers, and for a shape that does not fit.
    """
    try:
        if spec.datatype == "BYTES":
            array = np.array(value, dtype=object)
        else:
            # A boolean is no number here, and text that looks like one neither.
            array = np.array(value)
            if array.dtype.kind not in "biuf" or (array.dtype.kind == "b") != (spec.datatype == "BOOL"):
                raise ValueError(f"it holds {array.dtype}")
            array = _cast(array, np.dtype(NUMPY_NAMES.get(spec.datatype, "float32")))
    except (ValueError, TypeError, OverflowError) as error:
        raise invalid_input(
            f"the input is no array of {spec.datatype} for {spec.name} {spec.shape}: {str(error)[:200]}", "input_data"
        ) from error
    if array.ndim == len(spec.shape) - 1 and spec.shape[0] in (-1, 1):
        array = array[np.newaxis]
    check_shape(array.shape, spec)
    return array


def check_shape(shape: Sequence[int], spec: TensorSpec) -> None:
    """Raises PredictorError for one that the input does not take."""
    fits = len(shape) == len(spec.shape) and all(
        want in (-1, size) for want, size in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        raise invalid_input(f"{spec.name} has the shape {list(shape)}; it must be {spec.shape} (-1: any)", spec.name)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float32."""
    wide = logits.astype(np.float32)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Of each, in float32."""
    wide = logits.astype(np.float32)
    small = np.exp(-np.abs(wide))  # never overflows
    return np.asarray(np.where(wide >= 0, 1, small) / (1 + small))


def _has_one_length(arrays: Arrays) -> bool:
    return len({array.shape[:1] for array in arrays.values()}) == 1 and all(array.ndim for array in arrays.values())


def _form(arrays: Arrays) -> tuple[Any, ...]:
    """The same of arrays that can be joined along their first axes."""
    return tuple((name, array.dtype.str, array.ndim, array.shape[1:]) for name, array in sorted(arrays.items()))


def _cast(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Raises OverflowError for integers that the type has not, ValueError for fractions where it has none."""
    if dtype.kind in "iu":
        if array.dtype.kind == "f" and not np.array_equal(array, np.trunc(array)):
            raise ValueError("it has fractions")
        limits = np.iinfo(dtype)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise OverflowError(f"its values are outside {limits.min} to {limits.max}")
    return array.astype(dtype)
