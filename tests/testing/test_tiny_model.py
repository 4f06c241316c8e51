"""The tiny model's formula is what transformers computes, and what Headway computes."""

from pathlib import Path

import pytest
import torch
import transformers

from headway.checkpoint.checkpoint import open_checkpoint
from headway.testing.script import END_TOKEN_ID
from headway.testing.tiny_model import greedy_by_hand, logits_by_hand, write_tiny_model
from headway.text.tokenizer import make_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def test_the_worked_example_of_the_docstring() -> None:
    logits = logits_by_hand(list(b"ab"))
    assert logits[ord("c")] == pytest.approx(6.531973, abs=1e-6)
    assert logits[ord("a")] == logits[ord("b")] == pytest.approx(1.632993, abs=1e-6)
    assert sum(logit == 0.0 for logit in logits) == 258
    assert greedy_by_hand(list(b"ab"), 100) == [*b"cdefghijklmnopqrstuvwxyz", END_TOKEN_ID]


def test_transformers_computes_the_same(folder: Path) -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    context = [*list(b"abba, cab!"), 258]
    with torch.inference_mode():
        logits = model(torch.tensor([context])).logits[0]
    for end in range(1, len(context) + 1):
        assert logits[end - 1].tolist() == pytest.approx(logits_by_hand(context[:end]), abs=1e-4)


def test_headway_opens_it_with_the_ids_that_the_docstring_says(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    tokenizer = make_tokenizer(checkpoint.text)
    assert tokenizer.encode("aé<|end|>") == list("aé<|end|>".encode())
    assert tokenizer.decode([97, 256, 0xC3, 0xA9]) == "a<|end|>é"
    assert tokenizer.end_token_ids == {END_TOKEN_ID}
    assert checkpoint.shape.vocab_size == tokenizer.vocab_size == 261
