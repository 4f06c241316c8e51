"""EncoderPredictor over a folder: its facts, its limits, the executors that it can have, and its memory plan."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway_wire as wire
from headway.checkpoint.checkpoint import open_checkpoint
from headway.config import TextConfig
from headway.core.request import TextPrompt
from headway.errors import InvalidConfig, OutOfMemory, UnsupportedModel
from headway.planner import encoder as planner
from headway.predictors.encoder import EncoderPredictor, make_ids
from headway.predictors.headway import HeadwayPredictor
from headway.service.loader import make_text
from headway.text.tokenizer import make_tokenizer
from headway.worker.embed_prompt import EncoderInputs, prepare_texts_now
from parity.encoders import reference_vector, save_encoder

IDS = [2, 9, 17, 30, 44, 3]


def load(folder: Path, **options: Any) -> tuple[EncoderPredictor, dict[str, Any], list[str]]:
    predictor, phases = EncoderPredictor(), []
    ready = predictor.load(str(folder), {"threads": 1, **options}, lambda loading: phases.append(loading.phase))
    return predictor, ready.info, phases


def vector_of(predictor: EncoderPredictor, ids: list[int] = IDS) -> np.ndarray:
    assert list(predictor.handle(wire.Submit(request_id="a", prompt_token_ids=ids))) == []
    accepted, step, embedding = predictor.step()
    assert accepted == wire.Accepted(request_id="a")
    assert isinstance(step, wire.Step)
    assert step.num_tokens == len(ids)
    assert isinstance(embedding, wire.Embedding)
    assert not predictor.has_work()
    return np.frombuffer(embedding.data, "<f4")


def test_it_tells_its_facts_and_its_phases(tmp_path: Path) -> None:
    save_encoder(tmp_path, max_seq_length=40)
    _, info, phases = load(tmp_path, max_num_batched_tokens=16)
    assert (info["task"], info["max_model_len"], info["embedding_size"], info["kv_cache_bytes"]) == ("embed", 40, 64, 0)
    assert info["executor"] == "native"
    assert "a text: at most 40 tokens" in info["plan"]
    assert "a step: 40 tokens of whole texts" in " ".join(info["plan"])  # it holds the longest text
    assert (phases[0], phases[-1]) == ("build", "warm")


@pytest.mark.parametrize(
    ("options", "executor", "close"),
    [
        ({}, "native", 2e-3),
        ({"executor": "torch"}, "torch", 2e-6),
        ({"dtype": "float32"}, "torch", 2e-6),
        ({"quantization": "int8"}, "native", 2e-2),
        ({"kv_cache_dtype": "int8"}, "native", 2e-2),
    ],
)
def test_each_executor_and_form_gives_the_vector(
    tmp_path: Path, options: dict[str, Any], executor: str, close: float
) -> None:
    model = save_encoder(tmp_path)
    predictor, info, _ = load(tmp_path, **options)
    assert info["executor"] == executor
    np.testing.assert_allclose(vector_of(predictor), reference_vector(model, IDS), atol=close)
    predictor.close()


def test_float16_files_lose_nothing(tmp_path: Path) -> None:
    model = save_encoder(tmp_path).half()
    model.save_pretrained(tmp_path)
    np.testing.assert_allclose(vector_of(load(tmp_path)[0]), reference_vector(model.float(), IDS), atol=2e-3)


def test_a_context_beyond_the_positions_is_refused_and_one_beyond_the_training_is_not(tmp_path: Path) -> None:
    save_encoder(tmp_path, max_seq_length=16)
    with pytest.raises(InvalidConfig, match="max_model_len is 65; the model has 64 positions"):
        load(tmp_path, max_model_len=65)
    assert load(tmp_path, max_model_len=64)[1]["max_model_len"] == 64
    with pytest.raises(InvalidConfig, match="threads is 0"):
        load(tmp_path, threads=0)


def test_the_plan_holds_what_steps_take(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    predictor, info, _ = load(tmp_path, max_num_batched_tokens=512, max_num_seqs=16)
    executor = predictor._loaded._executor
    assert executor.workspace_bytes <= info["workspace_bytes"]  # type: ignore[attr-defined]
    assert executor.weights_bytes <= info["weights_bytes"]  # type: ignore[attr-defined]


def test_what_does_not_fit_is_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_encoder(tmp_path)
    monkeypatch.setattr("headway.executor.device.available_memory_bytes", lambda: 1000)
    with pytest.raises(OutOfMemory, match=r"\(1000 bytes\) are available: lower --max-num-batched-tokens"):
        load(tmp_path)


def test_the_limit_is_the_trainings_the_models_or_the_askers() -> None:
    from headway.config import EngineConfig

    for asked, trained_for, limit in ((None, None, 512), (None, 256, 256), (None, 900, 512), (300, 256, 300)):
        config = EngineConfig(max_model_len=asked)
        assert planner.encoder_limit(config, max_position=512, trained_for=trained_for) == limit


def test_tensors_are_no_texts(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    (answer,) = load(tmp_path)[0].handle(wire.Infer(request_id="a", tensors=[]))
    assert isinstance(answer, wire.Outputs)
    assert answer.error is not None
    assert answer.error.kind == "UnsupportedFeature"


def test_a_language_model_is_refused(tmp_path: Path) -> None:
    from parity.architectures import CASES, save_model

    save_model(CASES["gpt2"], tmp_path)
    with pytest.raises(UnsupportedModel, match="is a language model, not an encoder"):
        load(tmp_path)


def test_the_engine_of_language_models_refuses_an_encoder(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    with pytest.raises(UnsupportedModel, match="is an encoder"):
        HeadwayPredictor().load(str(tmp_path), {"threads": 1}, lambda _: None)


TEXTS = ["the quick brown fox", "x", " two  words\n", "[CLS] [SEP] [PAD]", "\u00e9\u4e2d \U0001f600"]


def reading(folder: Path, **options: Any) -> EncoderPredictor:
    """One that has its tokenizer."""
    predictor, info, _ = load(folder, **options)
    assert info["takes_texts"]
    (refused,) = predictor.submit_text(wire.SubmitText(request_id="early", text="a"))
    assert isinstance(refused, wire.Refused)
    assert refused.error.kind == "ModelNotReady"
    assert predictor._tokenizer is not None
    predictor._tokenizer.wait()
    return predictor


def test_ids_that_it_makes_are_those_that_the_parent_would_send(tmp_path: Path) -> None:
    save_encoder(tmp_path, max_seq_length=40)
    text = make_text(TextConfig(), open_checkpoint(tmp_path), tmp_path)
    inputs = EncoderInputs([TextPrompt(each) for each in TEXTS], TEXTS, ["text"] * len(TEXTS))
    sent = prepare_texts_now(text, inputs, max_model_len=40, truncate_to=None)
    assert [make_ids(text.tokenizer, each) for each in TEXTS] == [list(each.token_ids) for each in sent]


def test_a_text_gets_the_vector_of_its_ids(tmp_path: Path) -> None:
    save_encoder(tmp_path, max_seq_length=40)
    predictor = reading(tmp_path)
    tokenizer = make_tokenizer(open_checkpoint(tmp_path).text)
    for text in TEXTS:
        ids = make_ids(tokenizer, text)
        assert list(predictor.submit_text(wire.SubmitText(request_id="n1", text=text))) == []
        _, embedding = predictor.step()
        wanted = vector_of(predictor, ids).tobytes()
        assert embedding == wire.Embedding(request_id="n1", data=wanted, num_tokens=len(ids))
    assert not predictor.has_work()


def test_a_text_that_gets_no_vector_is_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path, max_seq_length=40)
    predictor = reading(tmp_path)
    (refused,) = predictor.submit_text(wire.SubmitText(request_id="n1", text="word " * 400))
    assert isinstance(refused, wire.Refused)
    assert refused.error.kind == "ContextLengthExceeded"
    predictor.submit_text(wire.SubmitText(request_id="n2", text="a"))
    predictor.handle(wire.Abort(request_id="n2"))
    step, refused = predictor.step()
    assert step == wire.Step()
    assert isinstance(refused, wire.Refused)
    assert refused.request_id == "n2"
    assert not predictor.has_work()


@pytest.mark.parametrize(
    ("change", "words"), [(lambda text: "{}", "can not be read"), (lambda text: text + "\n", "has changed since")]
)
def test_a_tokenizer_that_is_another_by_now_harms_no_ids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[str], str], words: str
) -> None:
    save_encoder(tmp_path)
    predictor, _, _ = load(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(change(file.read_text()))
    for _ in range(2):
        (refused,) = predictor.submit_text(wire.SubmitText(request_id="n1", text="a"))
        assert isinstance(refused, wire.Refused)
        assert predictor._tokenizer is not None
        predictor._tokenizer.wait()
    assert words in caplog.text
    assert vector_of(predictor).shape == (64,)
