"""Fields of requests at OpenAI's and vLLM's places: what the service is asked, and what the answer tells."""

from typing import Any

import httpx2
import pytest
from tests.server.conftest import CHAT, COMPLETION, FakeService, sse

from headway.core.request import ChatPrompt

FIELDS = {
    "bad_words": ["no", "never"],
    "allowed_token_ids": [5, 6],
    "max_length": 900,
    "truncate_prompt_tokens": -1,
    "priority": -3,
    "cache_salt": "mine",
}
LAST = {"role": "assistant", "content": "OK!\n"}
CONTINUED = CHAT | {"messages": [{"role": "user", "content": "Joke?"}, LAST], "continue_final_message": True}


async def ask(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return sse(response.text) if body.get("stream") else response.json()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"user": "ann"}),
        ("/v1/completions", COMPLETION | {"user": "ann"}),
        ("/basic_generate", {"prompt": "abc"}),
        ("/generate", {"prompts": ["abc"]}),
        ("/generate_stream", {"prompt": "abc"}),
    ],
)
async def test_every_text_route_hands_the_fields_on(
    client: httpx2.AsyncClient, service: FakeService, path: str, body: dict[str, Any]
) -> None:
    response = await client.post(path, json=body | FIELDS)
    assert response.status_code == 200, response.text
    (request,) = service.requests
    assert request.sampling.bad_words == ("no", "never")
    assert request.sampling.allowed_token_ids == [5, 6]
    assert (request.sampling.max_length, request.sampling.max_tokens) == (900, None)
    assert request.sampling.truncate_prompt_tokens == -1
    assert (request.priority, request.cache_salt, request.tenant) == (-3, "mine", body.get("user", ""))


async def test_without_them_nothing_is_asked_for(client: httpx2.AsyncClient, service: FakeService) -> None:
    await ask(client, "/v1/completions", COMPLETION)
    (request,) = service.requests
    assert (request.priority, request.cache_salt, request.tenant) == (0, "", "")
    assert request.sampling.allowed_token_ids is request.sampling.prompt_logprobs is request.sampling.max_length is None


async def test_a_chat_continues_its_last_message_and_echoes_it_if_asked(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    body = CONTINUED | {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False}
    plain = await ask(client, "/v1/chat/completions", body)
    prompt = service.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)
    assert prompt.template_kwargs == {"enable_thinking": False}
    assert plain["choices"][0]["message"]["content"] == "Hello!"
    echoed = await ask(client, "/v1/chat/completions", CONTINUED | {"echo": True, "n": 2})
    assert [choice["message"]["content"] for choice in echoed["choices"]] == ["OK!\nHello!"] * 2
    events = await ask(client, "/v1/chat/completions", CONTINUED | {"echo": True, "n": 2, "stream": True})
    for index in range(2):
        deltas = [c["delta"] for e in events[:-1] for c in e["choices"] if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(delta.get("content", "") for delta in deltas) == "OK!\nHello!"


async def test_an_echo_is_the_prompt_before_the_text(client: httpx2.AsyncClient, service: FakeService) -> None:
    body = {"model": "m", "prompt": ["ab", "c"], "n": 2, "echo": True}
    whole = await ask(client, "/v1/completions", body)
    assert [choice["text"] for choice in whole["choices"]] == ["abHello!"] * 2 + ["cHello!"] * 2
    assert service.requests[0].sampling.prompt_logprobs is None
    events = await ask(client, "/v1/completions", body | {"stream": True})
    texts = ["".join(c["text"] for e in events[:-1] for c in e["choices"] if c["index"] == i) for i in range(4)]
    assert texts == [choice["text"] for choice in whole["choices"]]


async def test_an_echo_with_logprobs_has_the_prompts_too_with_offsets_into_the_text(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    """The prompt's ids are 256, which is in no text, and bytes."""
    body = COMPLETION | {"prompt": "ab", "echo": True, "logprobs": 1}
    choice = (await ask(client, "/v1/completions", body))["choices"][0]
    assert service.requests[0].sampling.prompt_logprobs == 1
    assert choice["text"] == "abHello!"
    assert choice["logprobs"] == {
        "tokens": ["<s>", "a", "b", "Hel", "lo", "!"],
        "token_logprobs": [None, -1.0, -2.0, -0.5, -0.5, -0.5],
        "top_logprobs": [
            None,
            {"\t": -0.25, "a": -1.0},
            {"\t": -0.25, "b": -2.0},
            *({w: -0.5} for w in ("Hel", "lo", "!")),
        ],
        "text_offset": [0, 0, 1, 2, 5, 7],
    }
    assert "prompt_logprobs" not in choice
    events = await ask(client, "/v1/completions", body | {"stream": True})
    parts = [c["logprobs"] for e in events[:-1] for c in e["choices"] if c["logprobs"]]
    for name, values in choice["logprobs"].items():
        assert [value for part in parts for value in part[name]] == values


async def test_an_echo_without_an_output_asks_for_none(client: httpx2.AsyncClient, service: FakeService) -> None:
    await ask(client, "/v1/completions", COMPLETION | {"echo": True, "max_tokens": 0})
    sampling = service.requests[0].sampling
    assert (sampling.max_tokens, sampling.prompt_logprobs) == (0, 0)


async def test_prompt_logprobs_are_vllms_in_each_completion_and_once_in_a_chat(client: httpx2.AsyncClient) -> None:
    answer = await ask(client, "/v1/completions", {"model": "m", "prompt": ["a", "b"], "prompt_logprobs": 1})
    first, second = (choice["prompt_logprobs"] for choice in answer["choices"])
    assert first == [
        None,
        {
            "97": {"logprob": -1.0, "rank": None, "decoded_token": "a"},
            "9": {"logprob": -0.25, "rank": 1, "decoded_token": "\t"},
        },
    ]
    assert second[1].keys() == {"98", "9"}
    assert [choice["text"] for choice in answer["choices"]] == ["Hello!"] * 2
    chat = await ask(client, "/v1/chat/completions", CHAT | {"prompt_logprobs": 0})
    assert chat["prompt_logprobs"][0] is None
    assert all(len(each) == 1 for each in chat["prompt_logprobs"][1:])
    assert "prompt_logprobs" not in await ask(client, "/v1/chat/completions", CHAT)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "is image_url"),
        ({"type": "input_audio", "input_audio": {}}, "is input_audio"),
        ({"type": "secret words"}, "is no type of this API"),
    ],
)
async def test_parts_that_are_no_text_are_refused_by_name(client: httpx2.AsyncClient, part: Any, words: str) -> None:
    body = CHAT | {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert words in error["message"]
    assert "secret" not in error["message"]
    assert error["param"] == "messages[0].content[1].type"


async def test_chats_are_counted_as_they_are_continued(client: httpx2.AsyncClient, service: FakeService) -> None:
    body = {"messages": CONTINUED["messages"], "continue_final_message": True, "add_generation_prompt": True}
    assert (await client.post("/tokenize", json=body)).status_code == 400
    del body["add_generation_prompt"]
    assert (await client.post("/tokenize", json=body)).status_code == 200
