"""Which form the native executor computes a matrix in, and the bytes that it takes (native/src/exec/matrix.h).

    file            run form                                        a value of the file
    BF16            bf16                                            stays
    F16, F32        bf16                                            is rounded to the nearest bfloat16, ties to even
    Q4_0            q4, groups of 32, float16 scales                stays
    Q4_1            q4, groups of 32, float16 scales and mins       stays
    Q4_K            q4, groups of 32, float32 scales and mins       stays: a float16 times 6 bits is a float32
    Q5_0, Q8_0      q8, groups of 32, float16 scales                stays
    Q5_1            q8, groups of 32, float16 scales and mins       stays
    Q5_K            q8, groups of 32, float32 scales and mins       stays, as Q4_K
    Q6_K            q8, groups of 16, float32 scales                stays, as Q4_K

An encoder's F16 and F32 matrices run as f32, which changes nothing: its vectors are compared to three digits and more.
`--quantization` makes q8 or q4 of BF16, F16 and F32, which changes values; nothing else does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from headway.config import Quantization
from headway.errors import InvalidConfig, UnsupportedModel

Form = Literal["f32", "bf16", "q8", "q4"]
FLOAT_FORMS: tuple[Form, ...] = ("f32", "bf16")
"""Multiplied by rows that are not quantised."""
PANEL_LANES = 16
GROUP_COLS = 32
_ALIGNMENT = 64
_BITS: Mapping[Form, int] = {"f32": 32, "bf16": 16, "q8": 8, "q4": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForm:
    """matrix.h's MatrixView without its sizes."""

    form: Form
    group: int = GROUP_COLS
    """Columns that share a scale; of bf16 without a meaning."""
    has_min: bool = False
    wide_scales: bool = False
    """Scales and mins are float32, else float16."""
    is_exact: bool = True
    """No value of the file changes."""

    def num_bytes(self, num_rows: int, num_cols: int) -> int:
        """Bytes of a packed matrix: panels of 16 rows, columns padded to 32, scales and mins beside them."""
        num_panels, num_groups = -(-num_rows // PANEL_LANES), -(-num_cols // GROUP_COLS)
        values = _aligned(num_groups * GROUP_COLS * PANEL_LANES * _BITS[self.form] // 8)
        if self.form in FLOAT_FORMS:
            return num_panels * values
        scales = num_groups * (GROUP_COLS // self.group) * PANEL_LANES * (4 if self.wide_scales else 2)
        return num_panels * (values + _aligned(scales) * (2 if self.has_min else 1))

    def __str__(self) -> str:
        return self.form


_F32 = RunForm(form="f32")
_BF16 = RunForm(form="bf16")
_OF_FILE: Mapping[str, RunForm] = {
    "BF16": _BF16,
    "F16": replace(_BF16, is_exact=False),
    "F32": replace(_BF16, is_exact=False),
    "Q4_0": RunForm(form="q4"),
    "Q4_1": RunForm(form="q4", has_min=True),
    "Q4_K": RunForm(form="q4", has_min=True, wide_scales=True),
    "Q5_0": RunForm(form="q8"),
    "Q5_1": RunForm(form="q8", has_min=True),
    "Q5_K": RunForm(form="q8", has_min=True, wide_scales=True),
    "Q6_K": RunForm(form="q8", group=16, wide_scales=True),
    "Q8_0": RunForm(form="q8"),
}
RUNNABLE_TYPES = tuple(_OF_FILE)
UNQUANTISED_TYPES = ("F32", "F16", "BF16")


def choose_run_form(
    file_type: str, quantization: Quantization | None, *, is_vocabulary: bool = False, keeps_floats: bool = False
) -> RunForm:
    """The form of a matrix; the module's docstring has the table.

    1. Without `quantization`: the narrowest form that holds the file's values; for floating-point ones bf16, or with
       keeps_floats f32 where bf16 would round them.
    2. int8: q8 with float16 scales.
    3. int4: q4 with float16 scales and mins; embeddings and heads, whose errors are not averaged out by a layer behind
       them, are q8.

    Args:
        file_type: ggml's name.
        quantization: EngineConfig.quantization.
        is_vocabulary: its rows are tokens: an embedding table or a head.
        keeps_floats: of an encoder.

    Raises:
        UnsupportedModel: no form for this type.
        InvalidConfig: quantization of a type that is quantised, the same width too: the file has chosen already.
    """
    form = _OF_FILE.get(file_type)
    if form is None:
        raise UnsupportedModel(
            f"a matrix has the type {file_type}, which cannot be run: convert the model to one of "
            f"{', '.join(RUNNABLE_TYPES)}"
        )
    if quantization is None:
        return _F32 if keeps_floats and not form.is_exact else form  # 1
    if file_type not in UNQUANTISED_TYPES:
        raise InvalidConfig(
            f"quantization is {quantization}, and the model's weights are {file_type}, quantised already: leave "
            f"--quantization out, or take a model in {', '.join(UNQUANTISED_TYPES)}",
            param="quantization",
        )
    if quantization == "int8" or (quantization == "int4" and is_vocabulary):
        return RunForm(form="q8", is_exact=False)  # 2
    if quantization == "int4":
        return RunForm(form="q4", has_min=True, is_exact=False)  # 3
    raise InvalidConfig(f"quantization is {quantization!r}; it must be int8 or int4", param="quantization")


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
