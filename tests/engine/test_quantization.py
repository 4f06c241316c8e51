"""--quantization and --kv-cache-dtype, from the option to the answer of the model that is worked by hand."""

from pathlib import Path
from typing import Any

import pytest

from checkpoint.conftest import quantised_model
from headway import LLM, SamplingParams
from headway.config import EngineConfig
from headway.engine.loading import load_engine
from headway.errors import InvalidConfig
from headway.testing.tiny_model import write_tiny_model

FLAGS = {"threads": 1, "kv_cache_memory": 1 << 22, "max_num_seqs": 2, "max_num_batched_tokens": 64}
ALPHABET = "cdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("flags", "dtype", "kv_dtype"),
    [
        ({}, "bf16", "float16"),
        ({"quantization": "int8"}, "q8", "float16"),
        ({"quantization": "int4"}, "q4", "float16"),
        ({"kv_cache_dtype": "bfloat16"}, "bf16", "bfloat16"),
        ({"kv_cache_dtype": "int8"}, "bf16", "int8"),
        ({"quantization": "int8", "kv_cache_dtype": "int8"}, "q8", "int8"),
    ],
)
def test_the_alphabet_goes_on_in_every_form(tmp_path: Path, flags: dict[str, Any], dtype: str, kv_dtype: str) -> None:
    with LLM(str(write_tiny_model(tmp_path / "model")), executor="native", **FLAGS, **flags) as llm:
        assert (llm.info["dtype"], llm.info["kv_cache_dtype"]) == (dtype, kv_dtype)
        assert f"in {dtype} (" in llm.info["plan"][0]
        assert f"bytes a token in {kv_dtype}" in llm.info["plan"][1]
        (output,) = llm.generate("ab", SamplingParams(temperature=0, max_tokens=40))
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == (ALPHABET, "stop")


def test_a_quantised_file_and_the_torch_executor_refuse_quantization(tmp_path: Path) -> None:
    quantised = quantised_model().write(tmp_path / "model.gguf")
    config = EngineConfig(executor="native", quantization="int8", **FLAGS)
    with pytest.raises(InvalidConfig, match=r"quantization is int8, and the model's weights are .*, quantised already"):
        load_engine(quantised, config, lambda message: None)
    tiny = str(write_tiny_model(tmp_path / "tiny"))
    with pytest.raises(InvalidConfig, match="quantization is int4, which the torch executor does not have"):
        LLM(tiny, executor="torch", quantization="int4", **FLAGS)
    with pytest.raises(InvalidConfig, match="kv_cache_dtype is int8; the torch executor"):
        LLM(tiny, executor="torch", kv_cache_dtype="int8", **FLAGS)
