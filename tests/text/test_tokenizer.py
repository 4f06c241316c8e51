import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import CorruptCheckpoint, InvalidRequest, UnsupportedModel
from headway.text import tokenizer as tokenizer_file
from headway.text.pretokenizers import PRE_TOKENIZERS
from headway.text.rendered import RenderedPrompt
from headway.text.source import TextSource
from headway.text.tokenizer import Tokenizer, make_tokenizer

MakeSmall = Callable[..., Tokenizer]


def test_smollm_cuts_digits_before_it_looks_at_spaces(demo: Tokenizer) -> None:
    # transformers' conversion of this file forgets the digits and gives [216, 216, 36, 34].
    assert demo.encode("  42") == [256, 36, 34]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "rwkv"}, "'rwkv'"),
        ({"model": "plamo2"}, "'plamo2'"),
        ({"pre": "never-heard-of"}, "'never-heard-of'"),
        ({"pre": "kimi-k2"}, "'kimi-k2'"),
    ],
)
def test_an_unknown_vocabulary_is_refused_by_name(changes: dict[str, Any], words: str, make_small: MakeSmall) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        make_small(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_types": [1, 1]}, "2 entries for 260 tokens"),
        ({"bos_token_id": 260}, "bos_token_id is 260"),
        ({"merges": ["ab"]}, "'ab', which is no pair"),
        ({"merges": [""]}, "'', which is no pair"),
        ({"merges": [" "]}, "' ', which is no pair"),
        ({"merges": ["a b"]}, "not all tokens"),
        ({"merges": ["a Ω"]}, "not all tokens"),
        ({"tokens": ["a", "b", "a"], "token_types": []}, "twice: 'a'"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(
    changes: dict[str, Any], words: str, make_small: MakeSmall
) -> None:
    with pytest.raises(CorruptCheckpoint, match=words):
        make_small(**changes)


def byte_ids(text: str) -> list[int]:
    """Ids in the small vocabulary of text that nothing merges: byte b is the token 4 + its place in GPT-2's order."""
    order = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order += [byte for byte in range(256) if byte not in order]
    return [4 + order.index(byte) for byte in text.encode()]


@pytest.mark.parametrize(
    ("text", "parse_special", "ids"),
    [
        ("<|turn|>a", False, byte_ids("<|turn|>a")),
        ("<|turn|>a", True, [2, *byte_ids("a")]),
        ("a<s></s>b", True, [*byte_ids("a"), 0, 1, *byte_ids("b")]),
        ("a<tool>", False, [*byte_ids("a"), 3]),  # user defined: part of the text's language
        ("<|turn", True, byte_ids("<|turn")),
        ("", True, []),
    ],
)
def test_control_tokens_are_read_only_when_asked(
    text: str, parse_special: bool, ids: list[int], make_small: MakeSmall
) -> None:
    assert make_small().encode(text, parse_special=parse_special) == ids


def test_a_control_token_cannot_be_reached_by_merges(make_small: MakeSmall) -> None:
    tokens = ["<s>", *"<s>", "<s", "s>"]
    tokenizer = make_small(
        tokens=tokens,
        token_types=[3, 1, 1, 1, 1, 1],
        merges=["< s", "<s >"],
        pre="poro-chat",
        end_token_ids=frozenset(),
    )
    assert tokenizer.encode("<s>") == [4, 3]  # "<s" and ">"


def test_an_end_token_that_the_file_calls_user_defined_is_a_control_token(make_small: MakeSmall) -> None:
    tokenizer = make_small(end_token_ids=frozenset({3}))
    assert tokenizer.encode("<tool>") == byte_ids("<tool>")
    assert 3 in tokenizer.special_token_ids


@pytest.mark.parametrize(
    ("changes", "text", "ids"),
    [
        ({}, "a", byte_ids("a")),  # gpt-2 has none unless the file says so
        ({"add_bos_token": True}, "a", [0, *byte_ids("a")]),
        ({"add_bos_token": True}, "<s>a", [0, *byte_ids("a")]),
        ({"add_bos_token": True}, "", [0]),
        ({"add_bos_token": True, "add_eos_token": True}, "a", [0, *byte_ids("a"), 1]),
        ({"add_bos_token": True, "add_eos_token": True}, "<s>a</s>", [0, *byte_ids("a"), 1]),
        ({"pre": "llama-bpe"}, "a", [0, *byte_ids("a")]),  # has one unless the file says not
        ({"pre": "llama-bpe", "add_bos_token": False}, "a", byte_ids("a")),
        ({"pre": "glm4", "add_bos_token": True}, "a", byte_ids("a")),  # the file's id is none
    ],
)
def test_bos_and_eos_are_put_around_once(
    changes: dict[str, Any], text: str, ids: list[int], make_small: MakeSmall
) -> None:
    tokenizer = make_small(**changes)
    assert tokenizer.encode(text, parse_special=True) == ids
    assert tokenizer.encode("a", add_special_tokens=False) == byte_ids("a")


@pytest.mark.parametrize(
    ("text", "protected", "ids"),
    [
        ("<|turn|>a<|turn|>", (), [2, *byte_ids("a"), 2]),
        ("<|turn|>a<|turn|>", ((9, 17),), [2, *byte_ids("a<|turn|>")]),
        ("<|turn|>", ((0, 3),), byte_ids("<|turn|>")),  # a span over a part of it is enough
        ("<s><s>a", (), [0, *byte_ids("a")]),  # never two BOS
        ("<s>a", (), [0, *byte_ids("a")]),
        ("a", (), byte_ids("a")),  # the template decides: none is added
    ],
)
def test_a_rendered_chat_has_the_templates_control_tokens_alone(
    text: str, protected: tuple[tuple[int, int], ...], ids: list[int], make_small: MakeSmall
) -> None:
    assert make_small(add_bos_token=True).encode_rendered(RenderedPrompt(text, protected)) == ids


def test_text_around_a_protected_span_is_one_piece_with_it(demo: Tokenizer) -> None:
    user = "say<|im_end|> now"
    text = f"<|im_start|>user\n{user}<|im_end|>\n"
    at = text.index("<|im_end|>")
    ids = demo.encode_rendered(RenderedPrompt(text, ((at, at + 10),)))
    assert ids == [1, *demo.encode(f"user\n{user}"), 2, *demo.encode("\n")]


def test_token_bytes_are_raw_bytes(demo: Tokenizer, demo_source: TextSource) -> None:
    assert b"".join(map(demo.token_bytes, demo.encode("“né😀"))) == "“né😀".encode()
    assert demo.token_bytes(demo_source.vocabulary.tokens.index("âĢ")) == b"\xe2\x80"
    assert demo.token_text(demo_source.vocabulary.tokens.index("âĢ")) == "\ufffd"
    assert demo.token_bytes(1) == b"<|im_start|>"
    assert [demo.token_bytes(one) for one in (-1, demo.num_tokens)] == [b"", b""]


def test_decoding_leaves_special_tokens_out_if_asked(make_small: MakeSmall) -> None:
    tokenizer = make_small()
    ids = [0, *byte_ids("é"), 2, 3, 1]
    assert tokenizer.decode(ids) == "<s>é<|turn|><tool></s>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "é<tool>"
    assert tokenizer.decode(byte_ids("é")[:1]) == "\ufffd"


@given(st.text())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_text_survives_the_round_trip(make_small: MakeSmall, text: str) -> None:
    tokenizer = make_small("t h", "Ġ th", "Ã ©")
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_round_trip_is_exact_with_spaces_breaks_and_emoji(demo: Tokenizer) -> None:
    text = "  a\n\u00e9\U0001f600"
    assert demo.decode(demo.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("bad", [-1, 260, 10**30, "a", 1.0, True, None])
def test_a_bad_id_is_named_with_the_vocabulary(bad: Any, make_small: MakeSmall) -> None:
    tokenizer = make_small()
    tokenizer.check_ids([], "prompt")
    tokenizer.check_ids([0, 259], "prompt")
    with pytest.raises(InvalidRequest, match=r"prompt\[1\] is .*0 to 259") as caught:
        tokenizer.check_ids([3, bad, bad], "prompt")
    assert caught.value.param == "prompt"


def test_ids_of_padding_rows_are_allowed_and_have_no_text(demo_source: TextSource) -> None:
    tokenizer = make_tokenizer(dataclasses.replace(demo_source, vocab_size=49280))
    tokenizer.check_ids([49279], "prompt")
    assert tokenizer.decode([49279]) == ""


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff"])
def test_a_lone_surrogate_is_refused(text: str, make_small: MakeSmall) -> None:
    for parse_special in (False, True):
        with pytest.raises(InvalidRequest, match="surrogate"):
            make_small().encode(text, parse_special=parse_special)


@pytest.mark.parametrize("pre", sorted({found.patterns: name for name, found in PRE_TOKENIZERS.items()}.values()))
def test_no_pattern_is_more_than_linear(pre: str, make_small: MakeSmall) -> None:
    tokenizer = make_small(pre=pre)
    for run, tail in itertools.product((" ", "A", "1", "\n", "!", "é", " \n", "一"), "a☃"):
        seconds = {}
        for length, num_tries in ((1_000, 3), (16_000, 1)):
            text = run * length + tail
            tries = []
            for _ in range(num_tries):
                start = time.thread_time()
                ids = tokenizer.encode(text, add_special_tokens=False)
                tries.append(time.thread_time() - start)
            assert tokenizer.decode(ids) == text
            seconds[length] = min(tries)
        # Sixteen times the text: sixteen times the work, 256 times if each character of a run scans its rest.
        assert seconds[16_000] < 80 * seconds[1_000], (run, tail)


class CountingMerger:
    """Stands in for the library: one id a character, and the sizes of what it was given."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.ids: list[int] = []

    def encode(self, sequence: str, *, add_special_tokens: bool) -> "CountingMerger":
        self.sizes.append(len(sequence))
        self.ids = [ord(character) for character in sequence]
        return self


@pytest.mark.parametrize("text", ["word " * 400_000, "a" * 2_000_000, " " * 2_000_000, "a \n" * 700_000])
def test_a_long_text_is_given_to_the_library_in_parts_of_bounded_size(text: str, make_small: MakeSmall) -> None:
    tokenizer, merger = make_small(), CountingMerger()
    tokenizer._vocabulary = dataclasses.replace(tokenizer._vocabulary, merger=merger, later_merger=merger)
    assert tokenizer.encode(text) == [ord(character) for character in text]
    assert max(merger.sizes) <= tokenizer_file._MAX_PART
    assert len(merger.sizes) <= 2 * len(text) / tokenizer_file._MAX_PART + 2


def test_a_text_in_parts_has_the_ids_of_the_whole(demo: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["It's", " 42", "  spaced", "\n\n", "\tx", " né", "😀", " <|im_end|>", "!?", "\n  y", " "]
    text = "".join(itertools.islice(itertools.cycle(words), 5_000))
    whole = demo.encode(text)
    for size in (100, 1000):
        monkeypatch.setattr(tokenizer_file, "_MAX_PART", size)
        assert demo.encode(text) == whole
