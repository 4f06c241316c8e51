import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.checkpoint.checkpoint import open_checkpoint
from headway.errors import CorruptCheckpoint, UnsupportedModel
from headway.text.source import TokenizerFiles

Save = Callable[..., tuple[Path, torch.nn.Module]]
Put = Callable[[str, Any], None]


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ends"),
    [
        (2, None, None, {2}),
        ([2, 3], None, None, {2, 3}),
        (None, [4], None, {4}),
        (2, [4, 5], "<|im_end|>", {2, 4, 5, 7}),
        (-1, None, {"content": "<|im_end|>"}, {7}),
        (2, None, "not there", {2}),
        (None, None, None, set()),
    ],
)
def test_end_tokens_are_the_union_of_three_files(
    folder: Path, put: Put, config: Any, generation: Any, tokenizer: Any, ends: set[int]
) -> None:
    put("config.json", json.loads((folder / "config.json").read_text()) | {"eos_token_id": config})
    put("generation_config.json", {"eos_token_id": generation, "temperature": 0.5})
    put("tokenizer_config.json", {"eos_token": tokenizer})
    text = open_checkpoint(folder).text
    assert text.end_token_ids == ends
    assert text.generation_defaults["temperature"] == 0.5
    assert text.vocabulary == TokenizerFiles(folder / "tokenizer.json", {"eos_token": tokenizer})


def test_an_end_token_is_also_found_in_added_tokens_decoder(folder: Path, put: Put) -> None:
    put("tokenizer_config.json", {"eos_token": "E", "added_tokens_decoder": {"9": {"content": "E"}}})
    assert open_checkpoint(folder).text.end_token_ids == {2, 9}


TEMPLATES = {
    "chat_template.jinja": ("from jinja", "from jinja"),
    "chat_template.json": ({"chat_template": "from json"}, "from json"),
    "tokenizer_config.json": ({"chat_template": "from config"}, "from config"),
}


def test_the_chat_template_is_looked_for_in_three_places(folder: Path, put: Put) -> None:
    assert open_checkpoint(folder).text.chat_template is None
    for name, (content, template) in reversed(TEMPLATES.items()):
        put(name, content)
        assert open_checkpoint(folder).text.chat_template == template


def test_of_named_chat_templates_the_default_is_taken(folder: Path, put: Put) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    put("tokenizer_config.json", {"chat_template": named})
    assert open_checkpoint(folder).text.chat_template == "D"


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["a.B", None]}}, UnsupportedModel, "auto_map"),
        ("tokenizer_config.json", {"eos_token": 3}, CorruptCheckpoint, "eos_token"),
        ("tokenizer_config.json", {"chat_template": 3}, CorruptCheckpoint, "chat_template"),
        ("tokenizer_config.json", {"chat_template": [3]}, CorruptCheckpoint, "chat_template"),
        ("tokenizer_config.json", {"eos_token": "E", "added_tokens_decoder": {"x": {}}}, CorruptCheckpoint, "'x'"),
        ("tokenizer_config.json", [], CorruptCheckpoint, "not an object"),
        ("generation_config.json", {"eos_token_id": "2"}, CorruptCheckpoint, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": [True]}, CorruptCheckpoint, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": 32}, CorruptCheckpoint, "has 32, of 32 tokens"),
        ("generation_config.json", {"temperature": "hot"}, CorruptCheckpoint, "temperature is 'hot'"),
        ("generation_config.json", {"top_k": 1.5}, CorruptCheckpoint, "top_k is 1.5"),
        ("chat_template.json", {"chat_template": "x" * 1_100_000}, CorruptCheckpoint, "characters"),
        ("chat_template.jinja", "x" * 1_100_000, CorruptCheckpoint, "bytes"),
    ],
)
def test_wrong_text_files_are_named(
    folder: Path, put: Put, name: str, content: Any, error: type[Exception], words: str
) -> None:
    put(name, content)
    with pytest.raises(error, match=words):
        open_checkpoint(folder)


def test_a_folder_without_a_tokenizer_that_is_read_says_what_it_has_instead(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tekken.json")
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json, .*: tekken\.json is not read"):
        open_checkpoint(folder)
