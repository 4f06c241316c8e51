"""Requests joined into one batch of numpy arrays, and answers split again; values of plain numbers as arrays.

Of tensors that are numbers the bytes are joined and cut, with no array for each request: of a small model the arrays
would take longer than the model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from headway.predictors.options import invalid_input
from headway_wire import Infer, Outputs, PredictorError, Tensor, TensorSpec
from headway_wire.tensors import ITEM_BYTES, NUMPY_NAMES, dtype_of, from_array, num_elements, to_array

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
    if len(requests) == 1:
        return [_run_alone(requests[0], prepare, compute, answer)]
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


def run_joined(
    requests: Sequence[Infer], compute: Callable[[Arrays], Arrays], bf16: Collection[str] = ()
) -> list[Outputs] | None:
    """What run_batch gives for requests of tensors whose bytes can be joined; None: not for these, and nothing is done.

    They can if all have the same inputs but for the first axis, in one order, of numbers that numpy has, with bytes for
    their shapes and as many items in each input, and want the same outputs. What `compute` raises is raised.
    """
    sizes = _sizes_of(requests)
    if sizes is None:
        return None
    if len(requests) == 1:
        return [tensor_outputs(requests[0], compute(tensors_of_request(requests[0])), bf16)]
    results = compute(_join(requests, sum(sizes)))
    if not all(_follows(array, sum(sizes)) for array in results.values()):
        return [tensor_outputs(request, compute(tensors_of_request(request)), bf16) for request in requests]
    wanted = requests[0].outputs or results
    columns = [_cut(name, results[name], sizes, is_bf16=name in bf16) for name in results if name in wanted]
    return [
        Outputs(request_id=request.request_id, tensors=[column[place] for column in columns])
        for place, request in enumerate(requests)
    ]


def compute_together(parts: Sequence[Arrays], compute: Callable[[Arrays], Arrays]) -> list[Arrays]:
    """The outputs of each of the inputs, joined along their first axes; one by one where an output does not follow it.

    Of one alone the outputs are as they are, whatever their first axes. Where the inputs of one have first axes of
    several lengths these count other things than its items, and each is computed alone.
    """
    if len(parts) == 1 or not all(_has_one_length(arrays) for arrays in parts):
        return [compute(arrays) for arrays in parts]
    sizes = [len(next(iter(arrays.values()))) for arrays in parts]
    joined = compute({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    if not all(_follows(array, sum(sizes)) for array in joined.values()):
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


def _run_alone(
    request: Infer,
    prepare: Callable[[Infer], Arrays],
    compute: Callable[[Arrays], Arrays],
    answer: Callable[[Infer, Arrays], Outputs],
) -> Outputs:
    try:
        arrays = prepare(request)
    except PredictorError as error:
        return Outputs(request_id=request.request_id, error=error.error)
    return answer(request, compute(arrays))


def _sizes_of(requests: Sequence[Infer]) -> list[int] | None:
    """Items of each request; None: their bytes can not be joined."""
    first, forms = requests[0], []
    for tensor in first.tensors:
        item_bytes = ITEM_BYTES.get(tensor.datatype, 0) * num_elements(tensor.shape[1:])
        if tensor.datatype not in NUMPY_NAMES or not item_bytes:
            return None
        forms.append((tensor.name, tensor.datatype, tensor.shape[1:], item_bytes))
    sizes = []
    for request in requests:
        tensors = request.tensors
        size = tensors[0].shape[0] if tensors and tensors[0].shape else 0
        if size < 1 or len(tensors) != len(forms) or request.outputs != first.outputs:
            return None
        for tensor, (name, datatype, item_shape, item_bytes) in zip(tensors, forms, strict=True):
            if (
                tensor.name != name
                or tensor.datatype != datatype
                or tensor.shape != [size, *item_shape]
                or len(tensor.data) != size * item_bytes
            ):
                return None
        sizes.append(size)
    return sizes


def _join(requests: Sequence[Infer], num_items: int) -> Arrays:
    arrays = {}
    for place, tensor in enumerate(requests[0].tensors):
        data = bytearray().join([request.tensors[place].data for request in requests])
        arrays[tensor.name] = np.frombuffer(data, dtype_of(tensor.datatype)).reshape(num_items, *tensor.shape[1:])
    return arrays


def _cut(name: str, array: np.ndarray, sizes: Sequence[int], *, is_bf16: bool) -> list[Tensor]:
    """An output's part of each request."""
    whole = from_array(name, array, datatype="BF16" if is_bf16 else "")
    if whole.datatype == "BYTES":
        return [from_array(name, part) for part in np.split(array, np.cumsum(sizes)[:-1])]
    data, item_shape, item_bytes = whole.data, whole.shape[1:], len(whole.data) // len(array)
    parts, start = [], 0
    for size in sizes:
        end = start + size * item_bytes
        parts.append(Tensor(name=name, datatype=whole.datatype, shape=[size, *item_shape], data=data[start:end]))
        start = end
    return parts


def _follows(array: np.ndarray, num_items: int) -> bool:
    """Whether its first axis is the batch's."""
    return array.ndim > 0 and len(array) == num_items


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
