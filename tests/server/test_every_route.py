"""One answer on every route, streamed or not: the real service over scripted models, whose texts are the right ones."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.server.conftest import client_of, listening, sse, sse_events, until

from headway.config import ServerConfig
from headway.server.app import make_app
from headway.testing.script import CONTROL_TOKENS, FIRST_WORD_ID, Reply, Script, say, words
from headway.testing.scripted_service import ScriptedService

SCRIPT = Script(
    reply=say("Hello!"),
    replies={
        "wave": Reply(tokens=[b"\xf0\x9f", b"\x91\x8b", b" h", b"i"]),
        "split": Reply(tokens=["你".encode(), "好".encode()[:1], "好".encode()[1:], "世界".encode()]),
        "quote": Reply(tokens=[b"a\xe2", b"\x80", b"\x9cb", b"\xe2\x80\x9d"]),
        "cut": Reply(tokens=[b"ok", b"\xf0\x9f"]),
        "broken": Reply(tokens=[b"a", b"\xff", b"b"]),
        "stop": Reply(tokens=[b"a", b",b", b",cd", b"efg"]),
        "choices": Reply(tokens=[b"a"], by_choice={1: [b"b", b"B"], 2: [b"c", b"C", b"CC"]}),
        "gate": say("abc", gates={1: "go"}),
    },
    max_model_len=300,
)
VOCAB_SIZE = FIRST_WORD_ID + len(words(SCRIPT))

WAYS = {
    "chat": ("/v1/chat/completions", {}),
    "chat, streamed": ("/v1/chat/completions", {"stream": True}),
    "completions": ("/v1/completions", {}),
    "completions, streamed": ("/v1/completions", {"stream": True}),
    "basic_generate": ("/basic_generate", {}),
    "generate": ("/generate", {}),
    "generate_stream": ("/generate_stream", {}),
}
WAYS_OF_ONE_CHOICE = {
    "responses": ("/v1/responses", {}),
    "responses, streamed": ("/v1/responses", {"stream": True}),
}
ALL_WAYS = WAYS | WAYS_OF_ONE_CHOICE
OPENAI_WAYS = [way for way, (path, _) in WAYS.items() if path.startswith("/v1")]
Way = str


def body_of(way: Way, prompt: str, **fields: Any) -> dict[str, Any]:
    path, own = ALL_WAYS[way]
    limit = {"max_tokens": 50}
    if path == "/v1/chat/completions":
        asked: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": prompt}]}
    elif path == "/v1/completions":
        asked = {"model": "scripted", "prompt": prompt}
    elif way in WAYS_OF_ONE_CHOICE:
        asked = {"model": "scripted", "input": prompt}
        limit = {"max_output_tokens": fields.pop("max_tokens", 50)}
    else:
        asked = {"prompts": [prompt]} if path == "/generate" else {"prompt": prompt}
    return asked | own | limit | fields


@dataclass
class Told:
    """What one way told of each choice."""

    pieces: dict[int, list[str]] = field(default_factory=dict)
    """More than one of a choice only where it was streamed."""
    logprobs: list[Any] = field(default_factory=list)
    """Of choice 0: chat's entries, or completions' parallel lists entry by entry."""
    ends: list[tuple[int, str]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    def add(self, index: int, text: str) -> None:
        self.pieces.setdefault(index, []).append(text)

    @property
    def texts(self) -> list[str]:
        return ["".join(pieces) for _, pieces in sorted(self.pieces.items())]


def read(way: Way, response: httpx2.Response) -> Told:
    """An answer in the shape of its route."""
    told = Told()
    assert response.status_code == 200, response.text
    if way in WAYS_OF_ONE_CHOICE:
        read_response(told, response)
        return told
    if WAYS[way][0] in ("/basic_generate", "/generate"):
        answer = response.json()
        for index, text in enumerate(answer.get("generated_texts") or [answer["generated_text"]]):
            told.add(index, text)
        return told
    is_stream = response.headers["content-type"].startswith("text/event-stream")
    events = sse(response.text) if is_stream else [response.json(), "[DONE]"]
    assert (events.count("[DONE]"), events[-1]) == (1, "[DONE]")
    for event in events[:-1]:
        if "sequence_id" in event:
            told.add(event["sequence_id"], event["token"])
            continue
        told.usage = event.get("usage") or told.usage
        for choice in event["choices"]:
            read_choice(told, choice)
    return told


def read_choice(told: Told, choice: dict[str, Any]) -> None:
    message = choice.get("message") or choice.get("delta") or {}
    told.add(choice["index"], choice.get("text", message.get("content", "")))
    if choice["finish_reason"] is not None:
        told.ends.append((choice["index"], choice["finish_reason"]))
    logprobs = choice["logprobs"]
    if logprobs and choice["index"] == 0:
        if "content" in logprobs:
            told.logprobs += logprobs["content"]
        else:
            tops = logprobs["top_logprobs"] or [None] * len(logprobs["tokens"])
            told.logprobs += zip(
                logprobs["tokens"], logprobs["token_logprobs"], tops, logprobs["text_offset"], strict=True
            )


def read_response(told: Told, response: httpx2.Response) -> None:
    """A stream's pieces, which join to what its response has in the end; a whole response's text."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        told.add(0, text_of(response.json()))
        return
    events = [event for _, event in sse_events(response.text)]
    for event in events:
        if event["type"] == "response.output_text.delta":
            told.add(0, event["delta"])
    told.add(0, "")
    assert told.texts == [text_of(events[-1]["response"])]


def text_of(response: dict[str, Any]) -> str:
    [message] = response["output"]
    return str(message["content"][0]["text"])


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_service() -> AsyncIterator[ScriptedService]:
    service = ScriptedService(SCRIPT)
    await service.start()
    await service.until_ready()
    yield service
    await service.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_client(module_service: ScriptedService) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(make_app(module_service)) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def service(module_service: ScriptedService) -> AsyncIterator[ScriptedService]:
    """One for all; after each test nothing is left in it."""
    yield module_service
    await module_service.until_idle()
    assert module_service.is_ready()[0]


@pytest_asyncio.fixture(loop_scope="module")
async def client(module_client: httpx2.AsyncClient, service: ScriptedService) -> httpx2.AsyncClient:
    return module_client


TEXTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("wave", {}, ["👋 hi"]),
    ("split", {}, ["你好世界"]),
    ("quote", {}, ["a“b”"]),
    ("cut", {}, ["ok�"]),
    ("broken", {}, ["a�b"]),
    ("stop", {"stop": ["b,c"]}, ["a,"]),
    ("stop", {"stop": "b,c", "include_stop_str_in_output": True}, ["a,b,c"]),
    ("stop", {"stop": ["zz", "cde"]}, ["a,b,"]),
    ("stop", {"stop": ["g!", "never"]}, ["a,b,cdefg"]),
    ("stop", {"stop": []}, ["a,b,cdefg"]),
    ("stop", {"stop": None}, ["a,b,cdefg"]),
    ("stop", {"stop": ["a"]}, [""]),
    ("wave", {"stop": ["👋"]}, [""]),
    ("split", {"stop": ["好世"]}, ["你"]),
    ("choices", {"n": 3}, ["a", "bB", "cCCC"]),
    ("choices", {"n": 3, "stop": ["B", "CCC"]}, ["a", "b", "c"]),
    ("choices", {"n": 3, "max_tokens": 2}, ["a", "bB", "cC"]),
    ("hello", {"max_tokens": 2}, ["He"]),
    ("hello", {"max_tokens": 8, "min_tokens": 8, "ignore_eos": True}, ["Hello!He"]),
]


@pytest.mark.parametrize(
    ("way", "prompt", "fields", "texts"),
    [(way, *text) for way in ALL_WAYS for text in TEXTS if way in WAYS or "n" not in text[1]],
)
async def test_every_route_tells_the_same_text(
    client: httpx2.AsyncClient, way: Way, prompt: str, fields: dict[str, Any], texts: list[str]
) -> None:
    told = read(way, await client.post(ALL_WAYS[way][0], json=body_of(way, prompt, **fields)))
    # A stream of the plain routes says nothing of a choice without a text.
    assert told.texts == texts or (way == "generate_stream" and texts == [""] and not told.pieces)
    for pieces, text in zip(told.pieces.values(), texts, strict=False):
        assert sum(piece.count("�") for piece in pieces) == text.count("�")
    if way in OPENAI_WAYS:
        assert sorted(index for index, _ in told.ends) == list(range(len(texts)))


TEXTS_OF_ONE = [each for each in TEXTS if set(each[1]) <= {"stop", "max_tokens"}]


@pytest.mark.parametrize(("prompt", "fields", "texts"), TEXTS_OF_ONE)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_messages_tell_the_same_text(
    client: httpx2.AsyncClient, is_stream: bool, prompt: str, fields: dict[str, Any], texts: list[str]
) -> None:
    own = {"stream": is_stream, "stop_sequences": fields.get("stop"), "max_tokens": fields.get("max_tokens", 50)}
    body = {"model": "scripted", "messages": [{"role": "user", "content": prompt}]} | own
    response = await client.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    if is_stream:
        events = [json.loads(event.partition("data: ")[2]) for event in response.text.split("\n\n")[:-1]]
        assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
        told = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    else:
        told = [block["text"] for block in response.json()["content"]]
    assert ["".join(told)] == texts
    assert sum(piece.count("�") for piece in told) == texts[0].count("�")


@pytest.mark.parametrize(
    ("prompt", "fields", "tokens"),
    [
        ("wave", {}, ["�", "��", " h", "i", "<|end|>"]),
        ("split", {}, ["你", "�", "��", "世界", "<|end|>"]),
        ("quote", {}, ["a�", "�", "�b", "”", "<|end|>"]),
        ("cut", {}, ["ok", "�", "<|end|>"]),
        ("wave", {"max_tokens": 3}, ["�", "��", " h"]),
        ("stop", {"stop": ["b,c"]}, ["a", ",b", ",cd"]),
    ],
)
async def test_logprobs_are_those_of_the_tokens_that_are_billed_streamed_or_not(
    client: httpx2.AsyncClient, prompt: str, fields: dict[str, Any], tokens: list[str]
) -> None:
    script = SCRIPT.replies[prompt].tokens
    raw = [list(token) for token in script[: len(tokens)]] + [[]] * (len(tokens) - len(script))
    for num_top in (0, 3):
        asked: dict[str, Any] = {"logprobs": True, "top_logprobs": num_top}
        seen = []
        for way in OPENAI_WAYS:
            own = asked if way.startswith("chat") else {"logprobs": num_top}
            if WAYS[way][1]:
                own = {**own, "stream_options": {"include_usage": True}}
            told = read(way, await client.post(WAYS[way][0], json=body_of(way, prompt, **own, **fields)))
            assert told.usage["completion_tokens"] == len(tokens)
            seen.append(told.logprobs)
        chat, chat_streamed, completions, completions_streamed = seen
        assert chat == chat_streamed
        assert completions == completions_streamed
        assert [entry["token"] for entry in chat] == [entry[0] for entry in completions] == tokens
        assert [entry["bytes"] for entry in chat] == raw
        assert {len(entry["top_logprobs"]) for entry in chat} == {num_top}
        # Each is spelled on its own, never joined with its neighbours; a control token adds no bytes to a text.
        for top in (top for entry in chat for top in entry["top_logprobs"]):
            spelled = bytes(top["bytes"]).decode(errors="replace")
            assert spelled == ("" if top["token"] in CONTROL_TOKENS else top["token"])
        # Completions tell the alternatives by their texts: parts of characters look alike.
        assert all((entry[2] is None) if not num_top else (1 <= len(entry[2]) <= 3) for entry in completions)


async def test_counting_tells_tokens_by_their_text_too(client: httpx2.AsyncClient) -> None:
    body = {"prompt": " é👋<|end|>", "return_token_strs": True}
    told = (await client.post("/tokenize", json=body)).json()
    assert told["token_strs"] == [" ", *"�" * 6, "<|end|>"]
    assert told["tokens"] == [32, *"é👋".encode(), 256]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    *(({"logit_bias": {key: 5}}, "logit_bias", "") for key in ("99999999", "-1", "AI", str(VOCAB_SIZE))),
    ({"logit_bias": {"1": 100.5}}, "logit_bias", "100"),
    ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids", str(VOCAB_SIZE)),
    ({"stop": [""]}, "stop", ""),
    ({"n": 1_000_000}, "n", "128"),
    ({"max_tokens": 10_000}, "max_tokens", "10000 300"),
    ({"max_tokens": 0}, "max_tokens", "0"),
    ({"max_tokens": True}, "max_tokens", ""),
    ({"min_tokens": 51}, "min_tokens", "51 50"),
    ({"temperature": "@1e400"}, "temperature", ""),
    ({"functions": []}, "functions", ""),
    ({"tools": [], "tool_choice": "required", "logprobs": True}, "tool", ""),
    ({"response_format": {"type": "json_schema", "strict": True, "json_schema": {"name": "x"}}}, "response_format", ""),
    ({"response_format": {"type": "json_schema", "schema": {"type": "object"}}}, "response_format", ""),
    ({"truncation": "auto"}, "truncation", ""),
    ({"allowed_token_ids": [VOCAB_SIZE]}, "allowed_token_ids", str(VOCAB_SIZE)),
    ({"bad_words": ["a"], "allowed_token_ids": [97]}, "allowed_token_ids", "no token is left"),
    ({"max_length": 5}, "max_length", "5"),
    ({"suffix": "x"}, "suffix", ""),
    ({"best_of": 2}, "best_of", ""),
    ({"foo": 1}, "foo", ""),
    ({"stop": ["a\ud800b"]}, "", "JSON"),
    ({"user": "\ud800"}, "", "JSON"),
    ({"temperature": "@NaN"}, "", "JSON"),
    ({"seed": "@-Infinity"}, "", "JSON"),
]
LONG_PROMPT = "x" * 400


async def refusal(client: httpx2.AsyncClient, way: Way, body: dict[str, Any]) -> dict[str, Any]:
    """The error of a body that is refused; a string that begins with @ stands bare in the JSON."""
    content = json.dumps(body)
    for value in body.values():
        if isinstance(value, str) and value.startswith("@"):
            content = content.replace(json.dumps(value), value[1:])
    response = await client.post(WAYS[way][0], content=content.encode())
    assert response.status_code == 400, (body, response.text)
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert len(response.content) < 1000
    return error


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_refused_is_a_400_before_anything_is_sent_and_disturbs_no_stream(
    client: httpx2.AsyncClient, service: ScriptedService, way: Way
) -> None:
    running = asyncio.ensure_future(client.post(WAYS[way][0], json=body_of(way, "gate")))
    await until(lambda: service.predictor().num_computed)
    for fields, param, words_ in REFUSED:
        error = await refusal(client, way, body_of(way, "hello", **fields))
        assert (error["param"] or "").startswith(param), (fields, error)
        assert all(word in error["message"] for word in words_.split()), (fields, error)
    error = await refusal(client, way, body_of(way, LONG_PROMPT))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    num_prompt = 403 if way.startswith("chat") else 400
    assert str(num_prompt) in error["message"]
    assert "300" in error["message"]
    assert (await client.get("/health")).status_code == 200
    service.open_gate("go")
    assert read(way, await running).texts == ["abc"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("/v1/completions", {"model": "scripted", "prompt": prompt}) for prompt in ("", [""], ["a", ""], [[97], []])),
        ("/basic_generate", {"prompt": ""}),
        ("/generate_stream", {"prompt": ""}),
        ("/generate", {"prompts": ["a", ""]}),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_prompt_without_a_token_is_a_400_however_it_is_wrapped(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any], is_stream: bool
) -> None:
    own = {"stream": is_stream} if path.startswith("/v1") else {}
    for fields in ({}, {"repetition_penalty": 1.2, "presence_penalty": 1}):
        response = await client.post(path, json=body | own | fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == "prompt"


@pytest.mark.case("queue-disc-02")
async def test_whoever_leaves_the_queue_is_not_computed() -> None:
    script = Script(reply=say("abc"), replies={"gate": say("abc", gates={1: "go"})}, max_num_seqs=1)
    service = ScriptedService(script)
    async with (
        listening(make_app(service, ServerConfig(port=0))) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        await service.until_ready()
        first = asyncio.ensure_future(client.post("/basic_generate", json={"prompt": "gate"}))
        await until(lambda: service.stats()["models"]["scripted"]["client_open_requests"] == 1)
        posts = [client.post(path, json=body_of(way, "hello")) for way, (path, _) in ALL_WAYS.items()]
        waiting = [asyncio.ensure_future(post) for post in posts]
        await until(lambda: service.stats()["models"]["scripted"]["client_open_requests"] == 1 + len(ALL_WAYS))
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: len(service.predictor().aborts) == len(ALL_WAYS))
        service.open_gate("go")
        assert (await first).json() == {"generated_text": "abc"}
        await service.until_idle()
        assert len({abort.request_id for abort in service.predictor().aborts}) == len(ALL_WAYS)
        assert service.predictor().num_computed == 4  # three bytes and the end token
