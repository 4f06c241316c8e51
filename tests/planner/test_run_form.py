import pytest

from headway.errors import InvalidConfig, UnsupportedModel
from headway.planner.run_form import RUNNABLE_TYPES, RunForm, choose_run_form

Q4_MIN = RunForm(form="q4", has_min=True)


@pytest.mark.parametrize(
    ("file_type", "form"),
    [
        ("BF16", RunForm(form="bf16")),
        ("F16", RunForm(form="bf16", is_exact=False)),
        ("F32", RunForm(form="bf16", is_exact=False)),
        ("Q4_0", RunForm(form="q4")),
        ("Q4_1", Q4_MIN),
        ("Q4_K", RunForm(form="q4", has_min=True, wide_scales=True)),
        ("Q5_0", RunForm(form="q8")),
        ("Q5_1", RunForm(form="q8", has_min=True)),
        ("Q5_K", RunForm(form="q8", has_min=True, wide_scales=True)),
        ("Q6_K", RunForm(form="q8", group=16, wide_scales=True)),
        ("Q8_0", RunForm(form="q8")),
    ],
)
def test_each_file_type_has_the_narrowest_form_that_holds_it(file_type: str, form: RunForm) -> None:
    assert choose_run_form(file_type, None) == form
    assert file_type in RUNNABLE_TYPES


@pytest.mark.parametrize(("file_type", "form"), [("F32", "f32"), ("F16", "f32"), ("BF16", "bf16"), ("Q8_0", "q8")])
def test_an_encoders_floats_stay_what_they_are(file_type: str, form: str) -> None:
    chosen = choose_run_form(file_type, None, keeps_floats=True)
    assert (chosen.form, chosen.is_exact) == (form, True)
    assert choose_run_form("F32", "int8", keeps_floats=True).form == "q8"


@pytest.mark.parametrize("file_type", ["F32", "F16", "BF16"])
def test_quantization_makes_layers_narrow_and_vocabularies_eight_bits_at_least(file_type: str) -> None:
    assert choose_run_form(file_type, "int8") == RunForm(form="q8", is_exact=False)
    assert choose_run_form(file_type, "int4") == RunForm(form="q4", has_min=True, is_exact=False)
    for quantization in ("int8", "int4"):
        assert choose_run_form(file_type, quantization, is_vocabulary=True) == RunForm(form="q8", is_exact=False)


def test_what_is_quantised_is_not_quantised_again() -> None:
    for file_type in ("Q8_0", "Q4_1", "Q6_K"):
        with pytest.raises(InvalidConfig, match=f"int8, and the model's weights are {file_type}, quantised already"):
            choose_run_form(file_type, "int8")


def test_an_unknown_type_or_quantization_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"type IQ4_NL, which cannot be run: .* Q6_K, Q8_0"):
        choose_run_form("IQ4_NL", None)
    with pytest.raises(InvalidConfig, match="quantization is 'int2'; it must be int8 or int4"):
        choose_run_form("BF16", "int2")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "shape", "num_bytes"),
    [
        # panels of 16 rows; values, then scales, then mins of each
        (RunForm(form="bf16"), (16, 32), 16 * 32 * 2),
        (RunForm(form="f32"), (17, 33), 2 * 16 * 64 * 4),
        (RunForm(form="bf16"), (17, 33), 2 * 16 * 64 * 2),
        (RunForm(form="q8"), (16, 32), 512 + 64),  # 32 bytes of scales, padded to 64
        (RunForm(form="q8"), (16, 64), 1024 + 64),
        (RunForm(form="q8", has_min=True), (32, 64), 2 * (1024 + 64 + 64)),
        (RunForm(form="q8", group=16, wide_scales=True), (16, 32), 512 + 128),
        (Q4_MIN, (576, 576), 36 * (18 * 256 + 18 * 32 + 18 * 32)),  # 0.625 bytes a weight
        (RunForm(form="q4", has_min=True, wide_scales=True), (16, 256), 8 * 256 + 512 + 512),
    ],
)
def test_the_bytes_of_a_packed_matrix(form: RunForm, shape: tuple[int, int], num_bytes: int) -> None:
    assert form.num_bytes(*shape) == num_bytes
