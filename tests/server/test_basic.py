"""The plain routes and the counting of tokens."""

from typing import Any

import httpx2
import pytest
from tests.server.conftest import FakeService, say, sse


async def test_one_prompt_gives_one_text_without_the_prompt(client: httpx2.AsyncClient, service: FakeService) -> None:
    response = await client.post("/basic_generate", json={"prompt": "Say"})
    assert response.json() == {"generated_text": "Hello!"}
    assert service.requests[0].model == "m"
    assert service.requests[0].sampling.max_tokens == 20


async def test_the_prompt_comes_first_when_it_is_asked_for(client: httpx2.AsyncClient) -> None:
    full = {"return_full_text": True}
    assert (await client.post("/basic_generate", json={"prompt": "Say "} | full)).json() == {
        "generated_text": "Say Hello!"
    }
    assert (await client.post("/generate", json={"prompts": ["1 ", "2 "], "n": 2} | full)).json() == {
        "generated_texts": ["1 Hello!", "1 Hello!", "2 Hello!", "2 Hello!"]
    }
    events = sse((await client.post("/generate_stream", json={"prompt": "Say "} | full)).text)
    assert "".join(event["token"] for event in events[:-1]) == "Say Hello!"


async def test_prompts_give_texts_in_their_order(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda request: say(*request.prompt.text)(request)  # type: ignore[union-attr]
    prompts = ["one", "a much longer one", "é"]
    assert (await client.post("/generate", json={"prompts": prompts})).json() == {"generated_texts": prompts}


async def test_a_stream_says_what_each_choice_gains(client: httpx2.AsyncClient) -> None:
    events = sse((await client.post("/generate_stream", json={"prompt": "x", "n": 2})).text)
    assert events == [
        *({"token": text, "sequence_id": choice} for text in ("Hel", "lo", "!") for choice in (0, 1)),
        "[DONE]",
    ]


async def test_the_sampling_fields_are_taken(client: httpx2.AsyncClient, service: FakeService) -> None:
    fields = {"temperature": 0, "max_tokens": 3, "stop": ["x"], "seed": 1, "logit_bias": {"5": 1}}
    await client.post("/basic_generate", json={"prompt": "x"} | fields)
    sampling = service.requests[0].sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.stop, sampling.seed) == (0, 3, ("x",), 1)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "  a\né😀"}, [256, *"  a\né😀".encode()]),
        ({"prompt": "  a\né😀", "add_special_tokens": False}, [*"  a\né😀".encode()]),
        ({"prompt": "", "add_special_tokens": False}, []),
        ({"messages": [{"role": "user", "content": "hi"}]}, [256, *b"hi"]),
        ({"model": "m", "prompt": "x"}, [256, 120]),
    ],
)
async def test_tokenize_tells_ids_their_number_and_the_limit(
    client: httpx2.AsyncClient, body: dict[str, Any], tokens: list[int]
) -> None:
    response = await client.post("/tokenize", json=body)
    assert response.json() == {"count": len(tokens), "max_model_len": 2048, "tokens": tokens}


async def test_tokenize_tells_the_tokens_texts_when_asked(client: httpx2.AsyncClient) -> None:
    response = await client.post("/tokenize", json={"prompt": "hi", "return_token_strs": True})
    assert response.json()["token_strs"] == ["<s>", "h", "i"]


async def test_what_was_tokenized_comes_back(client: httpx2.AsyncClient) -> None:
    text = "  a\né😀"
    tokens = (await client.post("/tokenize", json={"prompt": text, "add_special_tokens": False})).json()["tokens"]
    assert (await client.post("/detokenize", json={"tokens": tokens})).json() == {"prompt": text}
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_the_count_is_what_the_same_chat_is_billed(client: httpx2.AsyncClient) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "how long?"}]
    count = (await client.post("/tokenize", json={"messages": messages})).json()["count"]
    answer = (await client.post("/v1/chat/completions", json={"model": "m", "messages": messages})).json()
    assert count == answer["usage"]["prompt_tokens"]
