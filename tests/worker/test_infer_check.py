"""What is refused before it reaches a model of tensors, and the words for it."""

import struct
from typing import Any

import pytest

import headway_wire as wire
from headway.errors import HeadwayError, InvalidRequest, UnsupportedFeature
from headway.worker.infer_check import check_infer, fits

SIGNATURE = wire.Signature(
    task="tensor",
    platform="test",
    inputs=[
        wire.TensorSpec(name="x", datatype="FP32", shape=[-1, 2]),
        wire.TensorSpec(name="words", datatype="BYTES", shape=[-1], is_optional=True),
    ],
    outputs=[wire.TensorSpec(name="y", datatype="FP32", shape=[-1])],
    takes_values=False,
)


def tensor(
    name: str = "x", datatype: str = "FP32", shape: tuple[int, ...] = (3, 2), num_bytes: int = 24
) -> wire.Tensor:
    return wire.Tensor(name=name, datatype=datatype, shape=list(shape), data=bytes(num_bytes))


def check(*tensors: wire.Tensor, signature: wire.Signature = SIGNATURE, **fields: Any) -> None:
    check_infer(signature, wire.Infer(request_id="1", tensors=list(tensors), **fields))


def test_what_fits_is_taken() -> None:
    words = wire.Tensor(name="words", datatype="BYTES", shape=[1], data=struct.pack("<I", 2) + b"hi")
    check(tensor())
    check(words, tensor(shape=(0, 2), num_bytes=0), outputs=["y"])


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([tensor("z")], "no input 'z'; it has: x, words"),
        ([tensor(), tensor()], "'x' came 2 times"),
        ([tensor("words", "BYTES", (0,), 0)], "input x is missing; there came: words"),
        ([tensor(datatype="FLOAT")], "datatype 'FLOAT'; it must be one of BOOL"),
        ([tensor(datatype="INT32")], "'x' has the datatype INT32; the model takes FP32"),
        ([tensor(shape=(2, 3))], r"'x' has the shape [2, 3]; the model takes [-1, 2]"),
        ([tensor(shape=(6,))], r"'x' has the shape [6]; the model takes [-1, 2]"),
        ([tensor(shape=(-3, -2))], "no size is negative"),
        ([tensor(num_bytes=23)], "'x' has 23 bytes; FP32 of shape [3, 2] has 24"),
        ([tensor(), tensor("words", "BYTES", (3,), 11)], "'words' has 11 bytes; BYTES of shape [3] has at least 12"),
    ],
)
def test_what_does_not_fit_is_named(tensors: list[wire.Tensor], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(*tensors)
    assert words in caught.value.message
    assert caught.value.param == "inputs"


def test_an_output_that_there_is_not() -> None:
    with pytest.raises(InvalidRequest, match="no output 'q'; it has: y"):
        check(tensor(), outputs=["y", "q"])


def test_a_value_where_tensors_are_taken_and_tensors_where_a_value_is() -> None:
    with pytest.raises(UnsupportedFeature, match=r"takes tensors and no value: x \(FP32 \[-1, 2\]\)"):
        check(value=1)
    values = wire.Signature(task="python", platform="python")
    check(value=None, signature=values)
    with pytest.raises(UnsupportedFeature, match=r"takes no tensors \(x came\)"):
        check(tensor(), signature=values)
    with pytest.raises(HeadwayError, match="outputs can only be chosen where tensors are given"):
        check(value=1, signature=values, outputs=["y"])


@pytest.mark.parametrize(
    ("shape", "wanted", "does"),
    [([], [], True), ([1], [], False), ([4, 2], [-1, 2], True), ([0], [-1], True), ([2, 4], [-1, 2], False)],
)
def test_minus_one_is_any_size(shape: list[int], wanted: list[int], does: bool) -> None:
    assert fits(shape, wanted) is does
