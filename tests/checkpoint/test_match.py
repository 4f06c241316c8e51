import numpy as np
import pytest

from headway.checkpoint.match import match_tensors
from headway.checkpoint.weights import MappedWeights, WeightView, ZeroFilledWeights, deinterleave_heads
from headway.errors import TensorMismatch


class Arrays:
    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name]


def weights_of(**arrays: np.ndarray) -> MappedWeights:
    file = Arrays(arrays)
    return MappedWeights({name: WeightView(file, name, array.shape) for name, array in arrays.items()})


HAVE = weights_of(same=np.ones((2, 3), np.float32), bent=np.ones(4, np.float32), more=np.ones(1, np.float32))
WANT = {"same": (2, 3), "bent": (5,), "gone": (7, 1)}


def test_what_matches_gives_no_lines() -> None:
    assert match_tensors({"a": (2,)}, weights_of(a=np.ones(2, np.float32)), strict=True) == []


def test_missing_misshapen_and_unexpected_tensors_are_all_listed() -> None:
    with pytest.raises(TensorMismatch) as raised:
        match_tensors(WANT, HAVE, strict=True)
    for words in (
        "(1 missing, 1 misshapen, 1 unexpected)",
        "missing: gone [7, 1]",
        "misshapen: bent is [4], should be [5]",
        "unexpected: more [1]",
        "--non-strict",
    ):
        assert words in raised.value.message


def test_without_strictness_the_lines_are_returned_and_the_rest_reads_as_zeros() -> None:
    assert match_tensors(WANT, HAVE, strict=False) == [
        "missing: gone [7, 1]",
        "misshapen: bent is [4], should be [5]",
        "unexpected: more [1]",
    ]
    filled = ZeroFilledWeights(WANT, HAVE)
    assert filled.shapes() == WANT
    np.testing.assert_array_equal(filled.read("same"), np.ones((2, 3)))
    np.testing.assert_array_equal(filled.read("bent"), np.zeros(5))
    np.testing.assert_array_equal(filled.read("gone"), np.zeros((7, 1)))


def test_a_long_list_is_cut_and_counted() -> None:
    lines = match_tensors({f"w{number:03}": (1,) for number in range(1000)}, weights_of(), strict=False)
    assert len(lines) == 21
    assert lines[0] == "missing: w000 [1]"
    assert lines[-1] == "missing: 980 more"


def test_interleaved_halves_of_two_heads_are_put_back() -> None:
    # Heads of 4 rows: halves 0 1 | 2 3 are stored 0 2 1 3.
    stored = np.array([0, 2, 1, 3, 4, 6, 5, 7], np.float32)
    np.testing.assert_array_equal(deinterleave_heads(stored, 2), np.arange(8))
