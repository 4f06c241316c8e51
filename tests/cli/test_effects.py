"""Each flag has an effect, or is refused where it has none: this table has every one."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_settings import VALUES

from headway.cli.resolve import resolve_settings
from headway.cli.settings import Settings
from headway.config import EngineConfig, ModelConfig, TextConfig
from headway.engine.effects import check_device_effects, check_encoder_effects
from headway.engine.encoder_loading import load_encoder
from headway.errors import InvalidConfig
from headway.service.loader import open_model
from parity.encoders import save_encoder

EVERYWHERE = {
    *("model", "served_model_name", "cache_dir", "predictor", "executor", "device", "threads", "seed"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory"),
    *("enable_chunked_prefill", "enable_kv_cache", "scheduling_policy", "batching", "stall_timeout", "load_timeout"),
    "force_tokens",
    *("chat_template", "generation_config", "host", "port", "api_key", "drain_timeout", "max_queued_requests"),
    *("tool_call_parser", "reasoning_parser", "max_body_size", "response_store", "allowed_origins", "allowed_hosts"),
    *("allowed_media_domains", "grpc_port", "native_door", "admin_api_key"),
    *("catalog", "database_url", "models_file", "max_source_size"),
    *("log_format", "log_level"),
    *("memory_limit", "max_models", "max_spares", "eviction", "queue_timeout"),
}
IDLE: dict[str, tuple[dict[str, Any], str]] = {
    "max_queue_delay_ms": ({}, r"max_queue_delay_ms is 2000.0, and batching is continuous, .* dynamic or static"),
    "scheduling_ageing": ({}, r"scheduling_ageing_s is 60.0, and scheduling_policy is fcfs, .* priority, sjf or fair"),
    "step_target": ({"enable_chunked_prefill": False}, r"step_target_s is 0.2, and without chunked prefill"),
}
"""Refused as it is read: beside what it has no effect."""
REFUSED_AS_THE_MODEL_LOADS = {
    "enforce_eager": "cli/test_effects.py: captured only on a GPU",
    "revision": "checkpoint/test_sources.py: of a hub's repositories only",
    "dtype": "executor/test_native.py: the native executor has one",
    "quantization": "engine/test_quantization.py: the native executor's, of what is not quantised",
    "kv_cache_dtype": "engine/test_quantization.py: the torch executor's is what it computes with",
    "tensor_parallel_size": "engine/test_ranks.py: the torch executor's",
    "gpu_memory_limit": "service/test_budget.py: of GPUs, where there are some",
    "warm_prefix": "engine/test_warm_prefix.py: needs a prefix cache",
}
HARMLESS = {
    "insecure": "a permission: where nobody else reaches the server, or a key is asked for, it is not needed",
    "non_strict": "a permission: with a model whose tensors match it is not needed",
    "enable_prefix_caching": "off beside --no-kv-cache: it is off anyway",
}
TESTS = Path(__file__).parents[1]


def test_every_flag_is_in_the_table_once() -> None:
    table = [*EVERYWHERE, *IDLE, *REFUSED_AS_THE_MODEL_LOADS, *HARMLESS]
    assert len(table) == len(set(table))
    assert set(table) == set(Settings.model_fields)


@pytest.mark.parametrize("name", REFUSED_AS_THE_MODEL_LOADS)
def test_what_is_refused_as_the_model_loads_has_its_test(name: str) -> None:
    file, _, _ = REFUSED_AS_THE_MODEL_LOADS[name].partition(":")
    text = (TESTS / file).read_text()
    assert "raises(InvalidConfig" in text
    assert name in text


@pytest.mark.parametrize("name", IDLE)
def test_a_flag_without_effect_is_refused(name: str) -> None:
    beside, words = IDLE[name]
    with pytest.raises(InvalidConfig, match=words):
        resolve_settings({"model": "demo", name: VALUES[name][0], **beside}).to_configs()


def test_a_default_that_is_written_out_is_no_mistake() -> None:
    written = {"max_queue_delay_ms": "50", "scheduling_ageing": "30", "step_target": "0.08"}
    resolve_settings({"model": "demo", "enable_chunked_prefill": False, **written}).to_configs()


def test_no_limit_where_there_is_none_is_no_mistake() -> None:
    resolve_settings({"model": "demo", "enable_chunked_prefill": False, "step_target": "0"}).to_configs()
    check_encoder_effects(EngineConfig(step_target_s=0.0), Path("bge"))


def test_steps_are_captured_on_a_gpu_only() -> None:
    config = EngineConfig(enforce_eager=True)
    check_device_effects(config, on_gpu=True)
    with pytest.raises(
        InvalidConfig, match=r"enforce_eager is True, and the model is computed on the CPU, .*: leave it"
    ):
        check_device_effects(config, on_gpu=False)


OF_LANGUAGE_MODELS: dict[str, Any] = {
    "enforce_eager": True,
    "tensor_parallel_size": 2,
    "step_target_s": 0.2,
    "block_size": 32,
    "kv_cache_memory": 0.3,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
    "enable_kv_cache": False,
    "force_tokens": False,
    "scheduling_policy": "fair",
    "scheduling_ageing_s": 60.0,
    "batching": "static",
    "max_queue_delay_ms": 20.0,
    "warm_prefix": "prefixes.jsonl",
    "warm_chat_template": "chat.jinja",
    "seed": 7,
    "max_preemptions": 3,
}
OF_ENCODERS_TOO: dict[str, Any] = {
    "dtype": "bfloat16",
    "quantization": "int8",
    "kv_cache_dtype": "bfloat16",
    "executor": "torch",
    "device": "cpu",
    "max_model_len": 12,
    "memory_limit": 1 << 34,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 64,
    "threads": 3,
    "strict": False,
}


def test_every_option_of_the_engine_is_known_for_encoders() -> None:
    assert {field.name for field in fields(EngineConfig)} == set(OF_LANGUAGE_MODELS) | set(OF_ENCODERS_TOO)


@pytest.mark.parametrize("name", OF_LANGUAGE_MODELS)
def test_an_encoder_refuses_what_it_has_no_use_for(name: str) -> None:
    config = replace(EngineConfig(), **{name: OF_LANGUAGE_MODELS[name]})
    with pytest.raises(
        InvalidConfig, match=f"{name} is {OF_LANGUAGE_MODELS[name]}, and bge is an encoder, .*: leave it"
    ):
        check_encoder_effects(config, Path("bge"))


def test_an_encoder_takes_the_rest(tmp_path: Path) -> None:
    check_encoder_effects(EngineConfig(**OF_ENCODERS_TOO), tmp_path)
    save_encoder(tmp_path)
    with pytest.raises(InvalidConfig, match=r"seed is 7, and .* is an encoder"):
        load_encoder(tmp_path, EngineConfig(seed=7), lambda told: None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            TextConfig(chat_template="{{ x }}"),
            r"chat_template is '\{\{ x \}\}', and .* is an encoder, .*: leave it out",
        ),
        (TextConfig(generation_config="headway"), "generation_config is 'headway', and .* is an encoder"),
    ],
)
def test_an_encoder_has_no_conversations_and_samples_nothing(tmp_path: Path, text: TextConfig, words: str) -> None:
    save_encoder(tmp_path)
    with pytest.raises(InvalidConfig, match=words):
        open_model(ModelConfig(source=str(tmp_path), text=text), tmp_path)
