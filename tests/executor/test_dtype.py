"""What auto means on each machine."""

import pytest

from headway.errors import InvalidConfig
from headway.executor import choose_dtype

AVX2 = frozenset({"avx2", "fma"})


@pytest.mark.parametrize(
    ("requested", "file_dtype", "isa", "chosen"),
    [
        ("float16", "bfloat16", AVX2, "float16"),
        ("bfloat16", "float32", AVX2, "bfloat16"),
        ("auto", "float32", AVX2 | {"avx512_bf16"}, "float32"),
        ("auto", "bfloat16", AVX2, "float32"),
        ("auto", "bfloat16", AVX2 | {"avx512_bf16"}, "bfloat16"),
        ("auto", "float16", AVX2 | {"amx_bf16"}, "bfloat16"),
        ("auto", "bfloat16", frozenset({"asimd", "bf16"}), "bfloat16"),
    ],
)
def test_the_dtype_is_the_one_asked_for_or_the_fastest(requested, file_dtype, isa, chosen):
    assert choose_dtype(requested, file_dtype, isa) == chosen


def test_an_unknown_dtype_is_refused_by_name():
    with pytest.raises(InvalidConfig, match="int8"):
        choose_dtype("int8", "float32", AVX2)
