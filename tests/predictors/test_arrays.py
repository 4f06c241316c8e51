"""Requests joined and answers split; plain numbers as arrays; scores."""

from typing import Any

import numpy as np
import pytest
import torch

from headway.predictors.arrays import (
    Arrays,
    array_of_value,
    compute_together,
    run_batch,
    sigmoid,
    softmax,
    tensor_outputs,
)
from headway.predictors.options import invalid_input
from headway_wire import Infer, Outputs, PredictorError, TensorSpec
from headway_wire.tensors import to_array

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
