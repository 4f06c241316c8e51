"""Requests joined and answers split; plain numbers as arrays; scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.predictors.arrays import (
    Arrays,
    array_of_value,
    compute_together,
    run_batch,
    run_joined,
    sigmoid,
    softmax,
    tensor_outputs,
    tensors_of_request,
)
from headway.predictors.options import invalid_input
from headway_wire import Infer, Outputs, PredictorError, Tensor, TensorSpec
from headway_wire.tensors import ITEM_BYTES, NUMPY_NAMES, from_array, num_elements, to_array

MATRIX = TensorSpec(name="x", datatype="FP32", shape=[-1, 2])


def asked(number: int, rows: Any) -> Infer:
    return Infer(request_id=str(number), value=rows)


class Doubling:
    """A model that doubles, and remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def prepare(self, request: Infer) -> Arrays:
        if request.value is None:
            raise invalid_input("nothing came")
        return {"x": np.array(request.value, dtype=np.float32)}

    def compute(self, arrays: Arrays) -> Arrays:
        self.batches.append(list(arrays["x"].shape))
        return {"y": arrays["x"] * 2}

    def answer(self, request: Infer, arrays: Arrays) -> Outputs:
        return Outputs(request_id=request.request_id, value=arrays["y"].tolist())

    def run(self, *requests: Infer) -> list[Any]:
        answers = run_batch(requests, self.prepare, self.compute, self.answer)
        assert [answer.request_id for answer in answers] == [request.request_id for request in requests]
        return [answer.value if answer.error is None else answer.error.message for answer in answers]


def test_requests_that_fit_are_computed_together_and_each_gets_its_own_rows() -> None:
    model = Doubling()
    assert model.run(asked(1, [[1.0], [2.0]]), asked(2, [[3.0]])) == [[[2.0], [4.0]], [[6.0]]]
    assert model.batches == [[3, 1]]


def test_a_request_that_can_not_be_prepared_fails_alone() -> None:
    model = Doubling()
    assert model.run(asked(1, [[1.0]]), asked(2, None), asked(3, [[3.0]])) == [[[2.0]], "nothing came", [[6.0]]]
    assert model.batches == [[2, 1]]


def test_one_request_alone_is_computed_or_fails_as_those_of_a_batch_do() -> None:
    model = Doubling()
    assert (model.run(asked(1, [[1.0]])), model.run(asked(2, None))) == ([[[2.0]]], ["nothing came"])
    assert model.batches == [[1, 1]]


def test_requests_of_other_shapes_are_other_batches() -> None:
    model = Doubling()
    assert model.run(asked(1, [[1.0]]), asked(2, [[1.0, 2.0]]), asked(3, [[5.0]])) == [[[2.0]], [[2.0, 4.0]], [[10.0]]]
    assert model.batches == [[2, 1], [1, 2]]


def test_inputs_whose_first_axes_are_of_several_lengths_are_computed_alone() -> None:
    def similar(arrays: Arrays) -> Arrays:
        return {"y": arrays["queries"] @ arrays["texts"].T}

    parts = [
        {"queries": np.full((1, 2), it, np.float32), "texts": np.ones((rows, 2), np.float32)}
        for it, rows in ((1, 1), (2, 3))
    ]
    first, second = compute_together(parts, similar)
    assert (first["y"].tolist(), second["y"].tolist()) == ([[2]], [[4, 4, 4]])


def test_an_output_that_does_not_follow_the_batch_is_computed_one_by_one() -> None:
    def total(arrays: Arrays) -> Arrays:
        return {"y": arrays["x"].sum(keepdims=True)}

    model = Doubling()
    answers = run_batch([asked(1, [[1.0]]), asked(2, [[5.0], [6.0]])], model.prepare, total, model.answer)
    assert [answer.value for answer in answers] == [[[1.0]], [[11.0]]]


def test_wanted_outputs_alone_are_sent() -> None:
    arrays = {"a": np.ones(2, dtype=np.int8), "b": np.full((1, 1), 1 / 3, dtype=np.float32)}
    request = Infer(request_id="1", outputs=["b"])
    [tensor] = tensor_outputs(request, arrays, ["b"]).tensors
    assert (tensor.name, tensor.datatype, tensor.shape) == ("b", "BF16", [1, 1])
    assert to_array(tensor).item() == torch.tensor(1 / 3).bfloat16().item()


def floats(name: str, *rows: list[float]) -> Tensor:
    return from_array(name, np.array(rows, dtype=np.float32))


def summing(arrays: Arrays) -> Arrays:
    """Outputs of several types and ranks, of which each row is made of the same row of the inputs."""
    flat = [array.astype(np.float64).reshape(len(array), -1) for _, array in sorted(arrays.items())]
    rows = np.concatenate(flat, axis=1)
    texts = np.array([str(row.sum()).encode() for row in rows], dtype=object)
    return {
        "sum": rows.sum(axis=1),
        "bf16": rows.astype(np.float32),
        "text": texts,
        "back": rows[:, ::-1].astype(">i4"),
    }


def test_bytes_of_tensors_are_joined_into_one_call_and_each_gets_its_own_rows() -> None:
    shapes = []

    def compute(arrays: Arrays) -> Arrays:
        shapes.append({name: array.shape for name, array in arrays.items()})
        assert all(array.flags.writeable for array in arrays.values()), "torch would copy them once more"
        return {"sum": arrays["x"] + arrays["y"], "other": arrays["x"]}

    requests = [
        Infer(request_id="1", tensors=[floats("x", [1, 2]), floats("y", [10, 20])], outputs=["sum"]),
        Infer(request_id="2", tensors=[floats("x", [3, 4], [5, 6]), floats("y", [30, 40], [50, 60])], outputs=["sum"]),
    ]
    assert run_joined(requests, compute) == [
        Outputs(request_id="1", tensors=[floats("sum", [11, 22])]),
        Outputs(request_id="2", tensors=[floats("sum", [33, 44], [55, 66])]),
    ]
    assert shapes == [{"x": (3, 2), "y": (3, 2)}]


ROW = floats("x", [1, 2])


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [Tensor(name="x", datatype="BYTES", shape=[1], data=b"\1\0\0\0a")],
        [Tensor(name="x", datatype="BF16", shape=[1, 2], data=b"abcd")],
        [Tensor(name="x", datatype="FP32", shape=[], data=b"abcd")],
        [Tensor(name="x", datatype="FP32", shape=[0, 2], data=b"")],
        [Tensor(name="x", datatype="FP32", shape=[2, 0], data=b"")],
        [Tensor(name="x", datatype="FP32", shape=[2, 2], data=ROW.data)],
        [Tensor(name="x", datatype="FP32", shape=[1, 1], data=ROW.data)],
        [Tensor(name="x", datatype="FP32", shape=[-1, -2], data=ROW.data)],
        [Tensor(name="x", datatype="FP64", shape=[1, 1], data=ROW.data)],
        [floats("y", [1, 2])],
        [floats("x", [1, 2, 3])],
        [ROW, floats("y", [1, 2])],
        [floats("x", [1, 2]), floats("y", [1, 2], [3, 4])],
    ],
    ids=str,
)
def test_what_can_not_be_joined_is_left_and_nothing_is_computed(tensors: list[Tensor]) -> None:
    # The first is a good one: one that differs from it, or is wrong in itself, leaves them all to the other way.
    requests = [Infer(request_id="1", tensors=[ROW]), Infer(request_id="2", tensors=tensors)]
    for order in (requests, requests[::-1]):
        assert run_joined(order, lambda arrays: pytest.fail("computed")) is None


@st.composite
def batches(draw: st.DrawFn) -> list[Infer]:
    """Requests of one model, now and then of other types, shapes or outputs, or with bytes that are too few."""
    names = draw(st.sampled_from(["a", "ab", "ba"]))
    inner = draw(st.lists(st.integers(1, 3), max_size=2))
    kinds = [draw(st.sampled_from(sorted(NUMPY_NAMES))) for _ in names]
    requests = []
    for number in range(draw(st.integers(1, 5))):
        is_odd = draw(st.integers(0, 9)) == 0
        shape = [draw(st.integers(1, 3)), *inner, *([2] if is_odd else [])]
        tensors = []
        for name, kind in zip(names, kinds, strict=True):
            num_bytes = num_elements(shape) * ITEM_BYTES[kind]
            data = draw(st.binary(min_size=num_bytes, max_size=num_bytes))
            data = bytes(it & 1 for it in data) if kind == "BOOL" else data
            tensors.append(Tensor(name=name, datatype=kind, shape=shape, data=data))
        wanted = draw(st.sampled_from([[], [], ["text", "sum"]]))
        requests.append(Infer(request_id=str(number), tensors=tensors, outputs=wanted))
    return requests


def by_arrays(requests: Sequence[Infer], compute: Any) -> list[Outputs]:
    return run_batch(
        requests, tensors_of_request, compute, lambda request, arrays: tensor_outputs(request, arrays, ["bf16"])
    )


@given(batches())
@np.errstate(all="ignore")
def test_joined_bytes_give_what_arrays_give(requests: list[Infer]) -> None:
    joined = run_joined(requests, summing, ["bf16"])
    if joined is not None:
        assert joined == by_arrays(requests, summing)


def test_of_an_output_that_does_not_follow_the_batch_each_is_computed_alone() -> None:
    def total(arrays: Arrays) -> Arrays:
        return {"y": arrays["x"].sum(axis=0, keepdims=True)}

    requests = [Infer(request_id=str(rows), tensors=[floats("x", *[[1, rows]] * rows)]) for rows in (1, 2)]
    assert run_joined(requests, total) == [
        Outputs(request_id="1", tensors=[floats("y", [1, 1])]),
        Outputs(request_id="2", tensors=[floats("y", [2, 4])]),
    ]


@pytest.mark.parametrize(
    ("value", "spec", "wanted"),
    [
        ([[1, 2.5]], MATRIX, [[1.0, 2.5]]),
        ([1, 2], MATRIX, [[1.0, 2.0]]),
        ([[1, 2], [3, 4]], TensorSpec(name="x", datatype="UINT8", shape=[-1, 2]), [[1, 2], [3, 4]]),
        (7.0, TensorSpec(name="x", datatype="INT64", shape=[-1]), [7]),
        ([True, False], TensorSpec(name="x", datatype="BOOL", shape=[-1]), [True, False]),
        ("ab", TensorSpec(name="x", datatype="BYTES", shape=[-1]), ["ab"]),
        (["ab", "c"], TensorSpec(name="x", datatype="BYTES", shape=[-1]), ["ab", "c"]),
    ],
)
def test_plain_numbers_are_the_input(value: Any, spec: TensorSpec, wanted: Any) -> None:
    assert array_of_value(value, spec).tolist() == wanted


@pytest.mark.parametrize(
    ("value", "datatype", "words"),
    [
        ([[1, 2], [3]], "FP32", "no array of FP32"),
        ([["1", "2"]], "FP32", "holds <U1"),
        ([[True, False]], "FP32", "holds bool"),
        ([[1, 300]], "UINT8", "outside 0 to 255"),
        ([[1.5, 2.0]], "INT32", "fractions"),
        ([[1e400, 0]], "INT32", "fractions|outside"),
        ({"a": 1}, "FP32", "holds object"),
        (None, "FP32", "holds object"),
        ([[1, 2, 3]], "FP32", r"has the shape \[1, 3\]; it must be \[-1, 2\]"),
        ([[[[1, 2]]]], "FP32", "has the shape"),
        ([], "FP32", "has the shape"),
    ],
)
def test_what_is_no_input_is_refused_by_name(value: Any, datatype: str, words: str) -> None:
    with pytest.raises(PredictorError, match=words) as caught:
        array_of_value(value, TensorSpec(name="x", datatype=datatype, shape=[-1, 2]))
    assert caught.value.error.kind == "InvalidRequest"


def test_scores_are_those_of_torch() -> None:
    logits = np.array([[1000.0, 999.0, -1000.0], [-20.0, -3.0, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(softmax(logits), torch.tensor(logits).softmax(-1), rtol=1e-6)
    np.testing.assert_allclose(sigmoid(logits), torch.tensor(logits).sigmoid(), rtol=1e-6)
