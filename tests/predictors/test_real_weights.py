"""Models that others trained, and what their own packages say of the same input."""

import json
from pathlib import Path

import magika
import numpy as np
import onnx
import profanity_check
import pytest
from magika import Magika

import headway_wire as wire
from headway.predictors.onnx import OnnxPredictor
from headway.predictors.python import PythonPredictor
from headway_wire.tensors import from_array, to_array
from real_weights import HATESONAR, SILERO_VAD, fetch

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_hatesonar_takes_texts_as_they_are() -> None:
    """Right values: ONNX Runtime alone on the same file, in the locale C.UTF-8."""
    import onnxruntime

    path = fetch(HATESONAR)
    predictor = OnnxPredictor()
    options = {"type": "text-classification", "labels": ["hate_speech", "offensive_language", "neither"], "threads": 1}
    signature = predictor.load(str(path), options, lambda loading: None)
    assert [(spec.name, spec.datatype, spec.shape) for spec in signature.inputs] == [("text", "BYTES", [-1])]
    assert signature.can_batch
    texts = ["At this rate you will never learn it, you stupid bitch", "The weather is fine today"]
    answers = predictor.infer([wire.Infer(request_id=text, value=text) for text in texts])
    model = onnx.load(str(path))
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            node.attribute.append(onnx.helper.make_attribute("locale", "C.UTF-8"))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    _, expected = session.run(None, {"text": np.array(texts, dtype=object)})
    for answer, row in zip(answers, expected, strict=True):
        assert answer.labels == options["labels"]
        np.testing.assert_allclose(answer.value, [[row[0], row[1], row[2]]], rtol=1e-6)
    assert np.argmax(answers[0].value) == 1, "offensive"
    assert np.argmax(answers[1].value) == 2, "neither"


def test_silero_vad_carries_its_state_from_chunk_to_chunk() -> None:
    """A scalar input, a state that is no batch's, and an answer that is used as the next input."""
    predictor = OnnxPredictor()
    signature = predictor.load(str(fetch(SILERO_VAD)), {"type": "tensor", "threads": 1}, lambda loading: None)
    assert {spec.name: spec.shape for spec in signature.inputs} == {"input": [-1, -1], "state": [2, -1, 128], "sr": []}
    assert not signature.can_batch
    state = from_array("state", np.zeros((2, 1, 128), np.float32))
    rate = from_array("sr", np.array(16000, np.int64))
    for _ in range(3):
        silence = from_array("input", np.zeros((1, 576), np.float32))
        (answer,) = predictor.infer([wire.Infer(request_id="1", tensors=[silence, state, rate])])
        tensors = {tensor.name: tensor for tensor in answer.tensors}
        state = wire.Tensor(**{**_fields(tensors["stateN"]), "name": "state"})
        assert to_array(tensors["output"]).item() < 0.1, "silence is no speech"
    assert np.abs(to_array(state)).max() > 0


def _fields(tensor: wire.Tensor) -> dict[str, object]:
    return {name: getattr(tensor, name) for name in tensor.__struct_fields__}


SOURCES = {
    "python": Path(__file__).read_bytes(),
    "json": json.dumps({"models": [{"id": f"m{it}", "sizes": [it, it + 1]} for it in range(9)]}, indent=2).encode(),
}


@pytest.mark.parametrize("label", SOURCES)
def test_magika_names_the_type_of_a_file_as_its_own_package_does(label: str) -> None:
    """Its input: 1,024 bytes of the beginning and of the end, without white space around, padded with 256."""
    content = SOURCES[label]
    folder = Path(magika.__file__).parent / "models" / "standard_v3_3"
    labels = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    predictor = OnnxPredictor()
    signature = predictor.load(str(folder), {"type": "tensor", "threads": 1, "labels": labels}, lambda loading: None)
    assert signature.can_batch
    stripped = content.strip()
    features = np.full((1, 2048), 256, np.int32)
    features[0, : len(stripped[:1024])] = list(stripped[:1024])
    features[0, 2048 - len(stripped[-1024:]) :] = list(stripped[-1024:])
    answers = predictor.infer([wire.Infer(request_id=it, value=features.tolist()) for it in "ab"])
    theirs = Magika().identify_bytes(content)
    assert theirs.dl.label == label
    for answer in answers:
        assert answer.labels is not None
        (scores,) = answer.value
        assert answer.labels[int(np.argmax(scores))] == label
        assert max(scores) == pytest.approx(theirs.score, abs=1e-5)


def test_a_scikit_learn_model_is_ten_lines_of_python() -> None:
    predictor = PythonPredictor()
    signature = predictor.load(str(EXAMPLES / "python_model"), {"type": "text-classification"}, lambda loading: None)
    assert (signature.labels, signature.can_batch) == (["clean", "profane"], True)
    texts = ["Hello there, how are you", "go to hell, you scum"]
    answers = predictor.infer([wire.Infer(request_id=text, value=text) for text in texts])
    for answer, expected in zip(answers, profanity_check.predict_prob(texts), strict=True):
        np.testing.assert_allclose(answer.value, [[1 - expected, expected]], rtol=1e-12)
    assert answers[0].value[0][1] < 0.2 < 0.8 < answers[1].value[0][1]
    both, one = predictor.infer([wire.Infer(request_id="2", value=texts), wire.Infer(request_id="1", value=texts[1])])
    assert both.value == [*answers[0].value, *answers[1].value]
    assert one.value == answers[1].value
