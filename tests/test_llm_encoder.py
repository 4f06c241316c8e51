"""LLM over small encoders: embed() and score() in this process, and what each model refuses."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from headway import LLM, AsyncLLM
from headway.errors import ContextLengthExceeded, InvalidConfig, InvalidRequest, UnsupportedFeature
from parity.encoders import make_tokenizer, reference_score, reference_vector, save_encoder

TEXTS = ["the cat sat on the mat", "a dog ran to the store", "stock markets fell today"]
CLOSE = 2e-4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_embed_gives_a_vector_of_each_text_in_their_order(folder: Path) -> None:
    model, library = save_encoder(folder), make_tokenizer()
    ids = [library.encode(text).ids for text in TEXTS]
    with LLM(str(folder), threads=2) as llm:
        outputs = llm.embed(TEXTS)
        np.testing.assert_allclose(
            [output.embedding for output in outputs], [reference_vector(model, each) for each in ids], atol=CLOSE
        )
        assert [output.num_prompt_tokens for output in outputs] == list(map(len, ids))
        assert llm.embed(TEXTS[1]) == outputs[1:2]
        assert llm.embed(ids[1]) == outputs[1:2]
        assert llm.embed([{"prompt": TEXTS[0]}, {"prompt_token_ids": ids[2]}]) == [outputs[0], outputs[2]]
        assert llm.embed([]) == []
        assert llm.stats()["prompt_tokens_total"] > 0


def test_score_by_vectors_is_the_cosine_and_by_a_head_its_own(tmp_path: Path) -> None:
    (tmp_path / "bi").mkdir()
    (tmp_path / "cross").mkdir()
    library = make_tokenizer()
    bi = save_encoder(tmp_path / "bi", is_normalised=False)
    vectors = [reference_vector(bi, library.encode(text).ids) for text in TEXTS]
    with LLM(str(tmp_path / "bi"), threads=1) as llm:
        made = [output.score for output in llm.score(TEXTS[0], TEXTS)]
        np.testing.assert_allclose(made, [float(vectors[0] @ vector) for vector in vectors], atol=CLOSE)
    cross = save_encoder(tmp_path / "cross", "bert-reranker", pooling=None)
    pairs = [library.encode(first, second) for first, second in zip(TEXTS, TEXTS[::-1], strict=True)]
    with LLM(str(tmp_path / "cross"), threads=1) as llm:
        made = [output.score for output in llm.score(TEXTS, TEXTS[::-1])]
        wanted = [reference_score(cross, pair.ids, pair.type_ids) for pair in pairs]
        np.testing.assert_allclose(made, wanted, atol=CLOSE)
        with pytest.raises(UnsupportedFeature, match="makes no embeddings"):
            llm.embed("a")


def test_what_cannot_be_is_refused_before_anything_runs(folder: Path) -> None:
    save_encoder(folder, max_seq_length=16, more={"matryoshka_dimensions": [8]})
    with LLM(str(folder), threads=1) as llm:
        for refused, error in (
            (lambda: llm.embed(["a", "cat " * 30]), ContextLengthExceeded),
            (lambda: llm.embed("a", dimensions=9), UnsupportedFeature),
            (lambda: llm.embed(""), InvalidRequest),
            (lambda: llm.embed([[999]]), InvalidRequest),
            (lambda: llm.score(["a", "b"], ["a"]), InvalidRequest),
            (lambda: llm.generate("a"), UnsupportedFeature),
            (lambda: llm.chat([{"role": "user", "content": "a"}]), UnsupportedFeature),
        ):
            with pytest.raises(error):
                refused()
        assert llm.stats()["prompt_tokens_total"] == 0
        assert len(llm.embed("cat " * 30, truncate_prompt_tokens=-1, dimensions=8)[0].embedding) == 8
    with pytest.raises(InvalidConfig, match="closed"):
        llm.embed("a")


async def test_another_process_gives_the_same_vectors_and_scores_and_refuses_alike(folder: Path) -> None:
    save_encoder(folder, max_seq_length=16, more={"matryoshka_dimensions": [8]})
    with LLM(str(folder), threads=1) as llm:
        vectors, short, scores = llm.embed(TEXTS), llm.embed(TEXTS[0], dimensions=8), llm.score(TEXTS[0], TEXTS)
    async with AsyncLLM(str(folder), threads=1) as llm:
        assert await asyncio.gather(
            llm.embed(TEXTS), llm.embed(TEXTS[0], dimensions=8, priority=-1), llm.score(TEXTS[0], TEXTS, priority=3)
        ) == [vectors, short, scores]
        assert await llm.embed([]) == []
        assert len(await llm.embed("cat " * 30, truncate_prompt_tokens=-1)) == 1
        with pytest.raises(ContextLengthExceeded, match="32 tokens"):
            await llm.embed(["a", "cat " * 30])
        with pytest.raises(UnsupportedFeature):
            await llm.embed("a", dimensions=9)
        with pytest.raises(InvalidRequest, match="has 2 texts"):
            await llm.score(["a", "b"], ["a"])
        with pytest.raises(UnsupportedFeature, match="generates no text"):
            await anext(llm.generate("a"))
