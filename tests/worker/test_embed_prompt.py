"""Texts and pairs to an encoder's ids: framed, cut or refused, and equal to what the tokenizers library makes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from headway.core.embedding import EmbedInput, Purpose, TextPair
from headway.core.request import TextPrompt, TokensPrompt
from headway.errors import ContextLengthExceeded, InvalidRequest, UnsupportedFeature, UnsupportedModel
from headway.text.source import TextSource, TokenizerFiles
from headway.text.tokenizer import make_tokenizer as make_ours
from headway.worker.embed_prompt import EncoderInputs, PreparedText, prepare_texts, prepare_texts_now
from headway.worker.encoder_text import EncoderText
from headway.worker.prompt import LONG_TEXT_CHARACTERS, ModelText, check_generates
from parity.encoders import make_tokenizer

LONG = "the cat sat on the mat and the dog ran to the store"
PAIRS = [("where is the cat?", LONG), (LONG, "the dog"), ("a", "b"), (LONG, LONG + LONG)]


def make_text(folder: Path, *, is_roberta: bool = False, **encoder: object) -> tuple[ModelText, Library]:
    library = make_tokenizer(is_roberta=is_roberta)
    library.save(str(folder / "tokenizer.json"))
    source = TextSource(TokenizerFiles(folder / "tokenizer.json"), 160, frozenset())
    fields = {"reads_pairs": False, "width": 64, **encoder}
    return ModelText(make_ours(source), encoder=EncoderText(**fields)), library  # type: ignore[arg-type]


@pytest.fixture
def bert(tmp_path: Path) -> tuple[ModelText, Library]:
    return make_text(tmp_path)


def prepare(
    text: ModelText,
    *inputs: EmbedInput,
    limit: int = 64,
    truncate_to: int | None = None,
    purposes: Sequence[Purpose] | None = None,
) -> list[PreparedText]:
    names = [f"input[{place}]" for place in range(len(inputs))]
    job = EncoderInputs(inputs, names, purposes or ["text"] * len(inputs))
    return prepare_texts_now(text, job, max_model_len=limit, truncate_to=truncate_to)


def test_a_text_stands_between_the_models_own_tokens(bert: tuple[ModelText, Library]) -> None:
    text, library = bert
    for words in (LONG, "Hello, WORLD!", "unplayable kittens", "[SEP]"):
        ids = prepare(text, TextPrompt(words))[0].token_ids
        if "[" not in words:
            assert list(ids) == library.encode(words).ids
        assert ids[0] == library.token_to_id("[CLS]")
        assert list(ids).count(library.token_to_id("[SEP]")) == 1
    plain = prepare(text, TextPrompt("the cat", add_special_tokens=False))
    assert list(plain[0].token_ids) == library.encode("the cat", add_special_tokens=False).ids


@pytest.mark.parametrize("limit", [3, 4, 7, 12, 13])
def test_a_long_text_is_cut_as_the_library_cuts_it(bert: tuple[ModelText, Library], limit: int) -> None:
    text, library = bert
    library.enable_truncation(limit)
    assert list(prepare(text, TextPrompt(LONG), truncate_to=limit)[0].token_ids) == library.encode(LONG).ids
    assert list(prepare(text, TextPrompt(LONG), truncate_to=-1, limit=limit)[0].token_ids) == library.encode(LONG).ids


@pytest.mark.parametrize("is_roberta", [False, True])
@pytest.mark.parametrize("limit", [None, 5, 6, 9, 14, 20, 21])
def test_a_pair_is_framed_typed_and_cut_as_the_library_does(
    tmp_path: Path, limit: int | None, is_roberta: bool
) -> None:
    text, library = make_text(tmp_path, is_roberta=is_roberta)
    if limit is not None:
        library.enable_truncation(limit)
    for pair in PAIRS:
        made = prepare(text, TextPair(*pair), truncate_to=limit)[0]
        wanted = library.encode(*pair)
        assert list(made.token_ids) == wanted.ids
        start = len(made.token_ids) if made.second_start is None else made.second_start
        assert [int(place >= start) for place in range(len(made.token_ids))] == wanted.type_ids


def test_what_is_too_long_is_refused_with_both_numbers_and_its_place(bert: tuple[ModelText, Library]) -> None:
    with pytest.raises(
        ContextLengthExceeded, match=r"input\[1\] has 15 tokens, special ones included, .* takes 10"
    ) as it:
        prepare(bert[0], TextPrompt("a"), TextPrompt(LONG), limit=10)
    assert it.value.param == "input[1]"
    with pytest.raises(ContextLengthExceeded, match=r"has 11 tokens.* takes 10"):
        prepare(bert[0], TokensPrompt([5] * 11), limit=10)


def test_token_ids_are_taken_as_they_are_and_cut_at_their_end(bert: tuple[ModelText, Library]) -> None:
    assert prepare(bert[0], TokensPrompt([7, 8, 9]), truncate_to=2)[0].token_ids == (7, 8)
    with pytest.raises(InvalidRequest, match="160; token ids are 0 to 159"):
        prepare(bert[0], TokensPrompt([160]))


@pytest.mark.parametrize("value", [0, -2, 65])
def test_a_truncation_that_cannot_be_is_refused(bert: tuple[ModelText, Library], value: int) -> None:
    with pytest.raises(InvalidRequest, match=f"truncate_prompt_tokens is {value}; it must be 1 to 64"):
        prepare(bert[0], TextPrompt("a"), truncate_to=value)


def test_a_truncation_to_nothing_but_the_models_own_tokens_is_refused(bert: tuple[ModelText, Library]) -> None:
    with pytest.raises(InvalidRequest, match="are 2 already"):
        prepare(bert[0], TextPrompt("a"), truncate_to=2)
    with pytest.raises(InvalidRequest, match="are 3 already"):
        prepare(bert[0], TextPair("a", "b"), truncate_to=3)


def test_empty_texts_are_refused(bert: tuple[ModelText, Library]) -> None:
    for each in (TextPrompt(""), TextPair("", "a"), TextPair("a", "")):
        with pytest.raises(InvalidRequest, match="empty"):
            prepare(bert[0], each)


def test_the_models_own_prompt_stands_before_a_text_by_its_purpose(tmp_path: Path) -> None:
    prompts = {"query": "the ", "passage": "a "}
    text, library = make_text(tmp_path, prompts=prompts, default_prompt="on ")
    purposes: list[Purpose] = ["query", "document", "text"]
    made = prepare(text, *[TextPrompt("cat")] * 3, purposes=purposes)
    wanted = [library.encode(f"{prompt}cat").ids for prompt in ("the ", "a ", "on ")]
    assert [list(each.token_ids) for each in made] == wanted


def test_a_tokenizer_that_knows_no_pairs_is_refused_where_pairs_are_asked(tmp_path: Path) -> None:
    library = make_tokenizer()
    library.post_processor = None
    library.save(str(tmp_path / "tokenizer.json"))
    source = TextSource(TokenizerFiles(tmp_path / "tokenizer.json"), 160, frozenset())
    text = ModelText(make_ours(source), encoder=EncoderText(reads_pairs=True, width=64))
    with pytest.raises(UnsupportedModel, match="how two texts are read as one"):
        prepare(text, TextPair("a", "b"))


async def test_long_texts_are_prepared_in_a_thread(bert: tuple[ModelText, Library]) -> None:
    words = "cat " * (LONG_TEXT_CHARACTERS // 4 + 1)
    inputs = EncoderInputs([TextPrompt(words)], ["input"], ["text"])
    made = await prepare_texts(bert[0], inputs, max_model_len=16, truncate_to=-1)
    assert len(made[0].token_ids) == 16


def test_an_encoder_generates_nothing_and_says_what_it_does(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="makes /v1/embeddings"):
        check_generates(make_text(tmp_path)[0])
    with pytest.raises(UnsupportedFeature, match="scores pairs of texts"):
        check_generates(make_text(tmp_path, reads_pairs=True)[0])


@pytest.mark.parametrize(("dimensions", "is_good"), [(None, True), (64, True), (16, True), (8, False), (65, False)])
def test_dimensions_are_those_that_the_model_was_made_for(dimensions: int | None, is_good: bool) -> None:
    encoder = EncoderText(reads_pairs=False, width=64, dimensions=(16, 32))
    if is_good:
        encoder.check_dimensions(dimensions)
        return
    with pytest.raises(InvalidRequest, match=f"dimensions is {dimensions}; this model's vectors have 64"):
        encoder.check_dimensions(dimensions)


def test_any_dimension_is_any_up_to_the_models_own() -> None:
    EncoderText(reads_pairs=False, width=64, any_dimension=True).check_dimensions(7)
    with pytest.raises(UnsupportedFeature, match="none shorter is meant to be used"):
        EncoderText(reads_pairs=False, width=64).check_dimensions(7)
