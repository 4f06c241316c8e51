"""Folders without tokenizer.json: sentencepiece, transformers and llama.cpp's vectors are the oracles."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer

from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface_vocabulary import read_vocabulary
from headway.checkpoint.sentencepiece_file import read_sentencepiece
from headway.errors import CorruptCheckpoint, ModelError, UnsupportedModel
from headway.text.source import GgufVocabulary, TextSource
from headway.text.tokenizer import Tokenizer, make_tokenizer

CORPUS = [
    "the cat sat on the mat, and the other cat looked on",
    "hello world, hello there: 1234 5678 == 99",
    "h\u00e9llo w\u00f6rld \u2603 \u6f22\u5b57\u304b\u306a",
    "one  two   three    four",
    "\ufb01ne \u2460 \uff12\uff13 def f(x): return x + 1",
] * 20
random_texts = random.Random(3)
TEXTS = [
    "hello world",
    "  two  spaces\tand tab\n",
    "n\u00e9e \ufb01 \u2460 \uff12\uff13 \u6f22\u5b57 \U0001f600",
    "",
    "   ",
    "aaaaaaaa======",
    "a<tool>b <tool> c",
    *("".join(random_texts.choices([*"abcdehlot  \t\u00e9\u6f22\ufb01=12", "the ", "cat"], k=40)) for _ in range(100)),
]
PLAIN = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}


def make(folder: Path, vocab_size: int = 100_000, **config: Any) -> Tokenizer:
    vocabulary = read_vocabulary(folder, Fields(config, "tokenizer_config.json"), vocab_size)
    assert vocabulary is not None
    return make_tokenizer(TextSource(vocabulary, len(vocabulary.tokens), vocabulary.end_token_ids))


def trained(folder: Path, **kind: Any) -> sentencepiece.SentencePieceProcessor:
    (folder / "corpus.txt").write_text("\n".join([*CORPUS, *Path(__file__).read_text().splitlines()]))
    options = {"input": folder / "corpus.txt", "model_prefix": folder / "tokenizer", "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(**options, num_threads=1, **kind)
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.mark.parametrize(
    "kind",
    [
        {"model_type": "bpe", "vocab_size": 400, **PLAIN},
        {"model_type": "bpe", "vocab_size": 120},
        {"model_type": "unigram", "vocab_size": 100},
        {
            "model_type": "bpe",
            "vocab_size": 400,
            "add_dummy_prefix": False,
            "user_defined_symbols": ["<tool>", "\u2581\u2581", "\u2581\u2581\u2581"],
            **PLAIN,
        },
    ],
    ids=["llama", "normalised", "unigram", "gemma"],
)
def test_ids_and_text_are_sentencepieces(tmp_path: Path, kind: dict[str, Any]) -> None:
    oracle, tokenizer = trained(tmp_path, **kind), make(tmp_path)
    for text in TEXTS:
        ids = oracle.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        if oracle.unk_id() not in ids:  # which it writes as a sign of its own
            assert tokenizer.decode(ids) == oracle.decode(ids)
    plain = oracle.encode("a")
    assert tokenizer.encode("a") == ([*plain, 2] if kind["model_type"] == "unigram" else [1, *plain])  # T5's, Llama's
    assert tokenizer.bos_token_id == oracle.bos_id()
    assert tokenizer.end_token_ids == {oracle.eos_id()}


def test_added_tokens_and_flags_come_from_the_files_beside(tmp_path: Path) -> None:
    oracle = trained(tmp_path, model_type="bpe", vocab_size=400, **PLAIN)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<plain>": 400, "<|user|>": 401, "<over>": 500}))
    decoder = {"402": {"content": "<eot>", "special": True}}
    config = {"added_tokens_decoder": decoder, "eos_token": {"content": "<eot>"}, "add_bos_token": False}
    tokenizer = make(tmp_path, 410, **config)
    assert tokenizer.num_tokens == 403
    assert tokenizer.end_token_ids == {402}
    assert tokenizer.encode("<plain>") == [400]
    plain = oracle.encode("<|user|>")
    assert tokenizer.encode("<|user|>") == plain
    assert tokenizer.encode("<|user|><eot>", parse_special=True) == [401, 402]


def test_a_gpt_2_folder_has_its_own_ids(tmp_path: Path) -> None:
    library = ByteLevelBPETokenizer()
    library.train_from_iterator(CORPUS, vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False)
    library.save_model(str(tmp_path))
    marks = {f"{role}_token": "<|endoftext|>" for role in ("bos", "eos", "unk")}
    tokenizer = make(tmp_path, **marks)
    for text in TEXTS:
        assert tokenizer.encode(text) == library.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.bos_token_id, tokenizer.end_token_ids) == (0, {0})
    assert make(tmp_path, **marks, add_bos_token=True).encode("a") == [0, *library.encode("a").ids]  # OPT's


@pytest.mark.parametrize("is_lower", [True, False])
def test_a_bert_folder_has_its_own_ids(tmp_path: Path, is_lower: bool) -> None:
    library = BertWordPieceTokenizer(lowercase=is_lower)
    library.train_from_iterator([line.title() for line in CORPUS], vocab_size=200, show_progress=False)
    library.save_model(str(tmp_path))
    tokenizer = make(tmp_path, do_lower_case=is_lower)
    cls, sep = library.token_to_id("[CLS]"), library.token_to_id("[SEP]")
    for text in [*TEXTS, "Hello THE"]:
        assert tokenizer.encode(text) == [cls, *library.encode(text, add_special_tokens=False).ids, sep], text


def test_a_folder_of_facebooks_opt_layout_is_read(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    marks = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    (folder / "vocab.json").write_text(json.dumps(marks | {"h": 4, "i": 5, "hi": 6}))
    (folder / "merges.txt").write_text("#version: 0.2\nh i\n")
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}))
    text = open_checkpoint(folder).text
    assert isinstance(text.vocabulary, GgufVocabulary)
    tokenizer = make_tokenizer(text)
    assert tokenizer.encode("hi") == [2, 6]
    assert 2 in tokenizer.end_token_ids
    oracle = transformers.GPT2Tokenizer(
        vocab=marks | {"h": 4, "i": 5, "hi": 6}, merges=[("h", "i")], **names, add_bos_token=True
    )
    assert oracle("hi")["input_ids"] == [2, 6]


def field(number: int, kind: int, value: bytes) -> bytes:
    return bytes([number << 3 | kind]) + value


PIECE = field(1, 2, b"\x03" + field(1, 2, b"\x01a"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "has no pieces"),
        (field(2, 2, b"\0"), "has no pieces"),
        (b"\x0a\x05ab", "the field at byte 2 has 5 bytes, over the end"),
        (b"\x0b", "a field of the kind 3"),
        (b"\x08\xff", "cut off"),
        (b"\x08" + b"\xff" * 11, "too long"),
        (field(1, 2, b"\x03" + field(1, 2, b"\x01\xff")), "no SentencePiece model: .*utf-8"),
    ],
)
def test_bytes_that_are_no_model_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match=words):
        read_sentencepiece(tmp_path / "tokenizer.model")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (field(2, 2, b"\x02" + field(3, 0, b"\x03")), "has the model type words"),
        (field(2, 2, b"\x03" + b"\xc0\x01\x01"), "writes spaces behind words"),
        (field(3, 2, b"\x02" + field(5, 0, b"\0")), "leaves spaces as they are"),
        (field(1, 2, b"\x02" + field(3, 0, b"\x06")), "a Unigram model with bytes"),
    ],
)
def test_kinds_that_are_not_read_are_named(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(PIECE + data)
    with pytest.raises(UnsupportedModel, match=words):
        read_sentencepiece(tmp_path / "tokenizer.model")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"vocab.json": "[]", "merges.txt": ""}, "no object of ids"),
        ({"vocab.json": '{"a": -1}', "merges.txt": ""}, "'a': -1, which is no id"),
        ({"vocab.txt": "a", "added_tokens.json": '{"b": "1"}'}, "'b': 1, which is no id"),
    ],
)
def test_vocabularies_that_are_none_are_refused(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CorruptCheckpoint, match=words):
        make(tmp_path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60))
def test_whatever_a_model_file_holds_nothing_but_a_model_error_is_raised(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(PIECE + data)
    with contextlib.suppress(ModelError):
        make(tmp_path)


def test_a_folder_without_any_of_the_files_has_none(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path, Fields({}, "tokenizer_config.json"), 10) is None
