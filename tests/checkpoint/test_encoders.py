"""An encoder's folder: what transformers and sentence-transformers wrote there, and what of it is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.checkpoint import is_encoder, open_checkpoint
from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface import read_shape, with_pooling
from headway.checkpoint.shape import EncoderShape
from headway.errors import CorruptCheckpoint, UnsupportedModel

CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
}
ROBERTA = {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "pad_token_id": 1}
RERANKER = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
NORMALIZE = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}


def write(folder: Path, name: str, value: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def encoder_of(folder: Path, **config: Any) -> EncoderShape:
    encoder = with_pooling(folder, read_shape(Fields({**CONFIG, **config}, "config.json"))).encoder
    assert encoder is not None
    return encoder


def test_berts_numbers_are_read() -> None:
    shape = read_shape(Fields(CONFIG, "config.json"))
    assert (shape.architecture, shape.max_position, shape.norm_eps, shape.activation) == ("bert", 128, 1e-12, "gelu")
    assert shape.encoder == EncoderShape(num_token_types=2)


def test_robertas_positions_begin_behind_the_padding_token() -> None:
    shape = read_shape(Fields({**CONFIG, **ROBERTA, "max_position_embeddings": 130}, "config.json"))
    assert shape.architecture == "roberta"
    assert shape.max_position == 128
    assert shape.encoder == EncoderShape(num_token_types=1, position_offset=2)


@pytest.mark.parametrize(
    ("more", "has_sigmoid"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, True),
    ],
)
def test_a_head_of_one_label_scores_as_sentence_transformers_says(tmp_path: Path, more: Any, has_sigmoid: bool) -> None:
    encoder = encoder_of(tmp_path, **RERANKER, **more)
    assert (encoder.num_labels, encoder.has_sigmoid) == (1, has_sigmoid)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_decoder": True}, "has is_decoder"),
        ({"position_embedding_type": "relative_key"}, "has 'relative_key' positions"),
        (
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}},
            r"of 2 labels \('a', 'b'\); /v1/score",
        ),
        ({"architectures": ["BertForSequenceClassification"]}, "of 2 labels"),
        (RERANKER | {"sentence_transformers": {"activation_fn": "evil.Code"}}, "scores through 'evil.Code'"),
        ({"architectures": ["NomicBertModel"]}, "'NomicBertModel'; there are"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "never runs"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        read_shape(Fields({**CONFIG, **changes}, "config.json"))


def test_a_folder_without_modules_has_the_mean_as_sentence_transformers_reads_it(tmp_path: Path) -> None:
    encoder = encoder_of(tmp_path)
    assert (encoder.pooling, encoder.is_normalised, encoder.max_tokens) == ("mean", False, None)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"word_embedding_dimension": 64, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"embedding_dimension": 64, "pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_the_pooling_is_the_mode_that_is_on(tmp_path: Path, config: dict[str, Any], pooling: str) -> None:
    write(tmp_path, "modules.json", [TRANSFORMER, POOLING])
    write(tmp_path, "1_Pooling/config.json", config)
    encoder = encoder_of(tmp_path)
    assert (encoder.pooling, encoder.is_normalised) == (pooling, False)


def test_what_sentence_transformers_says_of_texts_is_read(tmp_path: Path) -> None:
    write(tmp_path, "modules.json", [TRANSFORMER, POOLING, NORMALIZE])
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 100, "do_lower_case": False})
    texts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "passage"}
    write(tmp_path, "config_sentence_transformers.json", texts)
    encoder = encoder_of(tmp_path, matryoshka_dimensions=[64, 16, 32])
    assert encoder.is_normalised
    assert encoder.max_tokens == 100
    assert (encoder.prompts, encoder.default_prompt) == (texts["prompts"], "passage: ")
    assert (encoder.dimensions, encoder.any_dimension) == ((16, 32, 64), False)
    assert encoder_of(tmp_path, is_matryoshka=True).any_dimension


def test_a_limit_beyond_the_positions_is_that_of_the_positions(tmp_path: Path) -> None:
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 1000})
    assert encoder_of(tmp_path).max_tokens == 128


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ({"modules.json": [TRANSFORMER, {"type": "x.Dense", "path": "3_Dense"}]}, UnsupportedModel, "module 'Dense'"),
        ({"modules.json": {"0": TRANSFORMER}}, CorruptCheckpoint, "not a list"),
        ({"modules.json": [{"path": ""}]}, CorruptCheckpoint, "type is missing"),
        ({"modules.json": [{**POOLING, "path": "../other"}]}, CorruptCheckpoint, "not a folder beside the file"),
        ({"modules.json": [POOLING], "1_Pooling/config.json": {}}, UnsupportedModel, "the poolings none"),
        (
            {"modules.json": [POOLING], "1_Pooling/config.json": {"pooling_mode_weightedmean_tokens": True}},
            UnsupportedModel,
            "pooling_mode_weightedmean_tokens; one of",
        ),
        (
            {"modules.json": [POOLING], "1_Pooling/config.json": {"word_embedding_dimension": 32}},
            CorruptCheckpoint,
            "is 32, and the model's hidden_size 64",
        ),
        (
            {"modules.json": [POOLING], "1_Pooling/config.json": {"pooling_mode": "attention"}},
            UnsupportedModel,
            "the pooling 'attention'",
        ),
        ({"sentence_bert_config.json": {"do_lower_case": True}}, UnsupportedModel, "do_lower_case"),
        (
            {"config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": "query"}},
            CorruptCheckpoint,
            "none of its prompts",
        ),
        ({"config_sentence_transformers.json": {"prompts": {"query": 1}}}, CorruptCheckpoint, "which is no text"),
    ],
)
def test_files_beside_config_json_that_cannot_be_followed_are_refused_by_name(
    tmp_path: Path, files: dict[str, Any], error: type[Exception], words: str
) -> None:
    for name, value in files.items():
        write(tmp_path, name, value)
    with pytest.raises(error, match=words):
        encoder_of(tmp_path)


def test_a_language_model_is_no_encoder(tmp_path: Path) -> None:
    llama = {**CONFIG, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 96}
    write(tmp_path, "config.json", llama)
    assert not is_encoder(tmp_path)
    assert not is_encoder(tmp_path / "model.gguf")
    write(tmp_path, "config.json", CONFIG)
    assert is_encoder(tmp_path)


def test_weights_that_are_not_used_without_a_head_are_left_out(tmp_path: Path) -> None:
    from parity.encoders import save_encoder

    save_encoder(tmp_path, "bert-mlm", type_vocab_size=2)
    checkpoint = open_checkpoint(tmp_path)
    names = checkpoint.weights.shapes().keys()
    assert not [name for name in names if "pooler" in name or name.startswith(("cls", "bert"))]
    assert {"embed.weight", "token_types.weight", "layers.1.mlp_norm.bias"} <= names
