"""Sampling defaults: those that no request may have are refused at load, not at each request."""

import json
from pathlib import Path
from typing import Any

import pytest

from headway.errors import InvalidConfig
from headway.service.loader import read_generation_defaults
from headway.text.source import TextSource, TokenizerFiles

IMPOSSIBLE = [
    ({"top_k": 50.0}, "top_k is 50.0"),
    ({"temperature": -1}, "temperature is -1"),
    ({"presence_penalty": "x"}, "presence_penalty is x"),
    ({"top_p": 5}, "top_p is 5"),
]


def source(defaults: dict[str, Any]) -> TextSource:
    return TextSource(TokenizerFiles(Path("tokenizer.json")), 1, frozenset(), generation_defaults=defaults)


@pytest.mark.parametrize(("defaults", "words"), IMPOSSIBLE)
def test_a_models_own_impossible_defaults_are_refused_unless_they_are_not_wanted(
    defaults: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidConfig, match=f"{words}.*--generation-config headway"):
        read_generation_defaults(source(defaults), "auto")
    assert read_generation_defaults(source(defaults), "headway") == {}


@pytest.mark.parametrize(("defaults", "words"), IMPOSSIBLE)
def test_a_folders_impossible_defaults_are_refused(tmp_path: Path, defaults: dict[str, Any], words: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(defaults))
    with pytest.raises(InvalidConfig, match=words):
        read_generation_defaults(source({}), str(tmp_path))


def test_what_is_not_about_sampling_is_let_be() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": [1, 2], "do_sample": "yes"}
    assert read_generation_defaults(source(defaults), "auto") == defaults
