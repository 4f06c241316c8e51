"""Bodies that say what cannot be: a 400 that names the field, in OpenAI's shape, and a server that goes on."""

import threading
from typing import Any

import httpx2
import pytest

from cases.asking import CHAT, COMPLETIONS, answer, ask, chunks, refused, text_of
from e2e.serving import Server


@pytest.mark.case("logitbias-oov-01")
def test_a_bias_of_no_token_is_refused(server: Server) -> None:
    refused(server, "logit_bias", logit_bias={"99999999": 5, "-1": 5})
    assert server.get("/health").status_code == 200


@pytest.mark.case("logitbias-key-02")
def test_a_bias_of_a_word_is_refused(server: Server) -> None:
    refused(server, "logit_bias", logit_bias={"AI": -100})
    assert text_of(answer(server, COMPLETIONS)["choices"][0]) == "cdef"


@pytest.mark.case("stop-empty-03")
def test_an_empty_stop_string_is_refused_and_an_empty_list_is_none(server: Server) -> None:
    for stop in ([], None):
        assert text_of(answer(server, COMPLETIONS, stop=stop)["choices"][0]) == "cdef"
    for path in (CHAT, COMPLETIONS):
        refused(server, "stop", path=path, stop=[""])


@pytest.mark.case("usage-bool-03")
def test_stream_options_are_checked_on_all_routes(server: Server) -> None:
    for path in (CHAT, COMPLETIONS):
        refused(server, "stream_options.include_usage", path, stream=True, stream_options={"include_usage": "yes"})
        refused(server, "stream_options", path, stream_options={"include_usage": True})


@pytest.mark.case("comp-prompts-02")
def test_prompts_of_nothing_and_mixed_lists_are_refused(server: Server) -> None:
    for prompt in ("", [], [""], [[]], [1, "a"], None):
        refused(server, "prompt", path=COMPLETIONS, prompt=prompt)


@pytest.mark.case("bool-as-int-10")
def test_types_are_strict(server: Server) -> None:
    wrong = {"max_tokens": True, "n": False, "top_logprobs": "3", "seed": True, "stream": "true"}
    for field, value in wrong.items():
        refused(server, field, **({"logprobs": True} if field == "top_logprobs" else {}) | {field: value})


@pytest.mark.case("numeric-str-13")
def test_numbers_are_numbers_and_in_their_range(server: Server) -> None:
    refused(server, "max_tokens", max_tokens=16.5)
    refused(server, "seed", seed="7")
    for value in (-1, 21):
        refused(server, "top_logprobs", logprobs=True, top_logprobs=value)
    refused(server, "max_tokens", max_tokens=4.0)  # 16.0 is no integer, on all routes
    for text in ("NaN", "Infinity", "1e400"):
        raw = f'{{"model":"tiny","messages":[{{"role":"user","content":"a"}}],"temperature":{text}}}'
        response = httpx2.post(server.url + CHAT, content=raw, headers={"Content-Type": "application/json"})
        assert response.status_code == 400, text


@pytest.mark.case("empty-model-08")
def test_an_empty_model_is_none(server: Server) -> None:
    assert ask(server, model="").status_code in (400, 404)


@pytest.mark.case("unknown-field-11")
def test_unknown_fields_are_refused_and_openais_idle_ones_taken(server: Server) -> None:
    assert "foo" in refused(server, "foo", foo=1)
    known = {"store": True, "metadata": {}, "service_tier": "auto", "user": "u", "prompt_cache_key": "k"}
    assert answer(server, **known, verbosity="low")["usage"]["completion_tokens"] == 4


@pytest.mark.case("surrogate-12")
def test_lone_surrogates_are_a_400_on_every_route(server: Server) -> None:
    for stream in (False, True):
        for path, field in (
            (CHAT, '"messages":[{"role":"user","content":"a\\ud800b"}]'),
            (COMPLETIONS, '"prompt":"a\\ud800b"'),
        ):
            raw = f'{{"model":"tiny",{field},"max_tokens":2,"stream":{str(stream).lower()}}}'
            response = httpx2.post(server.url + path, content=raw, headers={"Content-Type": "application/json"})
            assert response.status_code == 400
            assert "Error" not in response.json()["error"]["message"]


@pytest.mark.case("err-shape-07")
def test_errors_have_openais_shape(server: Server) -> None:
    response = httpx2.post(server.url + CHAT, content="{", headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    unknown = ask(server, model="nosuch")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.case("tmpl-empty-messages-03")
def test_empty_messages_and_impossible_ids_are_refused(server: Server) -> None:
    refused(server, "messages", messages=[])
    assert server.post("/tokenize", {"model": "tiny", "messages": []}).status_code == 400
    assert server.post("/detokenize", {"model": "tiny", "tokens": [-1]}).status_code == 400


@pytest.mark.case("logitbias-oov-01")
def test_a_stream_goes_on_while_others_are_refused(server: Server) -> None:
    found: list[list[Any]] = []
    thread = threading.Thread(
        target=lambda: found.append(chunks(server, COMPLETIONS, max_tokens=200, ignore_eos=True, return_token_ids=True))
    )
    thread.start()
    for _ in range(20):
        refused(server, "logit_bias", logit_bias={"99999999": 5})
    thread.join(60)
    ids = [token for chunk in found[0] for choice in chunk["choices"] for token in choice.get("token_ids", [])]
    assert len(ids) == 200
