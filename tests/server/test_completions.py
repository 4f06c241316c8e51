"""POST /v1/completions: prompts in four forms, index = prompt * n + choice, and the older shape of logprobs."""

from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from tests.server.conftest import COMPLETION, FakeService, sse, token

from headway.core.output import Logprob, TextDelta, TokenLogprob
from headway.core.request import GenerateRequest, TextPrompt, TokensPrompt
from headway.errors import QueueFull

URL = "/v1/completions"


async def test_an_answer_has_every_field_of_openais(client: httpx2.AsyncClient, service: FakeService) -> None:
    answer = (await client.post(URL, json=COMPLETION)).json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": "m",
        "choices": [{"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "forced_tokens": 0},
        },
    }
    assert service.requests[0].sampling.max_tokens == 16


async def test_a_stream_is_texts_then_an_end_then_done(client: httpx2.AsyncClient) -> None:
    body = COMPLETION | {"stream": True, "stream_options": {"include_usage": True}}
    events = sse((await client.post(URL, json=body)).text)
    assert [[(c["text"], c["finish_reason"]) for c in e["choices"]] for e in events[:-1]] == [
        [("Hel", None)],
        [("lo", None)],
        [("!", None)],
        [("", "stop")],
        [],
    ]
    assert events[-2]["usage"]["completion_tokens"] == 3
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", [TextPrompt("a")]),
        ("", [TextPrompt("")]),
        (["a", "b", ""], [TextPrompt("a"), TextPrompt("b"), TextPrompt("")]),
        ([1, 2], [TokensPrompt([1, 2])]),
        ([[1, 2], [3]], [TokensPrompt([1, 2]), TokensPrompt([3])]),
    ],
)
async def test_a_prompt_is_text_texts_ids_or_lists_of_ids(
    client: httpx2.AsyncClient, service: FakeService, prompt: Any, prompts: list[Any]
) -> None:
    response = await client.post(URL, json=COMPLETION | {"prompt": prompt})
    assert response.status_code == 200
    assert [request.prompt for request in service.requests] == prompts
    assert len({request.request_id for request in service.requests}) == len(prompts)


def count_up(request: GenerateRequest) -> Sequence[TextDelta]:
    """Each choice says its prompt and its own number; prompts of different lengths take turns."""
    assert isinstance(request.prompt, TextPrompt)
    text, n = request.prompt.text, request.sampling.n
    rounds = [token(choice, text[0]) for _ in range(int(text)) for choice in range(n)]
    return [*rounds, *(token(choice, str(choice), finish_reason="stop") for choice in range(n))]


async def test_choice_i_of_prompt_p_has_the_index_p_n_plus_i(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = count_up
    body = COMPLETION | {"prompt": ["1", "3", "2"], "n": 2}
    answer = (await client.post(URL, json=body)).json()
    texts = ["10", "11", "3330", "3331", "220", "221"]
    assert [(c["index"], c["text"]) for c in answer["choices"]] == list(enumerate(texts))
    # Prompts are billed once each (BOS and one byte), choices all: 2 * (2 + 4 + 3).
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (6, 18)
    events = sse((await client.post(URL, json=body | {"stream": True, "stream_options": {"include_usage": True}})).text)
    choices = [c for e in events[:-1] for c in e["choices"]]
    assert ["".join(c["text"] for c in choices if c["index"] == i) for i in range(6)] == texts
    assert sorted(c["index"] for c in choices if c["finish_reason"]) == list(range(6))
    assert events[-2]["usage"] == answer["usage"]
    assert not service.open


async def test_one_refused_prompt_refuses_all_and_leaves_none_running(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    accept = service.generate

    async def generate(request: GenerateRequest) -> Any:
        if request.prompt == TextPrompt("3"):
            raise QueueFull("2 wait, at most 2")
        return await accept(request)

    service.generate = generate  # type: ignore[method-assign]
    response = await client.post(URL, json=COMPLETION | {"prompt": ["1", "2", "3"], "stream": True})
    assert response.status_code == 503
    assert len(service.aborted) == 2
    assert not service.open


async def test_an_error_in_one_of_several_prompts_ends_the_answer_once(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    def script(request: GenerateRequest) -> Sequence[TextDelta | Exception]:
        return [token(0, "a"), RuntimeError("x") if request.prompt == TextPrompt("2") else token(0, "b")]

    service.script = script
    events = sse((await client.post(URL, json=COMPLETION | {"prompt": ["1", "2"], "stream": True})).text)
    assert [event for event in events if event == "[DONE]" or "error" in event][-2]["error"]["code"] == "internal_error"
    assert events[-1] == "[DONE]"
    assert sum("error" in event for event in events) == 1
    assert not service.open


def wave(_: GenerateRequest) -> list[TextDelta]:
    """ "aé👋": a letter, a letter of two bytes, and a character in two tokens."""
    parts = [("a", b"a"), ("é", "é".encode()), ("�", b"\xf0\x9f"), ("�", b"\x91\x8b"), ("b", b"b")]
    texts = ["a", "é", "", "👋", "b"]
    tops = (Logprob(1, "x", b"x", -0.1), Logprob(2, "�", b"\xf0", -0.2), Logprob(3, "�", b"\xf1", -0.3))
    return [
        TextDelta(0, text, (i,), (TokenLogprob(Logprob(i, *part, -1.0 * i), tops),))
        for i, (text, part) in enumerate(zip(texts, parts, strict=True))
    ]


async def test_logprobs_are_parallel_lists_with_offsets_in_characters(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = wave
    logprobs = (await client.post(URL, json=COMPLETION | {"logprobs": 3})).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "é", "�", "�", "b"]
    assert logprobs["token_logprobs"] == [0.0, -1.0, -2.0, -3.0, -4.0]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 3]
    # Of two candidates with one text the likelier stays; the chosen token is always there.
    assert logprobs["top_logprobs"][0] == {"x": -0.1, "�": -0.2, "a": 0.0}
    assert logprobs["top_logprobs"][2] == {"x": -0.1, "�": -0.2}
    events = sse((await client.post(URL, json=COMPLETION | {"logprobs": 3, "stream": True})).text)
    parts = [c["logprobs"] for e in events[:-1] for c in e["choices"] if c["logprobs"]]
    for name, whole in logprobs.items():
        assert [item for part in parts for item in part[name]] == whole


async def test_zero_logprobs_are_the_tokens_own_alone(client: httpx2.AsyncClient, service: FakeService) -> None:
    choice = (await client.post(URL, json=COMPLETION | {"logprobs": 0})).json()["choices"][0]
    assert service.requests[0].sampling.logprobs == 0
    assert choice["logprobs"]["token_logprobs"] == [-0.5] * 3
    assert choice["logprobs"]["top_logprobs"] is None
