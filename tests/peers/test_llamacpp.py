"""Files that llama.cpp's own quantiser wrote: their values bit for bit, answers no further from float64 than its own,
the same greedy tokens, and what is refused.

Each engine is held against what it multiplies by: the file's values, of which we round those of F32 and F16 to bfloat16
(run_form.py). Both keep K and V in float16, which is both's default, or both in bfloat16. Over the file's own values
those with F16 are further than llama.cpp (docs/log.md): these figures are printed and not asserted.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from headway import LLM, SamplingParams, _native
from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import open_checkpoint
from headway.config import EngineConfig, Quantization
from headway.engine.loading import load_engine
from headway.errors import InvalidConfig, UnsupportedModel
from headway.executor.base import Executor, StepArrays
from headway.executor.native import NativeExecutor
from headway.executor.native_weights import MatrixLoader
from headway.executor.native_writer import PlanLimits
from headway.executor.torch import TorchExecutor
from headway.model import make_program
from headway.planner.run_form import RUNNABLE_TYPES, UNQUANTISED_TYPES, choose_run_form
from peers.conftest import NUM_GREEDY, OTHER_FORMS, RUN_FORMS, UNKNOWN_FORM, LlamaFile, LlamaFiles
from peers.llama_files import read_types, read_weights
from peers.random_llama import PROMPT_LENGTH, SHAPES, random_prompts
from program_reference import reference_logits

# On a new machine the first test waits for llama.cpp to be compiled.
pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(3600)]

BLOCK = 16
LENGTH = PROMPT_LENGTH + NUM_GREEDY
FLAGS = {"executor": "native", "threads": 1, "kv_cache_memory": 1 << 22, "max_num_seqs": 16}
# Of logits with a spread of 3. Where float64's best two are closer than this, an engine that rounds may take either.
CLEAR = 0.3
CACHES = ("float16", "bfloat16")
# Both round activations, each in its own way: two samples of one error, whose difference has this much chance in it.
STANDARD_ERRORS = 2.5
Weights = Mapping[str, np.ndarray]


@pytest.fixture(params=SHAPES, scope="module")
def shape_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=RUN_FORMS, scope="module")
def file(request: pytest.FixtureRequest, shape_name: str, llama_files: LlamaFiles) -> LlamaFile:
    return llama_files[shape_name, request.param]


def read_run_weights(file: LlamaFile) -> tuple[Weights, Weights]:
    """The file's values, and as we multiply by them: rounded to bfloat16 where a run form rounds."""
    weights = read_weights(file.path, file.shape.hidden // file.shape.num_heads)
    types = read_types(file.path)
    rounded = {name for name, kind in types.items() if not choose_run_form(kind, None).is_exact}
    return weights, {name: to_bfloat16(values) if name in rounded else values for name, values in weights.items()}


def float64_logits(file: LlamaFile, weights: Weights, prompts: np.ndarray) -> np.ndarray:
    program = make_program(open_checkpoint(file.path).shape)
    return np.stack([reference_logits(program, weights, prompt.tolist()) for prompt in prompts])


@functools.cache
def wanted_logits(file: LlamaFile) -> np.ndarray:
    """Float64 logits of the prompts and of llama.cpp's greedy tokens behind them, [num_prompts, LENGTH, vocab_size]."""
    return float64_logits(file, read_run_weights(file)[0], np.concatenate([random_prompts(), file.greedy], axis=1))


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).bfloat16().float().numpy()


def whole_prompt(ids: np.ndarray) -> StepArrays:
    at = np.arange(len(ids), dtype=np.int32)
    return StepArrays(
        token_ids=ids,
        positions=at,
        query_starts=np.array([0, len(ids)], np.int32),
        context_lens=np.array([len(ids)], np.int32),
        block_tables=np.arange(-(-len(ids) // BLOCK), dtype=np.int32)[None],
        slots=at.astype(np.int64),
        logit_rows=at,
    )


def logits_of(
    path: Path, executor: str, quantization: Quantization | None = None, cache: str = "float16"
) -> np.ndarray:
    """Of every token of the prompts, [num_prompts, PROMPT_LENGTH, vocab_size]; torch's all in bfloat16."""
    checkpoint = open_checkpoint(path)
    program = make_program(checkpoint.shape)
    cache = "bfloat16" if executor == "torch" else cache
    kv = KVStore(program.caches, num_blocks=LENGTH // BLOCK, block_size=BLOCK, dtype=cache)
    made: Executor
    if executor == "torch":
        made = TorchExecutor(program, checkpoint.weights, kv, dtype="bfloat16", threads=1)
    else:
        limits = PlanLimits(max_tokens=LENGTH, max_selected=LENGTH, max_seqs=1, max_context=LENGTH)
        made = NativeExecutor(program, checkpoint.weights, kv, threads=1, limits=limits, quantization=quantization)
    return np.stack([made.execute(whole_prompt(prompt)).copy() for prompt in random_prompts()])


def divergences(wanted: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Mean KL divergence of the next token's distribution, prompt by prompt, in millinats."""
    pair = (torch.tensor(logits[:, :PROMPT_LENGTH], dtype=torch.float64) for logits in (wanted, found))
    log_p, log_q = (logits.log_softmax(-1) for logits in pair)
    means: np.ndarray = (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1).numpy() * 1e3
    return means


@dataclass(frozen=True)
class Comparison:
    """Distances from float64, [num_prompts], in millinats, of two engines with one kind of cache."""

    ours: np.ndarray
    """Over the weights as we run them."""
    theirs: np.ndarray
    """llama.cpp's."""
    whole: np.ndarray
    """Ours over the file's weights."""


@functools.cache
def run_logits(file: LlamaFile) -> np.ndarray:
    """wanted_logits() of the prompts alone, over the weights as we run them."""
    weights, run = read_run_weights(file)
    if all(np.array_equal(run[name], weights[name]) for name in weights):
        return wanted_logits(file)
    return float64_logits(file, run, random_prompts())


@functools.cache
def compare(file: LlamaFile, cache: str) -> Comparison:
    wanted, logits = wanted_logits(file), logits_of(file.path, "native", cache=cache)
    theirs = file.logits if cache == "float16" else file.logits_bf16_cache
    return Comparison(divergences(run_logits(file), logits), divergences(wanted, theirs), divergences(wanted, logits))


def test_the_files_have_every_type_that_we_run(llama_files: LlamaFiles) -> None:
    written = {
        kind for file in llama_files.values() if file.form in RUN_FORMS for kind in read_types(file.path).values()
    }
    assert written == set(RUNNABLE_TYPES) - {"F32"}


def test_packed_weights_are_the_gguf_packages_bit_for_bit(file: LlamaFile) -> None:
    checkpoint = open_checkpoint(file.path)
    types = read_types(file.path)
    shapes = make_program(checkpoint.shape).weights
    loader = MatrixLoader(checkpoint.weights, shapes, _native.Workers(1))
    _, weights = read_run_weights(file)
    assert set(weights) == set(shapes)
    for name, values in weights.items():
        if name in types:
            matrix = loader.joined((name,))
            found = np.full(matrix.shape, np.nan, np.float32)
            matrix.dequantise(found)
        else:
            found = loader.vector(name)
        np.testing.assert_array_equal(found, values, f"{name} {types.get(name)}")


@pytest.mark.parametrize("cache", CACHES)
def test_logits_are_no_further_from_float64_than_llama_cpps(
    file: LlamaFile, shape_name: str, cache: str, figures: list[str]
) -> None:
    found = compare(file, cache)
    types = sorted(set(read_types(file.path).values()))
    distances = [f"{each.mean():.4f}" for each in (found.ours, found.theirs, found.whole)]
    figures.append(" | ".join([shape_name, file.form, ", ".join(types), cache, *distances]))
    assert found.theirs.mean() < 5, "the reference is of another model"
    chance = (found.ours - found.theirs).std(ddof=1) / len(found.ours) ** 0.5
    assert found.ours.mean() <= found.theirs.mean() + STANDARD_ERRORS * chance


@pytest.mark.parametrize("cache", CACHES)
def test_over_all_files_without_blocks_of_256_we_are_nearer(llama_files: LlamaFiles, cache: str) -> None:
    # llama.cpp rounds activations in groups of 256 in front of those, and is further off by far.
    files = [file for file in llama_files.values() if file.form in RUN_FORMS]
    by_32 = [file for file in files if not any(kind.endswith("_K") for kind in read_types(file.path).values())]
    found = [compare(file, cache) for file in by_32]
    assert len(found) > len(files) / 2
    assert sum(each.ours.mean() for each in found) < sum(each.theirs.mean() for each in found)


@pytest.mark.parametrize("form", ["F16", "BF16"])
def test_files_of_floats_are_nearer_than_torchs_bfloat16(llama_files: LlamaFiles, shape_name: str, form: str) -> None:
    file = llama_files[shape_name, form]
    theirs = divergences(wanted_logits(file), logits_of(file.path, "torch"))
    assert compare(file, "float16").whole.mean() <= theirs.mean()


def test_greedy_tokens_are_llama_cpps_up_to_a_place_where_float64_is_not_clear(
    file: LlamaFile,
) -> None:
    top = np.sort(wanted_logits(file)[:, PROMPT_LENGTH - 1 : -1], axis=-1)
    margins = top[..., -1] - top[..., -2]
    with LLM(str(file.path), **FLAGS) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=NUM_GREEDY, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt.tolist()} for prompt in random_prompts()], greedy)
    num_alike = 0
    for output, theirs, margin in zip(outputs, file.greedy, margins, strict=True):
        differs = np.array(output.outputs[0].token_ids) != theirs
        first = int(differs.argmax()) if differs.any() else NUM_GREEDY
        assert first == NUM_GREEDY or margin[first] < CLEAR, f"token {first}: {margin[first]}"
        num_alike += first
    # A quarter of all places is not clear, and what follows the first that went another way is not compared.
    assert num_alike > margins.size / 4


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantization_is_refused_of_a_quantised_file_and_taken_of_another(
    file: LlamaFile, quantization: Quantization
) -> None:
    config = EngineConfig(executor="native", threads=1, kv_cache_memory=1 << 22, quantization=quantization)
    if not set(read_types(file.path).values()) <= set(UNQUANTISED_TYPES):
        with pytest.raises(InvalidConfig, match=rf"quantization is {quantization}, .* quantised already: leave"):
            load_engine(file.path, config, lambda *_: None)
        return
    _, info = load_engine(file.path, config, lambda *_: None)
    # What most bytes are in: with int4 a small model's may be those of its embedding and head, which stay at 8 bits.
    assert info["dtype"] in ({"q8"} if quantization == "int8" else {"q4", "q8"})
    # 4 bits lose far more than 8: the one is not the other.
    distance = divergences(wanted_logits(file), logits_of(file.path, "native", quantization)).mean()
    assert distance < 10 if quantization == "int8" else 10 < distance < 500


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_other_types_are_refused_by_name(llama_files: LlamaFiles, form: str) -> None:
    file = llama_files["256", form]
    others = set(read_types(file.path).values()) - set(RUNNABLE_TYPES)
    assert others, "llama.cpp wrote what we run"
    with pytest.raises(UnsupportedModel, match=rf"type ({'|'.join(sorted(others))})\b.*Q4_K"):
        LLM(str(file.path), **FLAGS)


def test_a_type_that_is_newer_than_our_table_is_refused_by_its_number(llama_files: LlamaFiles) -> None:
    with pytest.raises(UnsupportedModel, match=r"type number 42, which is unknown.*Q4_K"):
        LLM(str(llama_files["256", UNKNOWN_FORM].path), **FLAGS)
