"""docs/frameworks.md: every entry of the catalog that it shows is one, and answers what the page says."""

import asyncio
import re
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.infer import Inferred, InferRequest
from headway.core.request import GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams
from headway.predictors.options import read_options
from headway.predictors.tensorflow import TensorflowOptions
from headway.predictors.torch import TorchOptions
from headway.predictors.torchvision import TorchvisionOptions
from headway.predictors.transformers import TransformersPredictor
from headway.predictors.transformers_model import TransformersOptions
from headway.service.catalog_form import read_entries
from headway.service.catalog_options import to_config
from headway.service.local import LocalService
from headway_wire import Infer, Outputs
from headway_wire.tensors import from_array, to_array
from small_transformers import write_classifier

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frameworks.md").read_text()
OPTIONS: dict[str, Any] = {
    "torch": TorchOptions,
    "torchvision": TorchvisionOptions,
    "tensorflow": TensorflowOptions,
    "transformers": TransformersOptions,
}
WAIT_S = 120


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


CONFIGS: dict[str, ModelConfig] = {
    entry.id: to_config(entry) for block in blocks("json") for entry in read_entries(block.encode(), place="the page")
}


def test_the_page_has_an_entry_for_each_framework_whose_options_are_there() -> None:
    assert {config.framework for config in CONFIGS.values()} == {*OPTIONS, "python"}
    for config in CONFIGS.values():
        if config.framework in OPTIONS:
            read_options({"type": config.type, **config.options}, OPTIONS[config.framework])


@pytest.mark.parametrize(("framework", "kind"), OPTIONS.items())
def test_every_option_of_a_framework_is_on_the_page(framework: str, kind: Any) -> None:
    named = set(re.findall(r"\w+", PAGE))
    assert set(kind.__struct_encode_fields__) - named == set()


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    """The page's models, those that can run beside Headway, in a folder where its sources are."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / "model.py").write_text(blocks("python")[0])
    write_classifier(tmp_path / "reviews", "BertForSequenceClassification", ["bad", "good"])
    write_classifier(tmp_path / "names", "BertForTokenClassification", ["O", "B-PER"])
    write_classifier(tmp_path / "topics", "BertForSequenceClassification", ["contradiction", "entailment"])
    write_writer(tmp_path / "writer")
    monkeypatch.chdir(tmp_path)
    found = [config for config in CONFIGS.values() if config.framework not in ("tensorflow", "torchvision")]
    # One at a time: eight of them at once are not what this is about.
    pool, checkpoint = PoolConfig(max_models=1, load_timeout_s=WAIT_S), CheckpointConfig(cache_dir=tmp_path / "cache")
    made = LocalService(found, pool, ServerConfig(), checkpoint)
    yield made
    async with asyncio.timeout(WAIT_S):
        await made.aclose()


def write_writer(folder: Path) -> None:
    """A language model of an architecture that Headway's engine has not."""
    torch.manual_seed(1)
    config = GPTNeoConfig(
        vocab_size=256,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    GPTNeoForCausalLM(config).save_pretrained(folder)
    vocabulary = {token: place for place, token in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def ask_here(model: str, value: Any) -> Outputs:
    """An answer of a model of transformers in this process."""
    config, predictor = CONFIGS[model], TransformersPredictor()
    predictor.load(config.source, {"type": config.type, "threads": 1, **config.options}, lambda loading: None)
    [found] = predictor.infer([Infer(request_id="1", value=value)])
    return found


async def test_the_models_of_the_page_answer_as_it_says(service: LocalService) -> None:
    async def ask(model: str, **asked: Any) -> Inferred:
        async with asyncio.timeout(WAIT_S):
            return await service.infer(InferRequest(request_id="1", model=model, **asked))

    digit = BytesIO()
    Image.fromarray((load_digits().images[1500] * 255 / 16).astype(np.uint8)).save(digit, "PNG")
    read = await ask("digits", value=digit.getvalue())
    assert read.labels is not None
    assert read.labels[int(np.argmax(read.value))] == str(load_digits().target[1500])

    values, counts = np.array([[0.5, 2.0, 1.0]], dtype=np.float32), np.array([[2, 3, 0]])
    [total] = (await ask("sums", tensors=[from_array("values", values), from_array("counts", counts)])).tensors
    assert (total.name, to_array(total).tolist()) == ("total", [[7.0]])

    assert np.sum((await ask("reviews", value=["the cat", "a mat"])).value, axis=-1) == pytest.approx([1, 1])
    # As their processes would, without the time that two more take to start.
    names, topics = ask_here("names", "anna smith"), ask_here("topics", "the cat")
    assert all(entity["entity_group"] == "PER" for entity in names.value[0])
    assert topics.labels == ["sport", "politics"]
    assert np.sum(topics.value) == pytest.approx(1)
    profanity = await ask("profanity", value="hello there")
    assert profanity.labels == ["clean", "profane"]


async def test_the_language_model_of_the_page_writes(service: LocalService) -> None:
    sampling = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    request = GenerateRequest("1", "writer", TextPrompt("abc"), sampling)
    async with asyncio.timeout(WAIT_S):
        stream = await service.generate(request)
        deltas = [delta async for delta in stream]
    assert deltas[-1].finish_reason == "length"
    assert sum(len(delta.token_ids) for delta in deltas) == 5
