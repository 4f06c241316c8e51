"""/v1/embeddings of small random encoders, by `headway serve` and the official client; right values by transformers."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from e2e.serving import Server, start_server, stop_server
from parity.encoders import make_tokenizer, reference_vector, save_encoder

CLOSE = 2e-3
WIDTH, MAX_TOKENS = 64, 24
TEXTS = ["the cat sat on the mat", "a dog ran", "stock markets fell today"]


class Door:
    """A served encoder and what its vectors must be."""

    def __init__(self, server: Server, model: Any) -> None:
        self.server, self._model, self._library = server, model, make_tokenizer()

    def post(self, **fields: Any) -> Any:
        response = self.server.post("/v1/embeddings", {"model": "encoder", **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, **fields: Any) -> Any:
        response = self.server.post("/v1/embeddings", {"model": "encoder", **fields})
        assert response.status_code == 400, response.text
        return response.json()["error"]

    def ids(self, text: str) -> list[int]:
        return list(self._library.encode(text).ids)

    def wanted(self, text: str) -> np.ndarray:
        return reference_vector(self._model, self.ids(text))


@pytest.fixture(scope="module", params=[None, [8, 32]], ids=["one width", "made for shorter ones"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("model")
    more = {} if request.param is None else {"matryoshka_dimensions": request.param}
    model = save_encoder(folder, max_seq_length=MAX_TOKENS, more=more)
    flags = ("--served-model-name", "encoder", "--threads", "1", "--max-num-seqs", "4")
    server = start_server(tmp_path_factory.mktemp("serve"), *flags, model=str(folder))
    yield Door(server, model)
    assert stop_server(server) == 0, server.describe()


@pytest.mark.case("emb-b64-01")
def test_base64_is_little_endian_float32_of_the_models_width_and_the_clients_default(door: Door) -> None:
    told = [door.post(input=TEXTS[0], encoding_format=name)["data"][0]["embedding"] for name in ("base64", "float")]
    decoded = np.frombuffer(base64.b64decode(told[0], validate=True), "<f4")
    assert decoded.shape == (WIDTH,)
    np.testing.assert_allclose(decoded, told[1], atol=1e-6)
    np.testing.assert_allclose(decoded, door.wanted(TEXTS[0]), atol=CLOSE)
    assert door.post(input=TEXTS[0])["data"][0]["embedding"] == told[1]
    with openai.OpenAI(base_url=door.server.url + "/v1", api_key="none", max_retries=0) as client:
        for asked in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            vector = client.embeddings.create(model="encoder", input=TEXTS[0], **asked).data[0].embedding
            found = vector if isinstance(vector, list) else np.frombuffer(base64.b64decode(vector), "<f4")
            np.testing.assert_allclose(found, decoded, atol=1e-6)
    for name in ("int8", "BASE64", "ubinary", "", 5):
        assert door.refused(input="a", encoding_format=name)["param"] == "encoding_format"


@pytest.mark.case("emb-dims-02")
def test_shorter_vectors_are_normalised_again_or_refused(door: Door, request: pytest.FixtureRequest) -> None:
    whole = np.array(door.post(input=TEXTS[0])["data"][0]["embedding"])
    widths = request.node.callspec.params["door"] or []
    for width in (8, 32):
        if width in widths:
            (made,) = door.post(input=TEXTS[0], dimensions=width)["data"]
            wanted = whole[:width] / np.linalg.norm(whole[:width])
            np.testing.assert_allclose(made["embedding"], wanted, atol=1e-6)
        else:
            assert door.refused(input="a", dimensions=width)["param"] == "dimensions"
    assert len(door.post(input="a", dimensions=WIDTH)["data"][0]["embedding"]) == WIDTH
    for wrong in (0, -1, WIDTH + 1, 9, 8.0, "8", True, 2**40):
        error = door.refused(input="a", dimensions=wrong)
        assert error["param"] == "dimensions"
        if wrong == WIDTH + 1:
            assert f"{WIDTH}" in error["message"]


@pytest.mark.case("emb-inputs-03")
def test_inputs_are_texts_or_ids_in_their_order_and_usage_is_their_sum(door: Door) -> None:
    body = door.post(input=TEXTS)
    assert [each["index"] for each in body["data"]] == [0, 1, 2]
    for each, text in zip(body["data"], TEXTS, strict=True):
        np.testing.assert_allclose(each["embedding"], door.wanted(text), atol=CLOSE)
    num_tokens = sum(len(door.ids(text)) for text in TEXTS)
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    by_text = [each["embedding"] for each in body["data"]]
    ids = [door.ids(text) for text in TEXTS]
    assert [each["embedding"] for each in door.post(input=ids)["data"]] == by_text
    assert [each["embedding"] for each in door.post(input=ids[1])["data"]] == by_text[1:2]
    with openai.OpenAI(base_url=door.server.url + "/v1", api_key="none", max_retries=0) as client:
        data = client.embeddings.create(model="encoder", input=TEXTS[::-1]).data
        np.testing.assert_allclose([each.embedding for each in data], by_text[::-1], atol=1e-6)


@pytest.mark.case("emb-inputs-03")
@pytest.mark.parametrize("wrong", ["", [], [""], ["a", ""], [[]], [[5], []], ["a", 5], [5, "a"], [5.5], None, 7, {}])
def test_inputs_of_nothing_and_mixed_ones_are_refused(door: Door, wrong: Any) -> None:
    assert door.refused(input=wrong)["param"].startswith("input")


@pytest.mark.case("emb-inputs-03")
def test_one_long_text_refuses_its_request_with_both_numbers_unless_it_may_be_cut(door: Door) -> None:
    long = "cat " * 40
    error = door.refused(input=["a", long, "b"])
    assert error["param"] == "input[1]"
    assert str(len(door.ids(long))) in error["message"]
    assert str(MAX_TOKENS) in error["message"]
    cut = door.post(input=["a", long], truncate_prompt_tokens=-1)
    assert cut["usage"]["prompt_tokens"] == len(door.ids("a")) + MAX_TOKENS
    assert door.post(input=["a"])["data"][0]["embedding"] == cut["data"][0]["embedding"]
