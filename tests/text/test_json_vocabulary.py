"""tokenizer.json: the library that the format belongs to is the oracle."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from headway.errors import CorruptCheckpoint, UnsupportedModel
from headway.text.source import TextSource
from headway.text.tokenizer import make_tokenizer

JsonSource = Callable[..., TextSource]
CORPUS = ["the cat sat on the mat", "hello world, hello there", "a b c d", "né 42 été"] * 20
TEXTS = [
    "",
    "hello world",
    " the cat",
    "  the  cat\n",
    "né 42 ☃😀",
    "<s>hello</s>there<tool>x",
    "<s> hello",
    "a<s>b</s>",
]
SPECIAL = ["<unk>", "<s>", "</s>", "<mask>"]


def _library(kind: str) -> Library:
    library = Library(models.BPE(unk_token=None, byte_fallback=kind != "bytes"))
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else []
    if kind == "bytes":
        split = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        library.decoder = decoders.ByteLevel()
    elif kind == "metaspace":
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        library.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        library.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    bytes_tokens = [] if kind == "bytes" else [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*SPECIAL, *bytes_tokens], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<|user|>", normalized=False)])
    tree = json.loads(library.to_str())
    # The byte tokens are the model's own, as in real files; the trainer can only make them special.
    tree["added_tokens"] = [token for token in tree["added_tokens"] if not token["content"].startswith("<0x")]
    for token in tree["added_tokens"]:
        token["lstrip"] = token["content"] == "<mask>"
        token["rstrip"] = token["content"] == "</s>"
    library = Library.from_str(json.dumps(tree))
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return library


def _library_of(kind: str) -> Library:
    """Unigram or WordPiece, with BOS as the beginning of a text."""
    if kind == "unigram":
        library = Library(models.Unigram())
        library.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
        library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=80, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False, max_piece_length=6
        )
    else:
        library = Library(models.WordPiece(unk_token="<unk>"))
        library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        library.decoder = decoders.WordPiece(cleanup=False)
        trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=SPECIAL, show_progress=False)
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens([AddedToken("<tool>", normalized=False)])
    tree = json.loads(library.to_str())
    for token in tree["added_tokens"]:
        token["lstrip"], token["rstrip"] = token["content"] == "<mask>", token["content"] == "</s>"
    library = Library.from_str(json.dumps(tree))
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return library


@pytest.mark.parametrize("kind", ["bytes", "metaspace", "prepend", "unigram", "wordpiece"])
def test_ids_and_text_equal_the_librarys(kind: str, json_source: JsonSource) -> None:
    library = _library_of(kind) if kind in ("unigram", "wordpiece") else _library(kind)
    tokenizer = make_tokenizer(json_source(json.loads(library.to_str()), bos_token="<s>", eos_token="</s>"))
    as_text = Library.from_str(library.to_str())
    as_text.encode_special_tokens = True
    for text in [*TEXTS, "a <mask> b", "x</s>  y"]:
        parsed = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False, parse_special=True) == parsed, text
        plain = as_text.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == plain, text
        assert tokenizer.encode(text) == [1, *plain]
        for ids in (parsed, plain):
            expected = library.decode(ids, skip_special_tokens=True)
            if kind == "wordpiece":  # The library puts a space before each token that does not continue a word.
                expected = expected.replace(" <tool>", "<tool>")
            assert tokenizer.decode(ids, skip_special_tokens=True) == expected
    assert tokenizer.bos_token_id == 1
    assert tokenizer.special_token_ids == {0, 1, 2, 3}


def test_byte_tokens_are_bytes_and_the_space_sign_a_space(json_source: JsonSource) -> None:
    library = _library("metaspace")
    tokenizer = make_tokenizer(json_source(json.loads(library.to_str())))
    snowman = tokenizer.encode("☃", add_special_tokens=False)
    assert [tokenizer.token_bytes(one) for one in snowman[-3:]] == [b"\xe2", b"\x98", b"\x83"]
    assert tokenizer.token_bytes(library.token_to_id("▁the")) == b" the"
    assert tokenizer.token_text(library.token_to_id("▁the")) == " the"


def test_a_turn_mark_without_the_flag_is_a_control_token_but_stays_visible(json_source: JsonSource) -> None:
    library = _library("bytes")
    tokenizer = make_tokenizer(json_source(json.loads(library.to_str())))
    mark = library.token_to_id("<|user|>")
    assert mark not in tokenizer.encode("<|user|>")
    assert tokenizer.encode("<|user|>", parse_special=True) == [1, mark]
    assert tokenizer.decode([mark], skip_special_tokens=True) == "<|user|>"


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({}, [1]),
        ({"bos_token": "<s>", "add_bos_token": True}, [1]),
        ({"bos_token": {"content": "<s>"}, "add_bos_token": False}, []),
        ({"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": True}, [1, 2]),
    ],
)
def test_the_configuration_has_the_last_word_on_bos_and_eos(
    config: dict[str, Any], ids: list[int], json_source: JsonSource
) -> None:
    tree = json.loads(_library("bytes").to_str())
    assert make_tokenizer(json_source(tree, **config)).encode("") == ids


def test_truncation_and_padding_in_the_file_do_not_touch_a_prompt(json_source: JsonSource) -> None:
    library = _library("bytes")
    library.enable_truncation(3)
    library.enable_padding(length=8)
    tokenizer = make_tokenizer(json_source(json.loads(library.to_str())))
    assert tokenizer.decode(tokenizer.encode("hello world, hello there", add_special_tokens=False)) == (
        "hello world, hello there"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"type": "WordLevel", "vocab": {}}}, "WordLevel"),
        ({"decoder": {"type": "CTC"}}, "CTC"),
        ({"decoder": None}, "missing"),
    ],
)
def test_other_kinds_are_refused_by_name(change: dict[str, Any], words: str, json_source: JsonSource) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        make_tokenizer(json_source(json.loads(_library("bytes").to_str()) | change))


def _nested(depth: int) -> dict[str, Any]:
    stage: dict[str, Any] = {"type": "ByteLevel"}
    for _ in range(depth):
        stage = {"type": "Sequence", "pretokenizers": [stage]}
    return stage


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"added_tokens": 3}, "added_tokens is not a list"),
        ({"added_tokens": ["<s>"]}, "added_tokens is not a list of objects"),
        ({"added_tokens": [{"id": 1}]}, "added_tokens has.*no token"),
        ({"added_tokens": [{"id": "1", "content": "a"}]}, "added_tokens has.*no token"),
        ({"added_tokens": [{"id": 4_000_000_000, "content": "a"}]}, "added_tokens has.*no token"),
        ({"model": {"type": "BPE", "vocab": {"a": 4_000_000_000}, "merges": []}}, "the token id 4000000000"),
        ({"decoder": [{"type": "ByteLevel"}]}, "decoder is not an object"),
        ({"decoder": {"type": ["ByteLevel"]}}, "decoder is not an object"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": 3}}, "pretokenizers that are no list"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [3]}}, "pre_tokenizer is not an object"),
        ({"pre_tokenizer": _nested(200)}, "nested over"),
    ],
)
def test_parts_that_can_not_be_are_named(change: dict[str, Any], words: str, json_source: JsonSource) -> None:
    with pytest.raises(CorruptCheckpoint, match=words):
        make_tokenizer(json_source(json.loads(_library("bytes").to_str()) | change))


@pytest.mark.parametrize(
    "tree", [{}, {"model": 3}, {"model": {"type": "BPE", "vocab": 1}, "decoder": {"type": "ByteLevel"}}]
)
def test_a_file_that_is_no_tokenizer_is_refused(tree: dict[str, Any], json_source: JsonSource) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer\.json"):
        make_tokenizer(json_source(tree))
