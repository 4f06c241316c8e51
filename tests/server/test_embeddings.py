"""/v1/embeddings, /v1/rerank and /v1/score over small random encoders in this process; right values by transformers."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch

from headway.config import CheckpointConfig, EngineConfig, ModelConfig, PoolConfig, ServerConfig
from headway.server.app import lifespan_of, make_app
from headway.service.loader import ProcessLoader, make_worker_client
from headway.service.local import LocalService
from headway.testing.thread_worker import ThreadWorker
from headway.worker.resident import ClientSettings, ResidentClient
from parity.encoders import make_tokenizer, reference_score, reference_vector, save_encoder

CLOSE = 2e-4
TEXTS = ["the cat sat on the mat", "a dog ran", "stock markets fell today , and the store is small"]


class ThreadLoader(ProcessLoader):
    """Real predictors in threads of this process."""

    async def connect(self, model: ModelConfig, name: str, settings: ClientSettings) -> ResidentClient:
        client = make_worker_client(name, settings)
        client.attach(ThreadWorker(name, client))
        return client


class Door:
    """A served encoder, its model in transformers, and its tokenizer."""

    def __init__(self, client: httpx2.AsyncClient, model: torch.nn.Module, *, is_roberta: bool = False) -> None:
        self._client = client
        self.model = model
        self.library = make_tokenizer(is_roberta=is_roberta)

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        return await self._client.post(path, json={"model": "m"} | body)

    async def metrics(self) -> str:
        return (await self._client.get("/metrics")).text

    async def vectors(self, **body: Any) -> np.ndarray:
        response = await self.post("/v1/embeddings", **body)
        assert response.status_code == 200, response.text
        return np.array([each["embedding"] for each in response.json()["data"]])

    def wanted(self, text: str) -> np.ndarray:
        return reference_vector(self.model, self.library.encode(text).ids)

    def wanted_score(self, first: str, second: str) -> float:
        encoding = self.library.encode(first, second)
        return reference_score(self.model, encoding.ids, encoding.type_ids)


@asynccontextmanager
async def serve(folder: Path, name: str = "bert", **saved: Any) -> AsyncIterator[Door]:
    model = save_encoder(folder, name, **saved)
    checkpoint = CheckpointConfig(cache_dir=folder)
    config = ModelConfig(source=str(folder), served_names=("m",), engine=EngineConfig(threads=1, max_num_seqs=4))
    service = LocalService([config], PoolConfig(), ServerConfig(), checkpoint, loader=ThreadLoader(checkpoint))
    app = make_app(service)
    transport = httpx2.ASGITransport(app)
    async with lifespan_of(app), httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
        yield Door(client, model, is_roberta="roberta" in name)


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with serve(tmp_path, max_seq_length=24) as door:
        yield door


@pytest.fixture
async def reranker(tmp_path: Path) -> AsyncIterator[Door]:
    async with serve(tmp_path, "bert-reranker", pooling=None) as door:
        yield door


async def test_vectors_are_transformers_in_the_order_of_the_inputs(door: Door) -> None:
    response = await door.post("/v1/embeddings", input=TEXTS)
    body = response.json()
    assert (body["object"], body["model"], body["id"][:5]) == ("list", "m", "embd-")
    assert [(each["object"], each["index"]) for each in body["data"]] == [("embedding", place) for place in range(3)]
    wanted = np.array([door.wanted(text) for text in TEXTS])
    np.testing.assert_allclose([each["embedding"] for each in body["data"]], wanted, atol=CLOSE)
    num_tokens = sum(len(door.library.encode(text).ids) for text in TEXTS)
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


async def test_base64_is_the_same_numbers_as_little_endian_float32(door: Door) -> None:
    (numbers,) = await door.vectors(input=TEXTS[0], encoding_format="float")
    response = await door.post("/v1/embeddings", input=TEXTS[0], encoding_format="base64")
    text = response.json()["data"][0]["embedding"]
    decoded = np.frombuffer(base64.b64decode(text), "<f4")
    assert decoded.shape == (64,)
    np.testing.assert_array_equal(decoded, numbers.astype(np.float32))


async def test_token_ids_give_what_their_text_gives(door: Door) -> None:
    ids = [door.library.encode(text).ids for text in TEXTS]
    by_text = await door.vectors(input=TEXTS)
    np.testing.assert_array_equal(await door.vectors(input=ids), by_text)
    np.testing.assert_array_equal(await door.vectors(input=ids[1]), by_text[1:2])


async def test_a_vector_does_not_depend_on_the_other_texts_of_the_request(door: Door) -> None:
    many = await door.vectors(input=TEXTS * 5)
    for place, text in enumerate(TEXTS):
        alone = await door.vectors(input=text)
        for copy in range(5):
            np.testing.assert_array_equal(many[copy * 3 + place], alone[0])


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty list"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": ["a", 1]}, "input", "mixed list"),
        ({"input": 7}, "input", "it must be text"),
        ({"input": [160]}, "input", "0 to 159"),
        ({"input": ["a", "cat " * 30]}, "input[1]", "has 32 tokens, special ones included, and this model takes 24"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float or base64"),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ({"input": "a", "dimensions": -1}, "dimensions", "at least 1"),
        ({"input": "a", "dimensions": 65}, "dimensions", "have 64"),
        ({"input": "a", "dimensions": 8}, "dimensions", "none shorter"),
        ({"input": "a", "truncate_prompt_tokens": 25}, "truncate_prompt_tokens", "1 to 24"),
        ({"input": "a", "input_type": "query"}, "input_type", "not supported"),
        ({"input": "a", "nonsense": 1}, "nonsense", "no field"),
    ],
)
async def test_what_cannot_be_is_a_400_that_names_the_field(door: Door, body: Any, param: str, words: str) -> None:
    response = await door.post("/v1/embeddings", **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert words in error["message"]


async def test_too_long_a_text_is_cut_where_that_is_asked(door: Door) -> None:
    long = "the cat sat " * 20
    door.library.enable_truncation(24)
    (made,) = await door.vectors(input=long, truncate_prompt_tokens=-1)
    np.testing.assert_allclose(made, door.wanted(long), atol=CLOSE)
    door.library.enable_truncation(9)
    (made,) = await door.vectors(input=long, truncate_prompt_tokens=9)
    np.testing.assert_allclose(made, door.wanted(long), atol=CLOSE)


async def test_dimensions_are_cut_and_normalised_where_the_model_was_made_for_them(tmp_path: Path) -> None:
    async with serve(tmp_path, more={"matryoshka_dimensions": [8, 32]}) as door:
        (whole,) = await door.vectors(input=TEXTS[0])
        (cut,) = await door.vectors(input=TEXTS[0], dimensions=8)
        np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
        assert (await door.post("/v1/embeddings", input="a", dimensions=9)).status_code == 400


async def test_rerank_by_vectors_is_their_cosine(door: Door) -> None:
    response = await door.post("/v1/rerank", query=TEXTS[0], documents=TEXTS)
    results = response.json()["results"]
    query, *documents = (door.wanted(text) for text in (TEXTS[0], *TEXTS))
    wanted = {place: float(query @ document) for place, document in enumerate(documents)}
    assert [each["index"] for each in results] == sorted(wanted, key=lambda place: -wanted[place])
    for each in results:
        assert each["relevance_score"] == pytest.approx(wanted[each["index"]], abs=CLOSE)
        assert each["document"] == {"text": TEXTS[each["index"]]}
    lengths = [len(door.library.encode(text).ids) for text in (TEXTS[0], *TEXTS)]
    assert response.json()["usage"]["total_tokens"] == sum(lengths)


async def test_rerank_by_a_head_is_its_score_of_each_pair(reranker: Door) -> None:
    documents = [{"text": TEXTS[0]}, *TEXTS[1:]]
    response = await reranker.post("/rerank", query="where is the cat", documents=documents, top_n=2)
    wanted = [reranker.wanted_score("where is the cat", text) for text in TEXTS]
    best = sorted(range(3), key=lambda place: -wanted[place])[:2]
    results = response.json()["results"]
    assert [each["index"] for each in results] == best
    np.testing.assert_allclose(
        [each["relevance_score"] for each in results], [wanted[place] for place in best], atol=CLOSE
    )


async def test_results_without_documents_have_no_text(door: Door) -> None:
    response = await door.post("/v1/rerank", query="a", documents=["b"], return_documents=False)
    assert response.json()["results"][0].keys() == {"index", "relevance_score"}


async def test_scores_are_of_pairs_and_one_text_goes_with_all(reranker: Door) -> None:
    for first, second in ((TEXTS[0], TEXTS), (TEXTS, TEXTS[::-1]), (TEXTS[0], TEXTS[1])):
        response = await reranker.post("/v1/score", text_1=first, text_2=second)
        seconds = [second] if isinstance(second, str) else second
        firsts = [first] * len(seconds) if isinstance(first, str) else first
        data = response.json()["data"]
        assert [(each["object"], each["index"]) for each in data] == [("score", at) for at in range(len(seconds))]
        wanted = [reranker.wanted_score(*pair) for pair in zip(firsts, seconds, strict=True)]
        np.testing.assert_allclose([each["score"] for each in data], wanted, atol=CLOSE)


async def test_a_model_without_token_types_scores_pairs_too(tmp_path: Path) -> None:
    async with serve(tmp_path, "distilbert-reranker", pooling=None) as door:
        response = await door.post("/score", text_1=TEXTS[0], text_2=TEXTS)
        pairs = [door.library.encode(TEXTS[0], text).ids for text in TEXTS]
        wanted = [reference_score(door.model, ids, [0] * len(ids)) for ids in pairs]
        np.testing.assert_allclose([each["score"] for each in response.json()["data"]], wanted, atol=CLOSE)


async def test_a_roberta_head_scores_pairs_too(tmp_path: Path) -> None:
    async with serve(tmp_path, "xlm-roberta-reranker", pooling=None) as door:
        response = await door.post("/score", text_1=TEXTS[0], text_2=TEXTS)
        wanted = [door.wanted_score(TEXTS[0], text) for text in TEXTS]
        np.testing.assert_allclose([each["score"] for each in response.json()["data"]], wanted, atol=CLOSE)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("/v1/score", {"text_1": [], "text_2": ["a"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["a", ""]}, "text_2"),
        ("/v1/score", {"text_1": 1, "text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": ["a", None]}, "text_2"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "cat " * 30}, "text_2"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [1]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "cat " * 30, "documents": ["b"]}, "query"),
    ],
)
async def test_pairs_that_cannot_be_are_a_400_that_names_the_field(
    door: Door, path: str, body: Any, param: str
) -> None:
    response = await door.post(path, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_each_model_is_asked_only_for_what_it_does(door: Door) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        error = (await door.post(path, **body)).json()["error"]
        assert (error["param"], error["code"]) == ("model", "unsupported_feature")
        assert "generates no text" in error["message"]


async def test_a_model_with_a_head_makes_no_embeddings(reranker: Door) -> None:
    response = await reranker.post("/v1/embeddings", input="a")
    assert response.status_code == 400
    assert "scores pairs of texts and makes no embeddings" in response.json()["error"]["message"]


async def test_requests_are_counted_by_task_and_outcome_and_names_that_are_none_are_not(tmp_path: Path) -> None:
    async with serve(tmp_path, max_seq_length=16) as door:
        await door.vectors(input=TEXTS)
        await door.post("/v1/rerank", query=TEXTS[0], documents=TEXTS)
        await door.post("/v1/score", text_1=TEXTS[0], text_2=["cat " * 30])
        await door.post("/v1/embeddings", model="other", input="a")
        shown = await door.metrics()
    counted = {
        line.split("{")[1].split("}")[0]: float(line.rsplit(" ", 1)[1])
        for line in shown.splitlines()
        if line.startswith(("headway_encoder_requests_total{", "headway_encoder_prompt_tokens_total{"))
    }
    num_tokens = sum(len(door.library.encode(text).ids) for text in TEXTS)
    assert counted == {
        'model_name="m",outcome="success",task="embeddings"': 1,
        'model_name="m",outcome="success",task="rerank"': 1,
        'model_name="m",outcome="error",task="score"': 1,
        'model_name="m",task="embeddings"': num_tokens,
        'model_name="m",task="rerank"': num_tokens + len(door.library.encode(TEXTS[0]).ids),
    }
