"""What models are said to need before they are loaded: by arithmetic, and against what a load then takes."""

import os
from pathlib import Path
from typing import Any

import pytest

from headway.config import EngineConfig, InferConfig, ModelConfig, ResidencyConfig
from headway.engine.loading import load_engine, plan_language_model
from headway.errors import OutOfMemory
from headway.service.estimate import (
    CUDA_HOST_BYTES,
    ModelEstimate,
    engine_device,
    estimate_model,
    files_bytes,
    need_of_info,
    with_cache,
)
from headway.service.events import CPU, Need
from headway.service.frameworks import PROCESS_BYTES
from headway.service.lives import bounded
from headway.testing.tiny_model import HIDDEN_SIZE, MAX_POSITION, write_tiny_model

MIB = 1 << 20
KV_TOKEN = 2 * HIDDEN_SIZE * 2  # K and V of one layer in float16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def tiny(folder: Path, **engine: Any) -> ModelConfig:
    return ModelConfig(source=str(folder), engine=EngineConfig(threads=1, executor="native", **engine))


@pytest.mark.parametrize(
    ("kv_bytes", "context_bytes", "least"),
    [
        (1000, 100, 250),  # a quarter
        (1000, 600, 600),  # one whole context
        (1000, 1000, 1000),  # the context was lowered to what there is
        (100, 400, 100),
    ],
)
def test_a_cache_has_at_least_a_quarter_of_its_share_and_one_context(
    kv_bytes: int, context_bytes: int, least: int
) -> None:
    made = with_cache(Need({CPU: 50}), kv_bytes=kv_bytes, context_bytes=context_bytes)
    assert made == ModelEstimate(Need({CPU: 50 + least}, more_bytes=kv_bytes - least), least)


def test_the_need_of_a_language_model_is_its_plan(folder: Path) -> None:
    budget = {CPU: 256 * MIB}
    made = estimate_model(tiny(folder), folder, "generate", budget)
    plan = plan_language_model(folder, EngineConfig(threads=1, executor="native", device="cpu"), budget[CPU])
    # 25% of the budget, in whole blocks of 16 tokens; what 64 sequences of 512 tokens could use is more.
    kv_bytes = 64 * MIB // (16 * KV_TOKEN) * (16 * KV_TOKEN)
    assert kv_bytes < 64 * MAX_POSITION * KV_TOKEN
    assert made.kv_bytes == int(0.25 * kv_bytes)
    assert made.need.more_bytes == kv_bytes - made.kv_bytes
    rest = plan.weights_bytes + plan.workspace_bytes + PROCESS_BYTES
    assert made.need.amounts == {CPU: rest + made.kv_bytes}
    assert not made.need.is_guess


def test_on_a_gpu_that_others_use_too_a_cache_takes_no_more_than_it_would_of_main_memory(folder: Path) -> None:
    model = ModelConfig(source=str(folder), engine=EngineConfig(device="cuda:0"))
    made = estimate_model(model, folder, "generate", {CPU: 4 << 30, "cuda:0": 256 * MIB})
    # Alone it would take the whole 64 x 512 tokens, which is over 25%.
    assert 64 * MAX_POSITION * KV_TOKEN > 64 * MIB
    assert made.kv_bytes is not None
    assert made.kv_bytes + made.need.more_bytes == 64 * MIB
    assert made.need.device == "cuda:0"


def test_a_load_takes_what_it_was_planned_to(folder: Path) -> None:
    made = estimate_model(tiny(folder), folder, "generate", {CPU: 256 * MIB})
    assert made.kv_bytes is not None
    config = EngineConfig(threads=1, executor="native", kv_cache_memory=made.kv_bytes, memory_limit=256 * MIB)
    engine, info = load_engine(folder, config, lambda _: None)
    engine.close()
    told = need_of_info(info)
    assert told is not None
    # Blocks are whole ones.
    assert 0 <= made.need.amounts[CPU] - told.amounts[CPU] < 16 * KV_TOKEN
    assert info["max_model_len"] == MAX_POSITION


def test_a_cache_of_a_given_size_is_needed_whole(folder: Path) -> None:
    made = estimate_model(tiny(folder, kv_cache_memory=16 * KV_TOKEN * 40), folder, "generate", {CPU: 256 * MIB})
    assert made.kv_bytes == 16 * KV_TOKEN * 32  # one context of 512 tokens
    assert made.need.more_bytes == 16 * KV_TOKEN * 8


def test_one_that_does_not_fit_is_told_with_both_numbers(folder: Path) -> None:
    with pytest.raises(OutOfMemory, match=rf"\({1 * MIB} bytes\) are available"):
        estimate_model(tiny(folder), folder, "generate", {CPU: MIB})


def test_the_limit_of_all_models_bounds_the_one_that_is_loaded(folder: Path) -> None:
    config = EngineConfig(threads=1, executor="native", memory_limit=MIB)
    with pytest.raises(OutOfMemory, match=rf"\({1 * MIB} bytes\) are available"):
        load_engine(folder, config, lambda _: None)


def test_what_is_wrong_with_files_is_told_by_the_load_and_not_here(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 1000)
    made = estimate_model(tiny(tmp_path), tmp_path, "generate", {CPU: MIB * 256})
    assert made.need.amounts == {CPU: 1300 + PROCESS_BYTES}
    assert made.need.is_guess


@pytest.mark.parametrize(
    ("fields", "amounts", "is_guess"),
    [
        ({}, {CPU: 1300 + PROCESS_BYTES}, True),
        ({"infer": InferConfig(instances=3)}, {CPU: 3 * (1300 + PROCESS_BYTES)}, True),
        ({"residency": ResidencyConfig(expected_bytes=5000)}, {CPU: 5000}, False),
        (
            {"options": {"device": "cuda:1"}},
            {"cuda:1": 1300 + PROCESS_BYTES, CPU: CUDA_HOST_BYTES},
            True,
        ),
    ],
)
def test_other_frameworks_need_their_files_and_a_third_and_an_interpreter(
    tmp_path: Path, fields: dict[str, Any], amounts: dict[str, int], is_guess: bool
) -> None:
    (tmp_path / "model.onnx").write_bytes(bytes(1000))
    model = ModelConfig(source=str(tmp_path), framework="onnx", **fields)
    need = estimate_model(model, tmp_path, None, {CPU: MIB}).need
    assert (need.amounts, need.is_guess) == (amounts, is_guess)


def test_vllm_needs_its_own_libraries_and_the_cache_that_it_is_told_to_have(tmp_path: Path) -> None:
    for options, num_bytes in (
        ({"mode": "launch", "kv_cache_gib": 2}, 2 * (700 << 20) + (2 << 30)),
        ({"mode": "embedded"}, (700 << 20) + (1 << 30)),
    ):
        model = ModelConfig(source="x", framework="vllm", options=options)
        assert estimate_model(model, tmp_path, None, {CPU: 64 << 30}).need.amounts == {CPU: num_bytes}


def test_what_another_server_computes_takes_nothing_and_no_place() -> None:
    model = ModelConfig(source="http://there", framework="openai")
    need = estimate_model(model, Path(), None, {CPU: MIB}).need
    assert (need.amounts, need.num_places) == ({}, 0)


def test_links_count_as_what_they_lead_to_and_a_circle_ends(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(bytes(700))
    folder = tmp_path / "model"
    folder.mkdir()
    os.symlink(tmp_path / "blob", folder / "weights")
    os.symlink(folder, folder / "again")
    os.symlink(tmp_path / "gone", folder / "nothing")
    assert files_bytes(folder) == 700
    assert files_bytes(tmp_path / "blob") == 700
    assert files_bytes(tmp_path / "gone") == 0


def test_a_worker_is_told_what_it_may_take_of_its_device() -> None:
    budget = {CPU: 100, "cuda:1": 70}
    estimate = ModelEstimate(Need({CPU: 50}, more_bytes=9), kv_bytes=20)
    planned = bounded(ModelConfig(source="x", engine=EngineConfig(device="cpu")), estimate, 4, budget).engine
    assert (planned.kv_cache_memory, planned.memory_limit) == (24, 100)
    alone = bounded(ModelConfig(source="x", engine=EngineConfig(device="cuda:1")), None, 0, budget).engine
    assert (alone.kv_cache_memory, alone.memory_limit) == (None, 70)
    # Nobody knows how large that GPU is: all that is free there.
    assert bounded(ModelConfig(source="x", engine=EngineConfig(device="cuda")), None, 0, budget).engine == EngineConfig(
        device="cuda"
    )


@pytest.mark.parametrize(
    ("config", "device"),
    [
        (EngineConfig(device="cpu"), CPU),
        (EngineConfig(device="cuda"), "cuda:0"),
        (EngineConfig(device="cuda:3"), "cuda:3"),
        (EngineConfig(executor="native"), CPU),
    ],
)
def test_the_device_is_known_without_a_word_from_torch(config: EngineConfig, device: str) -> None:
    assert engine_device(config) == device
