"""Texts into ids; right values from transformers' tokenizer over the same file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from headway.predictors.texts import TextEncoder, TextOptions, texts_of_array, texts_of_value
from headway.predictors.torch import TorchPredictor
from headway_wire import Infer, PredictorError
from small_transformers import write_tokenizer

TEXTS = ["the cat sat on a mat", "cats", "anna smith in paris with the cat ."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {"padding": True}),
        ({"max_length": 5}, {"padding": True, "truncation": True, "max_length": 5}),
        (
            {"max_length": 12, "pads_to_max_length": True},
            {"padding": "max_length", "truncation": True, "max_length": 12},
        ),
    ],
)
def test_ids_masks_and_types_are_those_of_transformers(
    folder: Path, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    wanted = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, return_tensors="np", **settings)
    found = TextEncoder(folder, TextOptions(**options)).encode(TEXTS)
    assert set(found) == {"input_ids", "attention_mask", "token_type_ids"}
    for name in ("input_ids", "attention_mask"):
        assert found[name].dtype == np.int64
        np.testing.assert_array_equal(found[name], wanted[name])


def test_pairs_of_texts_have_two_types(folder: Path) -> None:
    found = TextEncoder(folder, TextOptions()).encode([("the cat", "a mat")])
    wanted = transformers.AutoTokenizer.from_pretrained(folder)("the cat", "a mat")
    assert found["input_ids"].tolist() == [wanted["input_ids"]]
    assert found["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 0}, "text.max_length is 0"),
        ({"max_length": None, "pads_to_max_length": True}, "needs text.max_length"),
        ({"tokenizer": "absent.json"}, "there is no file"),
        ({"tokenizer": "broken.json"}, r"is no tokenizer.json"),
    ],
)
def test_what_can_not_be_used_is_told(folder: Path, options: dict[str, Any], words: str) -> None:
    (folder / "broken.json").write_text("{}")
    with pytest.raises(PredictorError, match=words):
        TextEncoder(folder, TextOptions(**options))


def test_values_are_texts_or_an_error() -> None:
    assert texts_of_value("one") == ["one"]
    assert texts_of_value(["one", "two"]) == ["one", "two"]
    for value, words in (([], "an empty list"), (7, "a int"), (["a", None], "item 1 of the input is a NoneType")):
        with pytest.raises(PredictorError, match=words):
            texts_of_value(value)
    assert texts_of_array(np.array(["é".encode()], dtype=object), "text") == ["é"]
    with pytest.raises(PredictorError, match="element 1 of text is no UTF-8"):
        texts_of_array(np.array([b"a", b"\xff"], dtype=object), "text")


def test_texts_of_a_batch_are_padded_together_for_a_module_of_torch(folder: Path) -> None:
    """Right values: each text's number of tokens, special ones counted, by hand."""
    (folder / "model.py").write_text(
        "from torch import nn\n"
        "class Count(nn.Module):\n"
        "    def forward(self, input_ids, attention_mask):\n"
        "        return attention_mask.sum(-1, keepdim=True).float()\n"
    )
    predictor = TorchPredictor()
    options = {"weights": None, "threads": 1, "text": {"max_length": 16}}
    signature = predictor.load(str(folder), options, lambda loading: None)
    assert [spec.name for spec in signature.inputs] == ["input_ids", "attention_mask"]
    assert signature.can_batch
    requests = [Infer(request_id="1", value=TEXTS[0]), Infer(request_id="2", value=TEXTS[1:])]
    assert [outputs.value for outputs in predictor.infer(requests)] == [[[8.0]], [[4.0], [10.0]]]
