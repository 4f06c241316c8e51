"""The native executor against a float64 interpreter that rounds where its documents say, and against torch; and exact
against itself, bit for bit, whatever way the tokens came, on each instruction set of this machine."""

from typing import Any

import numpy as np
import pytest

from headway import _native
from headway.cache.kv_store import KVStore
from headway.executor.native import NativeExecutor
from headway.executor.native_writer import ALL_NATIVE_FUSIONS, PlanLimits
from headway.model import make_program
from headway.model.program import Program
from headway.testing import tiny_model
from program_reference import reference_logits, to_bfloat16, to_float16, to_int8

RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 128, size=size).tolist() for size in (37, 1, 16, 23)]
BLOCK = 16
# Of the logits' spread (their standard deviation). What is left where the reference rounds as we do: float32 sums, and
# a few K, V and activations that fall on the other side of a rounding because of them.
CLOSE = 2e-3
# In front of quantised matrices a float32 sum may put an activation on the other side of a rounding, which moves it by
# 1 in 127 of its group's largest, in K and V for all rows behind it: rows without one are equal.
QUANTISED_LEAST, QUANTISED_LARGEST = 1e-4, 0.1
# K and V in bfloat16 against float32: 8 bits of each, averaged over keys and layers.
ROUNDED_KV = 3e-2


@pytest.fixture(params=_native.available_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADWAY_ISA", request.param)
    name: str = request.param
    return name


class RoundedWeights:
    """A checkpoint's weights with matrices that bfloat16 can hold."""

    def __init__(self, weights: Any, program: Program) -> None:
        self._arrays = {
            name: to_bfloat16(weights.read(name)).astype(np.float32) if len(shape) == 2 else weights.read(name).copy()
            for name, shape in program.weights.items()
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self._arrays.items()}

    def read(self, name: str) -> np.ndarray:
        return self._arrays[name]


def make(
    program: Program,
    weights: Any,
    *,
    threads: int = 1,
    kv_dtype: str = "float16",
    num_blocks: int = 64,
    **options: Any,
) -> NativeExecutor:
    kv = KVStore(program.caches, num_blocks=num_blocks, block_size=BLOCK, dtype=kv_dtype)
    limits = PlanLimits(max_tokens=256, max_selected=256, max_seqs=8, max_context=128)
    return NativeExecutor(program, weights, kv, threads=threads, limits=limits, **options)


@pytest.fixture
def rounded(pair: Any) -> RoundedWeights:
    return RoundedWeights(pair.weights, pair.program)


def spread_error(ours: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(ours - wanted).max() / wanted.std())


@pytest.mark.parametrize(("keep", "kv_dtype"), [(to_float16, "float16"), (to_bfloat16, "bfloat16")])
def test_a_whole_prompt_gives_the_float64_logits_over_rounded_keys_and_values(
    pair, rounded, sequences_of, isa, keep, kv_dtype
):
    executor = make(pair.program, rounded, kv_dtype=kv_dtype)
    ours = executor.execute(sequences_of(1, block_size=BLOCK).step({0: PROMPTS[0]}))
    wanted = reference_logits(pair.program, rounded._arrays, PROMPTS[0], keep=keep)
    assert spread_error(ours, wanted) < CLOSE


def test_torch_gives_the_same_logits_up_to_the_rounding_of_keys_and_values(pair, rounded, sequences_of):
    from headway.executor.torch import TorchExecutor

    kv = KVStore(pair.program.caches, num_blocks=64, block_size=BLOCK, dtype="float32")
    torch_executor = TorchExecutor(pair.program, rounded, kv, dtype="float32", threads=1)
    step = sequences_of(1, block_size=BLOCK).step({0: PROMPTS[0]})
    wanted = torch_executor.execute(step)
    ours = make(pair.program, rounded).execute(step)
    assert spread_error(ours, wanted) < ROUNDED_KV
    assert spread_error(reference_logits(pair.program, rounded._arrays, PROMPTS[0]), wanted) < 1e-4


def dequantised(array: np.ndarray, form: str, has_min: bool) -> np.ndarray:
    """What a matrix of floats is multiplied as, once it is quantised."""
    matrix = _native.PackedMatrix(
        form, group=32, has_min=has_min, wide_scales=False, num_rows=len(array), num_cols=array.shape[1]
    )
    rows = np.arange(len(array), dtype=np.int32)
    matrix.pack("F32", np.ascontiguousarray(array).reshape(-1).view(np.uint8), rows, _native.Workers(1))
    out = np.empty(array.shape, np.float32)
    matrix.dequantise(out)
    return out


@pytest.mark.parametrize(
    ("quantization", "keep", "kv_dtype"), [("int8", to_float16, "float16"), ("int4", to_int8, "int8")]
)
def test_quantised_weights_give_the_float64_logits_over_quantised_activations(
    pair, sequences_of, isa, quantization, keep, kv_dtype
):
    ours = make(pair.program, pair.weights, quantization=quantization, kv_dtype=kv_dtype).execute(
        sequences_of(1, block_size=BLOCK).step({0: PROMPTS[0]})
    )
    vocabulary = {"embed.weight", "lm_head.weight", "head.weight"}
    weights = {}
    for name, shape in pair.program.weights.items():
        array = pair.weights.read(name)
        is_four = quantization == "int4" and name not in vocabulary
        weights[name] = dequantised(array, "q4" if is_four else "q8", is_four) if len(shape) == 2 else array
    matrices = [name for name, shape in pair.program.weights.items() if len(shape) == 2]
    wanted = reference_logits(pair.program, weights, PROMPTS[0], keep=keep, quantised=matrices)
    errors = np.abs(ours - wanted).max(axis=1) / wanted.std()
    assert errors.min() < QUANTISED_LEAST
    assert errors.max() < QUANTISED_LARGEST


def in_chunks(executor: NativeExecutor, sequences: Any, ids: list[int], sizes: list[int]) -> np.ndarray:
    made, at = [], 0
    for size in sizes:
        if ids[at : at + size]:
            made.append(executor.execute(sequences.step({0: ids[at : at + size]})).copy())
        at += size
    return np.concatenate(made)


FORMS = [{}, {"kv_dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4", "kv_dtype": "int8"}]


@pytest.mark.parametrize("options", FORMS, ids=["bf16", "bf16 KV", "int8", "int4"])
def test_chunks_batches_blocks_and_threads_change_no_bit(pair, sequences_of, isa, options):
    def new(threads: int = 1) -> NativeExecutor:
        return make(pair.program, pair.weights, threads=threads, **options)

    alone = [new().execute(sequences_of(1, block_size=BLOCK).step({0: prompt})).copy() for prompt in PROMPTS]
    for sizes in ([1] * 37, [3] * 13, [16, 16, 5], [20, 17], [36, 1]):
        chunked = in_chunks(new(), sequences_of(1, block_size=BLOCK), PROMPTS[0], sizes)
        assert chunked.tobytes() == alone[0].tobytes(), sizes
    for threads in (1, 2, 3):
        executor, sequences = new(threads), sequences_of(4, block_size=BLOCK)
        first = executor.execute(sequences.step({0: PROMPTS[0][:-1], 2: PROMPTS[2][:5]})).copy()
        rest = executor.execute(
            sequences.step({3: PROMPTS[3], 0: PROMPTS[0][-1:], 1: PROMPTS[1], 2: PROMPTS[2][5:]})
        ).copy()
        assert first.tobytes() == np.concatenate([alone[0][:-1], alone[2][:5]]).tobytes()
        wanted = np.concatenate([alone[3], alone[0][-1:], alone[1], alone[2][5:]])
        assert rest.tobytes() == wanted.tobytes(), threads


@pytest.mark.parametrize("left_out", [*((name,) for name in ALL_NATIVE_FUSIONS), ALL_NATIVE_FUSIONS], ids=str)
@pytest.mark.parametrize("options", FORMS[:2], ids=["bf16", "int8"])
def test_each_fusion_can_be_left_out_and_changes_no_bit(pair, sequences_of, left_out, options):
    kept = tuple(name for name in ALL_NATIVE_FUSIONS if name not in left_out)
    step = sequences_of(1, block_size=BLOCK).step({0: PROMPTS[3]})
    ours = make(pair.program, pair.weights, fusions=kept, **options).execute(step)
    wanted = make(pair.program, pair.weights, **options).execute(step)
    assert ours.tobytes() == wanted.tobytes()


def test_the_model_worked_by_hand_says_what_it_must(tmp_path, sequences_of, isa):
    from headway.checkpoint.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(tiny_model.write_tiny_model(tmp_path))
    program = make_program(checkpoint.shape)
    executor = make(program, checkpoint.weights)
    text = list(b"abcabd")
    logits = executor.execute(sequences_of(1, block_size=BLOCK).step({0: text}))
    wanted = [tiny_model.logits_by_hand(text[: at + 1]) for at in range(len(text))]
    # Its keys are 0 and its values one of a few numbers: only their rounding to bfloat16 shows.
    np.testing.assert_allclose(logits, wanted, atol=2e-2)
