"""Models that classify; right values from transformers' own pipelines over the same random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from headway.predictors.transformers import TransformersPredictor
from headway_wire import Infer, Outputs, PredictorError, Signature
from headway_wire.tensors import from_array, to_array
from small_transformers import write_classifier

TEXTS = [
    "the cat sat on a mat",
    "anna smith in paris",
    "cats",
    "the cat sat on a mat with anna smith in paris . the cats",
]


Loaded = Callable[..., tuple[TransformersPredictor, Signature]]


@pytest.fixture
def load(tmp_path: Path) -> Loaded:
    def run(kind: str, labels: list[str], config: dict[str, Any] | None = None, **options: Any) -> Any:
        write_classifier(tmp_path, kind, labels, **(config or {}))
        predictor = TransformersPredictor()
        return predictor, predictor.load(str(tmp_path), {"threads": 1, **options}, lambda loading: None)

    return run


def pipeline(task: str, folder: Path, **settings: Any) -> Any:
    return transformers.pipeline(task, model=str(folder), device="cpu", **settings)


def ask(predictor: TransformersPredictor, value: Any, **parameters: Any) -> Outputs:
    [found] = predictor.infer([Infer(request_id="1", value=value, parameters=parameters)])
    return found


@pytest.mark.parametrize(
    ("labels", "config"),
    [
        (["bad", "fair", "good"], {}),
        (["a", "b", "c"], {"problem_type": "multi_label_classification"}),
        (["score"], {"problem_type": "regression"}),
        (["yes"], {}),
    ],
)
def test_texts_are_scored_as_by_the_pipeline(
    load: Loaded, tmp_path: Path, labels: list[str], config: dict[str, Any]
) -> None:
    predictor, signature = load("BertForSequenceClassification", labels, config)
    assert signature.labels == labels
    assert signature.can_batch
    found = ask(predictor, TEXTS)
    assert found.labels == labels
    wanted = pipeline("text-classification", tmp_path)(TEXTS, top_k=None)
    for row, scores in zip(found.value, wanted, strict=True):
        assert row == pytest.approx(
            [{each["label"]: each["score"] for each in scores}[name] for name in labels], abs=1e-5
        )


def test_requests_are_computed_together_and_one_that_is_none_fails_alone(load: Loaded) -> None:
    predictor, _ = load("BertForSequenceClassification", ["no", "yes"], batch_size=2)
    values = [TEXTS[0], TEXTS[1:3], 7, TEXTS[3], []]
    found = predictor.infer([Infer(request_id=str(place), value=value) for place, value in enumerate(values)])
    assert [outputs.request_id for outputs in found] == ["0", "1", "2", "3", "4"]
    alone = [ask(predictor, text).value[0] for text in TEXTS]
    rows = [*found[0].value, *found[1].value, *found[3].value]
    for row, wanted in zip(rows, alone, strict=True):
        assert row == pytest.approx(wanted, abs=1e-5)
    assert found[2].error is not None
    assert "is a int; it must be a text or a list of texts" in found[2].error.message
    assert found[4].error is not None
    assert "an empty list" in found[4].error.message


def test_pairs_of_texts_are_scored_as_by_the_pipeline(load: Loaded, tmp_path: Path) -> None:
    predictor, _ = load("BertForSequenceClassification", ["no", "yes"])
    pairs = [{"text": TEXTS[0], "text_pair": TEXTS[1]}, {"text": TEXTS[2], "text_pair": "cats"}]
    wanted = pipeline("text-classification", tmp_path)(pairs, top_k=None)
    for row, scores in zip(ask(predictor, pairs).value, wanted, strict=True):
        assert row == pytest.approx([{each["label"]: each["score"] for each in scores}[name] for name in ("no", "yes")])
    assert "text_pair" in ask(predictor, [{"text": "a", "other": "b"}]).error.message  # type: ignore[union-attr]


def test_tensors_of_bytes_are_texts(load: Loaded) -> None:
    predictor, signature = load("BertForSequenceClassification", ["no", "yes"])
    assert [(spec.name, spec.datatype, spec.shape) for spec in signature.inputs] == [("text", "BYTES", [-1])]
    assert [(spec.name, spec.datatype, spec.shape) for spec in signature.outputs] == [("scores", "FP32", [-1, 2])]
    tensor = from_array("text", np.array(TEXTS, dtype=object))
    [found] = predictor.infer([Infer(request_id="1", tensors=[tensor])])
    np.testing.assert_allclose(to_array(found.tensors[0]), ask(predictor, TEXTS).value, rtol=1e-6)
    bad = from_array("text", np.array([b"\xff"], dtype=object))
    [refused] = predictor.infer([Infer(request_id="1", tensors=[bad])])
    assert refused.error is not None
    assert "element 0 of text is no UTF-8" in refused.error.message


def test_a_text_that_is_too_long_is_cut(load: Loaded) -> None:
    predictor, signature = load("BertForSequenceClassification", ["no", "yes"])
    assert signature.facts["max_length"] == 24
    long = " ".join(["cat"] * 500)
    # [CLS], 22 words, [SEP]
    assert ask(predictor, long).value[0] == pytest.approx(ask(predictor, " ".join(["cat"] * 22)).value[0], abs=1e-6)


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_entities_are_those_of_the_pipeline(load: Loaded, tmp_path: Path, aggregation: str) -> None:
    labels = ["O", "B-PER", "I-PER", "B-LOC"]
    predictor, signature = load(
        "BertForTokenClassification", labels, type="token-classification", aggregation=aggregation
    )
    assert signature.labels is None
    found = ask(predictor, [*TEXTS, " "]).value
    wanted = pipeline("token-classification", tmp_path, aggregation_strategy=aggregation)(TEXTS)
    assert found[-1] == []
    assert any(wanted)
    assert json.loads(json.dumps(found[:-1])) == [
        [{**entity, "score": pytest.approx(float(entity["score"]), abs=1e-5)} for entity in entities]
        for entities in wanted
    ]
    [tensors] = predictor.infer([Infer(request_id="1", tensors=[from_array("text", np.array(TEXTS, dtype=object))])])
    assert [json.loads(each) for each in to_array(tensors.tensors[0]).tolist()] == found[:-1]


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("labels", [["contradiction", "neutral", "entailment"], ["ENTAILMENT", "NOT_ENTAILMENT"]])
def test_labels_that_are_asked_are_scored_as_by_the_pipeline(
    load: Loaded, tmp_path: Path, labels: list[str], multi_label: bool
) -> None:
    predictor, _ = load("BertForSequenceClassification", labels, type="zero-shot-classification")
    candidates = ["sport", "politics", "paris"]
    asked = {"candidate_labels": candidates, "hypothesis_template": "this is about {}.", "multi_label": multi_label}
    oracle = pipeline("zero-shot-classification", tmp_path)(TEXTS, **asked)
    wanted = [
        [dict(zip(each["labels"], each["scores"], strict=True))[label] for label in candidates] for each in oracle
    ]
    found = ask(predictor, TEXTS, **asked)
    assert found.labels == candidates
    np.testing.assert_allclose(found.value, wanted, atol=1e-5)
    in_value = ask(predictor, {"text": TEXTS, **asked, "candidate_labels": "sport, politics,paris"})
    assert (in_value.value, in_value.labels) == (found.value, candidates)


def test_requests_with_other_labels_are_computed_together(load: Loaded) -> None:
    predictor, _ = load(
        "BertForSequenceClassification",
        ["contradiction", "entailment"],
        type="zero-shot-classification",
        candidate_labels=["up", "down"],
    )
    asked = [
        {"text": TEXTS[0], "candidate_labels": ["sport"]},
        TEXTS[1],
        {"text": "cats", "candidate_labels": list("abc")},
    ]
    found = predictor.infer([Infer(request_id=str(place), value=value) for place, value in enumerate(asked)])
    assert [outputs.labels for outputs in found] == [["sport"], ["up", "down"], ["a", "b", "c"]]
    for outputs, value in zip(found, asked, strict=True):
        np.testing.assert_allclose(outputs.value, ask(predictor, value).value, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"candidate_labels": []}, "0 candidate_labels"),
        ({"candidate_labels": ["a", 7]}, "list of texts"),
        ({"candidate_labels": ["a"], "hypothesis_template": "nothing"}, "where the label goes"),
        ({"candidate_labels": ["a"], "multi_label": "yes"}, "true or false"),
        ({}, "0 candidate_labels"),
    ],
)
def test_what_can_not_be_asked_is_told(load: Loaded, asked: dict[str, Any], words: str) -> None:
    predictor, _ = load("BertForSequenceClassification", ["entailment", "other"], type="zero-shot-classification")
    error = ask(predictor, "the cat", **asked).error
    assert error is not None
    assert error.kind == "InvalidRequest"
    assert words in error.message


def test_a_model_of_another_task_is_refused_and_not_given_a_random_head(load: Loaded, tmp_path: Path) -> None:
    write_classifier(tmp_path, "BertModel", ["no", "yes"])
    with pytest.raises(PredictorError, match=r"no weights for classifier.bias, classifier.weight") as caught:
        TransformersPredictor().load(str(tmp_path), {"threads": 1}, lambda loading: None)
    assert caught.value.error.kind == "TensorMismatch"


def test_weights_that_are_pickles_are_refused(load: Loaded, tmp_path: Path) -> None:
    load("BertForSequenceClassification", ["no", "yes"])
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(PredictorError, match="has no safetensors") as caught:
        TransformersPredictor().load(str(tmp_path), {"threads": 1}, lambda loading: None)
    assert caught.value.error.kind == "UnsupportedModel"


def test_code_of_a_model_is_not_run(load: Loaded, tmp_path: Path) -> None:
    load("BertForSequenceClassification", ["no", "yes"])
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(PredictorError, match="can not be loaded"):
        TransformersPredictor().load(str(tmp_path), {"threads": 1}, lambda loading: None)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("BertForSequenceClassification", {"type": "embedding"}, "headway runs encoders"),
        ("BertForSequenceClassification", {"type": "tensor"}, "must be one of text-classification"),
        ("BertForSequenceClassification", {"type": "zero-shot-classification"}, "labels are no, yes; zero-shot needs"),
        ("BertForSequenceClassification", {"batch_size": 0}, "batch_size is 0"),
        ("BertForSequenceClassification", {"trust_remote_code": True}, "no option 'trust_remote_code'"),
    ],
)
def test_what_can_not_be_loaded_is_told(load: Loaded, kind: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PredictorError, match=words):
        load(kind, ["no", "yes"], **options)


@pytest.mark.parametrize("source", ["/nowhere", "org/model"])
def test_a_folder_that_is_none_is_told(source: str) -> None:
    with pytest.raises(PredictorError, match=f"{source} is no folder with a config.json"):
        TransformersPredictor().load(source, {}, lambda loading: None)
