"""Bodies that say what cannot be: a 400 that names the field, in OpenAI's shape, and a server that goes on."""

import threading
from typing import Any

import pytest

from cases.asking import CHAT, COMPLETIONS, answer, ask, chunks, post_raw, refused, text_of
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
    common: dict[str, Any] = {"max_tokens": True, "n": "2", "seed": 1.5, "temperature": "1", "top_k": True, "stop": 1}
    common |= {"ignore_eos": 1, "logit_bias": {"97": True}, "stop_token_ids": [True], "min_tokens": "1"}
    bodies: dict[str, dict[str, Any]] = {"/generate": {"prompts": ["x"]}}
    bodies |= {path: {"prompt": "x"} for path in (COMPLETIONS, "/basic_generate", "/generate_stream")}
    for path, body in bodies.items():
        for field, value in common.items():
            response = server.post(path, {"model": "tiny", **body, field: value})
            error = response.json()["error"]
            assert (response.status_code, error["param"].startswith(field)) == (400, True), (path, error)


@pytest.mark.case("numeric-str-13")
def test_numbers_are_numbers_and_in_their_range(server: Server) -> None:
    refused(server, "max_tokens", max_tokens=16.5)
    refused(server, "seed", seed="7")
    for value in (-1, 21):
        refused(server, "top_logprobs", logprobs=True, top_logprobs=value)
    refused(server, "max_tokens", max_tokens=4.0)  # 16.0 is no integer, on all routes
    for text in ("NaN", "Infinity", "1e400"):
        raw = f'{{"model":"tiny","messages":[{{"role":"user","content":"a"}}],"temperature":{text}}}'
        response = post_raw(server, raw)
        assert response.status_code == 400, text


@pytest.mark.case("empty-model-08")
def test_an_empty_model_is_none(server: Server) -> None:
    assert "GET /v1/models" in refused(server, "model", model="")
    assert "tiny" in ask(server, model="tiny ").json()["error"]["message"]


@pytest.mark.case("unknown-field-11")
def test_unknown_fields_are_refused_and_openais_idle_ones_taken(server: Server) -> None:
    assert "foo" in refused(server, "foo", foo=1)
    known = {"store": True, "metadata": {}, "service_tier": "auto", "user": "u", "prompt_cache_key": "k"}
    assert answer(server, **known, verbosity="low")["usage"]["completion_tokens"] == 4


LONE = "a\\ud800b"
ROUTES_OF_TEXT = [
    (CHAT, f'"messages":[{{"role":"user","content":"{LONE}"}}]'),
    (CHAT, f'"messages":[{{"role":"user","content":[{{"type":"text","text":"{LONE}"}}]}}]'),
    (CHAT, f'"messages":[{{"role":"user","content":"x","name":"{LONE}"}}]'),
    (CHAT, f'"messages":[{{"role":"{LONE}","content":"x"}}]'),
    (CHAT, f'"messages":[{{"role":"user","content":"x"}}],"{LONE}":1'),
    (CHAT, f'"messages":[{{"role":"user","content":"x"}}],"chat_template_kwargs":{{"enable_thinking":"{LONE}"}}'),
    (COMPLETIONS, f'"prompt":"{LONE}"'),
    (COMPLETIONS, f'"prompt":["x","{LONE}"]'),
    (COMPLETIONS, f'"prompt":"x","stop":["{LONE}"]'),
    (COMPLETIONS, f'"prompt":"x","bad_words":"{LONE}"'),
    (COMPLETIONS, f'"prompt":"x","user":"{LONE}"'),
    (COMPLETIONS, f'"prompt":"x","cache_salt":"{LONE}"'),
    (COMPLETIONS, f'"prompt":"x","logit_bias":{{"{LONE}":1}}'),
    ("/basic_generate", f'"prompt":"{LONE}"'),
    ("/generate", f'"prompts":["{LONE}"]'),
    ("/generate_stream", f'"prompt":"{LONE}"'),
    ("/tokenize", f'"prompt":"{LONE}"'),
    ("/v1/embeddings", f'"input":"{LONE}"'),
    ("/v1/rerank", f'"query":"{LONE}","documents":["x"]'),
]


@pytest.mark.case("surrogate-12")
@pytest.mark.parametrize(("path", "field"), ROUTES_OF_TEXT)
def test_lone_surrogates_are_a_400_in_every_text_of_every_route(server: Server, path: str, field: str) -> None:
    for more in ("", ',"stream":true'):
        for model in ("tiny", LONE):
            response = post_raw(server, f'{{"model":"{model}",{field}{more}}}', path)
            message = response.json()["error"]["message"]
            assert (response.status_code, "no valid JSON" in message) == (400, True), message
            assert "Error" not in message


@pytest.mark.case("err-shape-07")
def test_errors_have_openais_shape(server: Server) -> None:
    response = post_raw(server, "{")
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


MANY = 2000


@pytest.mark.case("err-amplify-06")
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": 1, "content": "secret" * 50}] * MANY}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "secret" * 50}]}] * MANY}),
        (CHAT, {"messages": [{"role": "user", "content": "x", "wrong": "secret"}] * MANY}),
        (COMPLETIONS, {"prompt": [["secret"]] * MANY}),
        (COMPLETIONS, {"stop": [{"x": "secret"}] * MANY}),
        (COMPLETIONS, {"logit_bias": {f"word{number}": "secret" for number in range(MANY)}}),
        (COMPLETIONS, {"logit_bias": {str(number): "secret" for number in range(MANY)}}),
        (COMPLETIONS, {"allowed_token_ids": ["secret"] * MANY}),
        (COMPLETIONS, {"seed": "secret" * 10_000}),
        (COMPLETIONS, {f"{number}" * 3000: "secret" for number in range(MANY // 10)}),
    ],
)
def test_many_wrong_items_make_one_short_error_without_their_words(
    server: Server, path: str, fields: dict[str, Any]
) -> None:
    response = ask(server, path, **fields)
    assert response.status_code == 400
    assert len(response.content) < 1000
    assert "secret" not in response.json()["error"]["message"]


@pytest.mark.case("tool-empty-list-08")
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("response_format", ["json", 5]),
        ("functions", [[], [{"name": "f"}]]),
        ("function_call", ["auto", {"name": "f"}]),
        ("guided_json", [{}]),
        ("structured_outputs", [{}, {"json": {}, "regex": "a"}]),
        ("reasoning_effort", ["low"]),
    ],
)
def test_what_is_not_there_is_refused_by_its_name(server: Server, name: str, values: list[Any]) -> None:
    for value in values:
        for stream in (False, True):
            refused(server, name, **{name: value}, stream=stream)
    assert answer(server, response_format={"type": "text"})["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    "path",
    ["/v1/batches", "/v1/audio/transcriptions", "/v1/load_lora_adapter"],
)
def test_routes_that_are_not_there_are_a_404_in_our_shape(server: Server, path: str) -> None:
    response = server.post(path, {"model": "tiny", "input": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
