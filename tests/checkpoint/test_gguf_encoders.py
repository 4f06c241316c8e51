"""Encoders as llama.cpp's converter writes them: the folder's weights, Program and vectors; what is refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from tokenizers import Tokenizer as Library

from headway import LLM, AsyncLLM
from headway.checkpoint.checkpoint import is_encoder, open_checkpoint
from headway.checkpoint.shape import EncoderShape
from headway.errors import CorruptCheckpoint, UnsupportedModel
from headway.model import make_program
from oracles import convert_by_llama_cpp
from parity.encoders import make_tokenizer, reference_vector, save_encoder

MODELS: dict[str, dict[str, Any]] = {
    "bert": {"pooling": "cls_token"},
    "roberta": {},
    "xlm-roberta": {"pooling": "lasttoken"},
    "distilbert": {},
    "roberta-reranker": {"pooling": None},
    "xlm-roberta-reranker": {"pooling": None},
    "distilbert-reranker": {"pooling": None},
}
TEXTS = ["The cat sat on the mat.", "Milk, and a dog!", "unable", "reset password login help " * 6]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each model, with the folder's GGUF file model.gguf inside."""
    root = tmp_path_factory.mktemp("encoders")
    torch.set_num_threads(1)
    for name, how in {**MODELS, "bert-reranker": {"pooling": None}}.items():
        save_encoder(root / name, name, **how)
    save_encoder(root / "labels", "xlm-roberta-reranker", pooling=None, num_labels=3)
    names = [*MODELS, "bert-reranker", "labels"]
    convert_by_llama_cpp([(root / name, root / name / "model.gguf", name == "roberta") for name in names])
    return root


@pytest.mark.parametrize("name", MODELS)
def test_both_formats_of_an_encoder_have_the_same_program_and_weights(folders: Path, name: str) -> None:
    folder, file = open_checkpoint(folders / name), open_checkpoint(folders / name / "model.gguf")
    wanted = {key: shape for key, shape in folder.weights.shapes().items() if key != "positions.weight"}
    assert {key: shape for key, shape in file.weights.shapes().items() if key != "positions.weight"} == wanted
    for key in wanted:
        np.testing.assert_array_equal(file.weights.read(key), folder.weights.read(key), err_msg=key)
    offset = folder.shape.encoder.position_offset
    np.testing.assert_array_equal(
        file.weights.read("positions.weight"), folder.weights.read("positions.weight")[offset:]
    )
    assert file.shape.max_position == folder.shape.max_position
    assert file.shape.encoder.pooling == ("cls" if "reranker" in name else folder.shape.encoder.pooling)
    ours, theirs = (
        [type(op).__name__ for op in make_program(part.shape).ops if type(op).__name__ != "Offset"]
        for part in (file, folder)
    )
    assert ours == theirs
    assert [op.kind for op in make_program(file.shape).ops if type(op).__name__ == "Activation"] == [
        op.kind for op in make_program(folder.shape).ops if type(op).__name__ == "Activation"
    ]
    assert is_encoder(folders / name / "model.gguf")


def test_a_bert_head_without_its_hidden_layer_is_refused(folders: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"without its hidden layer \(cls.weight\).*Hugging Face folder"):
        open_checkpoint(folders / "bert-reranker" / "model.gguf")


def test_a_classifier_of_several_labels_is_refused_with_their_names(folders: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"3 labels \('LABEL_0', 'LABEL_1', 'LABEL_2'\); /v1/score"):
        open_checkpoint(folders / "labels" / "model.gguf")


def test_a_file_gives_the_folders_vectors_of_texts(folders: Path, tmp_path: Path) -> None:
    """With the tokenizer as the converter spells WordPiece, and transformers' vectors of its ids."""
    path = with_word_pieces(folders / "bert" / "model.gguf", tmp_path / "bert.gguf")
    tokenizer = make_tokenizer()
    model = save_encoder(tmp_path, pooling="cls_token")
    wanted = [reference_vector(model, tokenizer.encode(text).ids, "cls") for text in TEXTS]
    with LLM(str(path), threads=1, executor="torch", dtype="float32") as llm:
        outputs = llm.embed(TEXTS)
        scores = [output.score for output in llm.score(TEXTS[0], TEXTS[1:3])]
    assert [output.num_prompt_tokens for output in outputs] == [len(tokenizer.encode(text).ids) for text in TEXTS]
    np.testing.assert_allclose([output.embedding for output in outputs], wanted, atol=1e-5, rtol=0)
    np.testing.assert_allclose(scores, [wanted[0] @ wanted[1], wanted[0] @ wanted[2]], atol=1e-5, rtol=0)
    with LLM(str(path), threads=1) as llm:
        np.testing.assert_allclose([each.embedding for each in llm.embed(TEXTS)], wanted, atol=2e-4, rtol=0)


async def test_a_file_is_served_by_the_predictor_of_encoders(folders: Path, tmp_path: Path) -> None:
    path = with_word_pieces(folders / "distilbert" / "model.gguf", tmp_path / "distilbert.gguf")
    with LLM(str(path), threads=1) as llm:
        wanted = llm.embed(TEXTS)
    async with AsyncLLM(str(path), threads=1) as llm:
        assert await llm.embed(TEXTS) == wanted


def with_word_pieces(source: Path, target: Path) -> Path:
    """The file with the tokenizer of parity/encoders, as BertModel.set_vocab of the converter writes it."""

    def write_tokenizer(writer: gguf.GGUFWriter) -> None:
        tokens, types = spell_word_pieces(make_tokenizer())
        writer.add_tokenizer_model("bert")
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        for name, text in (("unknown", "[UNK]"), ("seperator", "[SEP]"), ("padding", "[PAD]"), ("cls", "[CLS]")):
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", tokens.index(text))

    return with_tokenizer(source, target, write_tokenizer)


def with_tokenizer(source: Path, target: Path, write_tokenizer: Callable[[gguf.GGUFWriter], None]) -> Path:
    """The file of an encoder with another tokenizer."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "bert")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "tokenizer.", "general.architecture")):
            kind = field.types[0]
            writer.add_key_value(field.name, field.contents(), kind, field.types[1] if len(field.types) > 1 else None)
    write_tokenizer(writer)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def spell_word_pieces(tokenizer: Library) -> tuple[list[str], list[int]]:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    control = {text for text, _ in vocabulary if text.startswith("[")}
    spelt = [
        text if text in control else text.removeprefix("##") if text.startswith("##") else f"\u2581{text}"
        for text, _ in vocabulary
    ]
    return spelt, [3 if text in control else 1 for text, _ in vocabulary]


Write = Callable[..., Path]
HEAD = {"cls.output.weight": (np.ones((1, 8), np.float32), Type.F32)}
POSITIONS = {"position_embd.weight": (np.ones((16, 8), np.float32), Type.F32)}
KEYS = {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12}


@pytest.mark.parametrize(
    ("keys", "tensors", "error", "words"),
    [
        ({"attention.causal": True}, POSITIONS, UnsupportedModel, "causal attention"),
        ({}, {}, CorruptCheckpoint, "no table of positions"),
        ({"pooling_type": 4}, POSITIONS, UnsupportedModel, "the pooling rank, and no head"),
        ({"pooling_type": 7}, POSITIONS, UnsupportedModel, "the pooling 7; there are mean"),
        ({"pooling_type": 4}, POSITIONS | HEAD, UnsupportedModel, "without its hidden layer"),
    ],
)
def test_what_a_bert_file_cannot_be_is_named(
    write_gguf: Write, keys: dict[str, Any], tensors: dict[str, Any], error: type[Exception], words: str
) -> None:
    path = write_gguf(architecture="bert", keys=KEYS | keys, tensors=tensors)
    with pytest.raises(error, match=words):
        open_checkpoint(path)


@pytest.mark.parametrize(("number", "pooling"), [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "last")])
def test_the_pooling_is_llama_cpps_number(write_gguf: Write, number: int | None, pooling: str) -> None:
    keys = KEYS if number is None else KEYS | {"pooling_type": number}
    shape = open_checkpoint(write_gguf(architecture="bert", keys=keys, tensors=POSITIONS)).shape
    assert shape.encoder == EncoderShape(num_token_types=0, pooling=pooling, is_normalised=True)
    assert (shape.max_position, shape.activation) == (16, "gelu")


def test_nomic_bert_is_refused_by_name(write_gguf: Write) -> None:
    with pytest.raises(UnsupportedModel, match="'nomic-bert'; there are"):
        open_checkpoint(write_gguf(architecture="nomic-bert"))
