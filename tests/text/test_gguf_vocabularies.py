"""Every vocabulary of llama.cpp's tree: its ids are right, and what is no plain text cannot be reached by one."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from headway.errors import CorruptCheckpoint, InternalError
from headway.text.source import GgufVocabulary, TextSource
from headway.text.tokenizer import Tokenizer, make_tokenizer
from oracles import llama_cpp_sources

Source = Callable[[str], TextSource]
Make = Callable[[str], Tokenizer]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.mark.parametrize(
    "name",
    [
        "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe",
        "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
    ],
)  # fmt: skip
def test_ids_equal_llama_cpps_on_its_own_texts(name: str, llama_cpp_tokenizer: Make) -> None:
    tokenizer = llama_cpp_tokenizer(name)
    stem = llama_cpp_sources() / "models" / f"ggml-vocab-{name}.gguf"
    texts = (stem.with_name(stem.name + ".inp")).read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (stem.with_name(stem.name + ".out")).read_text().splitlines()
    assert len(texts) - len(lines) == (0 if texts[-1] else 1)  # nothing stands behind the last separator
    assert len(lines) > 40
    for text, line in zip(texts, lines, strict=False):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == [int(word) for word in line.split()], text
        if name != "bert-bge":  # it forgets case, accents and spaces
            assert tokenizer.decode(ids) == text


TEXTS = [
    "Hello world",
    " Hello  World!\n\t42 été",
    "３ 漢字かな 😀 ﬁ ①",
    "I'll go; 1234567 http://a.b/c?d=1",
    "   \n\n  a==========b   ",
]


@pytest.mark.parametrize(
    ("name", "lines"),
    [  # llama_cpp.Llama(vocab_only=True).tokenize(text, add_bos=False, special=False) of llama-cpp-python 0.3.36
        (
            "aquila",
            [
                "22299 3117",
                "51980 221 7067 1 199 198 4499 51747",
                "260 242 221 1220 96 1768 17751 13322 89937 223 80827 106 224 221 159 240 255",
                "41 7 1173 1050 27 221 11218 31441 23 7697 2724 65 14 66 15 67 31 68 29 17",
                "475 3626 262 12027 66 475",
            ],
        ),
        (
            "gpt-neox",
            [
                "12092 1533",
                "24387 50276 14947 2 187 186 2945 23162",
                "3193 230 209 45387 97 30886 9146 6686 49042 211 16141 107 212 209 158 228 243",
                "42 8 620 564 28 209 10683 25133 24 3944 1358 66 15 67 16 68 32 69 30 18",
                "50275 535 50276 66 6428 67 50275",
            ],
        ),
        (
            "baichuan",
            [
                "24568 1275",
                "31106 24568 31106 2025 80 5 6 56 54 24020 31418",
                "31106 65 31106 39537 31653 34507 34139 31106 36301 31106 632 565 522 31106 619 538 553",
                "708 31155 986 892 31174 31106 53 54 55 56 57 58 59 4183 1619 31109 79 31127 31159 31118 81 31117 "
                "31191 53",
                "31106 31106 31106 31106 5 5 31106 650 13436 3962 31127 31106 31106 31106",
            ],
        ),
        (
            "nomic-bert-moe",
            [
                "35378 8999",
                "35378 6661 38 4828 5325",
                "138 6 39353 7234 34275 21119 809 106",
                "87 25 1181 738 74 6 190875 162082 1621 696 11 5 275 64 238 32 71 33000",
                "10 69112 69112 69112 69112 69112 275",
            ],
        ),
    ],
)
def test_ids_of_the_others_equal_what_llama_cpp_gives(name: str, lines: list[str], llama_cpp_tokenizer: Make) -> None:
    tokenizer = llama_cpp_tokenizer(name)
    for text, line in zip(TEXTS, lines, strict=True):
        assert tokenizer.encode(text, add_special_tokens=False) == [int(word) for word in line.split()], text


@pytest.mark.parametrize(
    ("name", "before", "behind"),
    [
        ("llama-spm", [1], []),
        ("baichuan", [1], []),  # the file does not say
        ("bert-bge", [101], [102]),
        ("nomic-bert-moe", [0], [2]),
        ("gemma-4", [2], []),
    ],
)
def test_what_stands_around_a_text(name: str, before: list[int], behind: list[int], llama_cpp_tokenizer: Make) -> None:
    tokenizer = llama_cpp_tokenizer(name)
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == [*before, *plain, *behind]


def test_phi_3s_turn_marks_take_the_white_space_behind_them(llama_cpp_tokenizer: Make) -> None:
    tokenizer = llama_cpp_tokenizer("phi-3")
    # As the model's own tokenizer has it: <|user|>, "▁Hi", <|end|>, <|assistant|>.
    assert tokenizer.encode("<|user|>\nHi<|end|>\n<|assistant|>\n", add_special_tokens=False, parse_special=True) == [
        32010, 6324, 32007, 32001,
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["llama-spm", "nomic-bert-moe", "bert-bge", "gemma-4"])
def test_no_plain_text_becomes_a_control_or_byte_token(
    name: str, llama_cpp_source: Source, llama_cpp_tokenizer: Make
) -> None:
    tokenizer, vocabulary = llama_cpp_tokenizer(name), llama_cpp_source(name).vocabulary
    assert isinstance(vocabulary, GgufVocabulary)
    texts = {
        text: token_id
        for token_id, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.token_types, strict=True))
        if kind in (3, 6)
    }
    for text, token_id in list(texts.items())[:300]:
        assert token_id not in tokenizer.encode(f"{text}{text} {text}", add_special_tokens=False), text
    assert len(tokenizer.encode("￿2", add_special_tokens=False)) >= 1


def scored(*pieces: tuple[str, float], **changes: Any) -> Tokenizer:
    """<unk>, <s>, </s>, the 256 bytes from id 3, then these pieces."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *(piece for piece, _ in pieces)]
    values: dict[str, Any] = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_types": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "merges": [],
        "scores": [0.0] * 259 + [score for _, score in pieces],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    vocabulary = GgufVocabulary(**(values | changes))
    return make_tokenizer(TextSource(vocabulary, len(tokens), frozenset({2})))


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(one) for one in ids]


@pytest.mark.parametrize(
    ("pieces", "text", "cut"),
    [
        # The pair with the highest score, not the longest, and of equal ones the leftmost.
        ([("a", -9), ("b", -9), ("c", -9), ("ab", -2), ("bc", -1)], "abc", ["a", "bc"]),
        ([("a", -9), ("b", -9), ("c", -9), ("ab", -1), ("bc", -1)], "abc", ["ab", "c"]),
        ([("a", -9), ("aa", -1), ("aaa", -2)], "aaaaa", ["aa", "aaa"]),
        ([("a", -9), ("aa", -2), ("aaaa", -3), ("aaa", -4)], "aaaaaaa", ["aaaa", "aaa"]),
        # What is no token is its bytes.
        ([("a", -9)], "aé", ["a", "\ufffd", "\ufffd"]),
    ],
)
def test_pairs_are_joined_by_score(pieces: list[tuple[str, float]], text: str, cut: list[str]) -> None:
    tokenizer = scored(*pieces, add_space_prefix=False)
    assert texts_of(tokenizer, tokenizer.encode(text, add_special_tokens=False)) == cut


def test_a_token_that_reaches_over_a_space_is_found() -> None:
    tokenizer = scored(("▁", -9), ("a", -9), ("b", -9), ("a▁", -2), ("a▁b", -3))
    ids = tokenizer.encode("a b a", add_special_tokens=False)
    assert texts_of(tokenizer, ids) == [" ", "a b", " ", "a"]


@pytest.mark.parametrize(
    ("adds_space", "text", "cut"),
    [
        (True, "a<tool>a", [" a", "<tool>", " a"]),  # llama.cpp's: every text behind a token of its own begins a word
        (False, "a<tool>a", ["a", "<tool>", "a"]),
        (True, " a", [" ", " a"]),
    ],
)
def test_a_text_begins_with_a_space_where_the_file_says(adds_space: bool, text: str, cut: list[str]) -> None:
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "▁a", "<tool>"]
    types = [2, 3, 3, *[6] * 256, 1, 1, 1, 4]
    tokenizer = scored(tokens=tokens, token_types=types, scores=[-1.0] * len(tokens), add_space_prefix=adds_space)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert texts_of(tokenizer, ids) == cut
    assert tokenizer.decode(ids) == "".join(cut).removeprefix(" " if adds_space else "")


def test_extra_white_space_goes_where_the_file_says() -> None:
    tokenizer = scored(("▁", -9), ("a", -9), ("▁a", -1), remove_extra_whitespaces=True)
    assert texts_of(tokenizer, tokenizer.encode("  a   a ", add_special_tokens=False)) == [" a", " a"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": [0.0]}, "1 entries for 260 tokens"),
        ({"tokens": ["<unk>", "<s>", "</s>", "<0xZZ>", *BYTES[1:], "a"]}, "'<0xZZ>', which is no byte"),
        ({"model": "t5", "unknown_token_id": None}, "no unknown_token_id"),
        ({"model": "bert", "unknown_token_id": None}, "no unknown_token_id"),
        ({"model": "t5", "precompiled_charsmap": b"123"}, "of 3 bytes is no trie"),
        ({"model": "t5", "precompiled_charsmap": b"\x04\0\0\0\0\x04\0\0xxxx"}, "of 12 bytes is no trie"),
        ({"separator_token_id": 260}, "seperator_token_id is 260"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=words):
        scored(("a", -1.0), **changes)


def test_a_trie_that_leads_nowhere_is_seen_when_it_is_walked(llama_cpp_source: Source) -> None:
    source = llama_cpp_source("nomic-bert-moe")
    assert isinstance(source.vocabulary, GgufVocabulary)
    cut = (8).to_bytes(4, "little") + b"\xff" * 8 + b"x\0"
    broken = replace(source, vocabulary=replace(source.vocabulary, precompiled_charsmap=cut))
    with pytest.raises(InternalError, match="leads out of its trie"):
        make_tokenizer(broken).encode("text")


def test_word_pieces_are_those_of_the_models_own_library() -> None:
    corpus = ["the cat sat on the mat", "hello world, hello there", "née Été 42"] * 20
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(cleanup=False)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    library.train_from_iterator(
        corpus, trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    )
    library.encode_special_tokens = True
    ids = json.loads(library.to_str())["model"]["vocab"]
    # As llama.cpp's converter writes them (conversion/bert.py, phantom).
    tokens = [
        text if text in special else text.removeprefix("##") if text.startswith("##") else f"▁{text}"
        for text in sorted(ids, key=ids.__getitem__)
    ]
    vocabulary = GgufVocabulary(
        model="bert",
        pre="default",
        tokens=tokens,
        token_types=[3] * 4 + [1] * (len(tokens) - 4),
        merges=[],
        bos_token_id=2,
        separator_token_id=3,
        unknown_token_id=1,
    )
    tokenizer = make_tokenizer(TextSource(vocabulary, len(tokens), frozenset()))
    for text in ["Hello, the MAT!", "née  Été42", "xyz☃", "一the", " \t\n", "the" * 40, "he[CLS]llo"]:
        expected = library.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == [2, *expected.ids, 3], text
        assert tokenizer.decode(expected.ids, skip_special_tokens=True) == library.decode(expected.ids)


@pytest.mark.parametrize(
    ("separates", "middle"), [(None, (1, 2)), (True, (1, 2)), (False, (1,))], ids=["unsaid", "added", "not added"]
)
def test_between_the_texts_of_a_pair_stands_what_the_file_adds(separates: bool | None, middle: tuple[int, ...]) -> None:
    tokenizer = scored(
        ("a", -1.0), separator_token_id=2, eos_token_id=1, add_eos_token=True, add_separator_token=separates
    )
    assert tokenizer.pair is not None
    assert tokenizer.pair.middle == middle
    assert tokenizer.pair.suffix == (1,)
    assert scored(("a", -1.0), add_eos_token=True, eos_token_id=1).pair is None
