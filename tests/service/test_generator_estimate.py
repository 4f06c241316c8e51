"""What a language model on transformers needs: worked by hand from its config, and against what its worker measures."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from headway.config import CheckpointConfig, EngineConfig, ModelConfig
from headway.errors import OutOfMemory
from headway.predictors.transformers_generation import CausalRunner
from headway.service.events import CPU
from headway.service.generator_estimate import PROCESS_BYTES, estimate_generator, kv_token_bytes
from headway.service.loader import ProcessLoader

MIB = 1 << 20


def write(folder: Path, weights: int = 0, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(weights))
    return folder


def generator(folder: Path, **fields: Any) -> ModelConfig:
    return ModelConfig(source=str(folder), framework="transformers", type="text-generation", **fields)


LLAMA = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}
# 2 x 4 layers x 2 heads x 64 numbers x 2 bytes
LLAMA_TOKEN = 2048


@pytest.mark.parametrize(
    ("config", "options", "token_bytes"),
    [
        ({**LLAMA, "dtype": "bfloat16"}, {}, LLAMA_TOKEN),
        ({**LLAMA, "torch_dtype": "bfloat16"}, {}, LLAMA_TOKEN),
        ({**LLAMA, "dtype": "bfloat16"}, {"dtype": "float32"}, 2 * LLAMA_TOKEN),
        ({**LLAMA, "dtype": "bfloat16", "head_dim": 32}, {}, LLAMA_TOKEN // 2),
        (LLAMA, {}, 2 * LLAMA_TOKEN),  # nobody says: the wider
        ({"text_config": LLAMA, "dtype": "float16"}, {}, LLAMA_TOKEN),
        ({"n_layer": 4, "n_head": 8, "n_embd": 512, "dtype": "float16"}, {}, 4 * LLAMA_TOKEN),
        ({"num_hidden_layers": 4}, {}, None),
    ],
)
def test_a_token_s_keys_and_values(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], token_bytes: int | None
) -> None:
    assert kv_token_bytes(generator(tmp_path, options=options), write(tmp_path, **config)) == token_bytes


@pytest.mark.parametrize(
    "model",
    [
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=50,
                hidden_size=64,
                intermediate_size=32,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
        ),
        GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=64)),
    ],
    ids=["llama", "gpt2"],
)
def test_it_is_what_the_worker_measures(tmp_path: Path, model: Any) -> None:
    model.save_pretrained(tmp_path)
    _, size = CausalRunner(model.to(torch.float32)).warm_up()
    told = generator(tmp_path, options={"dtype": "float32"})
    assert (size.fixed_bytes, size.token_bytes) == (0, kv_token_bytes(told, tmp_path))


def test_weights_and_a_cache_within_its_share(tmp_path: Path) -> None:
    folder = write(tmp_path, 100 * MIB, **LLAMA, dtype="bfloat16", max_position_embeddings=1024)
    engine = EngineConfig(max_num_seqs=64)
    made = estimate_generator(generator(folder, engine=engine), folder, {CPU: 1000 * MIB})
    # All sequences could use 64 x 2 MiB = 128 MiB, within 25% of the budget; the least is a quarter of it.
    assert made.kv_bytes == 32 * MIB
    assert made.need.amounts == {CPU: 105 * MIB + PROCESS_BYTES + 32 * MIB}
    assert made.need.more_bytes == 96 * MIB
    assert not made.need.is_guess
    told = generator(folder, engine=engine, options={"kv_cache_memory": 8 * MIB, "dtype": "float32"})
    made = estimate_generator(told, folder, {CPU: 1000 * MIB})
    assert made.kv_bytes == 8 * MIB
    assert made.need.amounts == {CPU: 210 * MIB + PROCESS_BYTES + 8 * MIB}
    assert made.need.more_bytes == 0


def test_one_that_alone_is_too_large_is_told(tmp_path: Path) -> None:
    folder = write(tmp_path, 100 * MIB, **LLAMA, dtype="bfloat16")
    with pytest.raises(OutOfMemory, match=r"needs 425\.0 MiB .* may have 300\.0 MiB"):
        estimate_generator(generator(folder), folder, {CPU: 300 * MIB})


def test_where_its_config_tells_too_little_its_files_count(tmp_path: Path) -> None:
    folder = write(tmp_path, 10 * MIB)
    made = estimate_generator(generator(folder), folder, {CPU: 1000 * MIB})
    assert made.kv_bytes is None
    assert made.need.is_guess


async def test_the_loader_asks_for_it_and_tells_the_worker_its_share(tmp_path: Path) -> None:
    folder = write(tmp_path, **LLAMA, dtype="bfloat16", max_position_embeddings=64)
    loader = ProcessLoader(CheckpointConfig(cache_dir=tmp_path))
    model = generator(folder, engine=EngineConfig(kv_cache_memory=5 * MIB, memory_limit=90 * MIB))
    assert (await loader.estimate(model, folder, {CPU: 1000 * MIB})).kv_bytes is not None
    options = loader.load_message(model, folder).options
    assert (options["kv_cache_memory"], options["memory_limit"]) == (5 * MIB, 90 * MIB)
