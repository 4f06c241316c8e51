"""POST /v1/chat/completions: the shapes of its answers, whole and streamed, as OpenAI documents them."""

import asyncio
from typing import Any

import httpx2
import pytest
from tests.server.conftest import CHAT, FakeService, say, sse, token

from headway.core.output import Logprob, TextDelta, TokenLogprob
from headway.core.request import ChatPrompt
from headway.errors import ContextLengthExceeded, InternalError, NonFiniteLogits, QueueFull, TemplateRefused, WorkerDied

URL = "/v1/chat/completions"


async def stream(client: httpx2.AsyncClient, **fields: Any) -> list[Any]:
    response = await client.post(URL, json=CHAT | {"stream": True} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return sse(response.text)


async def test_an_answer_has_every_field_of_openais(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.num_cached_tokens = 2
    answer = (await client.post(URL, json=CHAT)).json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0, "forced_tokens": 0},
        },
    }
    assert not service.open
    assert not service.aborted


async def test_a_stream_is_role_then_content_then_end_then_usage_then_done(client: httpx2.AsyncClient) -> None:
    events = await stream(client, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    chunks = events[:-1]
    for field in ("id", "created", "model", "object"):
        assert len({chunk[field] for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        *(
            [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]
            for text in ("Hel", "lo", "!")
        ),
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        [],
    ]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 5
    assert chunks[-1]["usage"]["total_tokens"] == 6


async def test_a_stream_without_the_option_has_no_usage(client: httpx2.AsyncClient) -> None:
    for fields in ({}, {"stream_options": {"include_usage": False}}):
        assert all("usage" not in chunk for chunk in (await stream(client, **fields))[:-1])


async def test_each_of_n_choices_has_its_role_its_text_and_one_end(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = lambda _: [
        token(1, "b"),
        token(0, "a"),
        token(2, "", finish_reason="length"),
        token(1, "B", finish_reason="stop", stop_reason="x"),
        token(0, "A"),
        token(0, "", finish_reason="stop"),
    ]
    answer = (await client.post(URL, json=CHAT | {"n": 3})).json()
    assert [c["message"]["content"] for c in answer["choices"]] == ["aA", "bB", ""]
    assert [(c["index"], c["finish_reason"], c["stop_reason"]) for c in answer["choices"]] == [
        (0, "stop", None),
        (1, "stop", "x"),
        (2, "length", None),
    ]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 6
    events = await stream(client, n=3, stream_options={"include_usage": True})
    assert events[-2]["usage"] == answer["usage"]
    for index, text in enumerate(["aA", "bB", ""]):
        choices = [c for event in events[:-2] for c in event["choices"] if c["index"] == index]
        assert "role" in choices[0]["delta"]
        assert all("role" not in choice["delta"] for choice in choices[1:])
        assert "".join(choice["delta"].get("content", "") for choice in choices) == text
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == [
            answer["choices"][index]["finish_reason"]
        ]


LOGPROB_ROWS = [
    TextDelta(0, "", (1,), (TokenLogprob(Logprob(1, "�", b"\xf0\x9f", -0.25), (Logprob(2, "a", b"a", -1.0),)),)),
    TextDelta(
        0,
        "👋",
        (3,),
        (TokenLogprob(Logprob(3, "�", b"\x91\x8b", float("-inf")), (Logprob(3, "�", b"\x91\x8b", float("-inf")),)),),
        finish_reason="length",
    ),
]


async def test_logprobs_have_raw_bytes_and_are_the_same_streamed(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = lambda _: LOGPROB_ROWS
    fields = {"logprobs": True, "top_logprobs": 1}
    choice = (await client.post(URL, json=CHAT | fields)).json()["choices"][0]
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "�",
                "logprob": -0.25,
                "bytes": [0xF0, 0x9F],
                "top_logprobs": [{"token": "a", "logprob": -1.0, "bytes": [97]}],
            },
            {
                "token": "�",
                "logprob": -9999.0,
                "bytes": [0x91, 0x8B],
                "top_logprobs": [{"token": "�", "logprob": -9999.0, "bytes": [0x91, 0x8B]}],
            },
        ],
        "refusal": None,
    }
    joined = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
    assert joined.decode() == choice["message"]["content"]
    chunks = [event["choices"][0] for event in (await stream(client, **fields))[:-1]]
    streamed = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert streamed == choice["logprobs"]["content"]


async def test_logprobs_without_a_number_have_no_alternatives(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda request: [
        TextDelta(0, "x", (1,), (TokenLogprob(Logprob(1, "x", b"x", -0.5)),) if request.sampling.logprobs == 0 else ())
    ]
    for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": None}, {"logprobs": True, "top_logprobs": 0}):
        choice = (await client.post(URL, json=CHAT | fields)).json()["choices"][0]
        assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[]], fields


async def test_ids_are_told_when_they_are_asked_for(client: httpx2.AsyncClient) -> None:
    answer = (await client.post(URL, json=CHAT | {"return_token_ids": True})).json()
    assert answer["prompt_token_ids"] == [256, *b"hi"]
    assert answer["choices"][0]["token_ids"] == [7, 7, 7]
    events = await stream(client, return_token_ids=True)
    assert [event["prompt_token_ids"] for event in events[:-1] if "prompt_token_ids" in event] == [[256, *b"hi"]]
    assert [i for e in events[:-1] for c in e["choices"] for i in c.get("token_ids", [])] == [7, 7, 7]


async def test_fields_reach_the_service_and_models_defaults_fill_the_rest(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.defaults = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "do_sample": True}
    given = {
        "temperature": 0,
        "top_k": None,
        "seed": 5,
        "stop": "END",
        "logit_bias": {"7": -100},
        "stop_token_ids": [3],
        "min_tokens": 1,
        "max_completion_tokens": 8,
        "n": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "timeout_s": 2,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "logprobs": True,
        "top_logprobs": 4,
        "prompt_logprobs": 3,
        "allowed_token_ids": [1, 2],
        "bad_words": "no",
        "max_length": 99,
        "truncate_prompt_tokens": 20,
    }
    await client.post(URL, json=CHAT | given)
    sampling = service.requests[0].sampling
    told = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    assert {"n", "top_p", "stop", "logit_bias"} <= set(told.pop("given"))
    assert told == {
        "n": 2,
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "seed": 5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.1,
        "logit_bias": {7: -100.0},
        "stop_token_ids": [3],
        "ignore_eos": True,
        "min_tokens": 1,
        "max_tokens": 8,
        "logprobs": 4,
        "prompt_logprobs": 3,
        "allowed_token_ids": [1, 2],
        "bad_token_ids": [],
        "bad_words": ("no",),
        "max_length": 99,
        "lowers_max_tokens": False,
        "truncate_prompt_tokens": 20,
        "stop": ("END",),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "timeout_s": 2.0,
        "constraint": None,
        "structured_outputs": None,
        "thinking_token_budget": None,
    }


async def test_max_tokens_is_the_rest_of_the_context_unless_it_is_said(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    for fields, wanted in (({}, None), ({"max_tokens": 3}, 3), ({"max_completion_tokens": 4}, 4)):
        await client.post(URL, json=CHAT | fields)
        assert service.requests[-1].sampling.max_tokens == wanted


async def test_messages_reach_the_template_as_plain_texts(client: httpx2.AsyncClient, service: FakeService) -> None:
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {"role": "assistant", "content": None},
    ]
    await client.post(URL, json=CHAT | {"messages": messages, "add_generation_prompt": False})
    prompt = service.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": ""},
    ]
    assert prompt.add_generation_prompt is False


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextLengthExceeded("the prompt has 2148 tokens, the context 2048"), 400, "context_length_exceeded"),
        (TemplateRefused("roles must alternate", param="messages"), 400, "chat_template_error"),
        (QueueFull("8 wait, at most 8", retry_after_s=2.5), 503, "queue_full"),
        (WorkerDied("exit code -9; Traceback: secret"), 503, "worker_died"),
        (ValueError("secret"), 500, "internal_error"),
    ],
)
async def test_a_refusal_is_a_status_streamed_or_not(
    client: httpx2.AsyncClient, service: FakeService, is_stream: bool, error: Exception, status: int, code: str
) -> None:
    service.refusal = error
    response = await client.post(URL, json=CHAT | {"stream": is_stream})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert "secret" not in response.text
    if status == 400:
        assert str(error) in response.text
    if status == 503:
        assert response.headers["retry-after"] in ("1", "3")
    service.refusal = None
    assert (await client.post(URL, json=CHAT)).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NonFiniteLogits("the model computed NaN at position 5"), 500, "non_finite_logits"),
        (InternalError("KeyError: 'secret'"), 500, "internal_error"),
        (RuntimeError("secret"), 500, "internal_error"),
    ],
)
async def test_an_error_on_the_way_ends_that_request_alone(
    client: httpx2.AsyncClient, service: FakeService, error: Exception, status: int, code: str
) -> None:
    other = asyncio.Event()
    ok = say("fine")
    service.script = lambda r: (
        [token(0, "a"), token(0, "b"), error]
        if r.sampling.seed == 1
        else [other, *ok(r)]  # the other one runs meanwhile
    )
    running = asyncio.ensure_future(client.post(URL, json=CHAT))
    await service.wait_until(lambda: bool(service.open))
    events = await stream(client, seed=1)
    assert [e["choices"][0]["delta"].get("content") for e in events[:3]] == ["", "a", "b"]
    assert events[3]["error"]["code"] == code
    assert events[4:] == ["[DONE]"]
    response = await client.post(URL, json=CHAT | {"seed": 1})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert "secret" not in response.text + str(events)
    other.set()
    assert (await running).json()["choices"][0]["message"]["content"] == "fine"
    assert not service.open
