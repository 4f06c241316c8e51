"""What is wrong in a body is a 400 that names the field, on every route, before anything was sent or started."""

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from fastapi import FastAPI
from tests.server.conftest import CHAT, COMPLETION, FakeService, client_of

from headway.server.app import make_app

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def service() -> FakeService:
    """One for all rows: none of them may change anything."""
    return FakeService()


@pytest.fixture(scope="module")
def app(service: FakeService) -> FastAPI:
    return make_app(service)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app) as client:
        yield client


SAMPLING_CASES: list[tuple[dict[str, Any], str]] = [
    *(({"n": n}, "n") for n in (0, -1, True, False, "2", 1.5, 1.0, 1000000, 129, [], {})),
    *(({"max_tokens": v}, "max_tokens") for v in (0, -1, True, "3", 16.0, 16.5, 2**31, 2**70)),
    *(({"temperature": v}, "temperature") for v in (-0.1, 101, True, "1", [1])),
    *(({"top_p": v}, "top_p") for v in (0, -1, 1.1, "1", True)),
    *(({"top_k": v}, "top_k") for v in (-2, 1.0, "1", True)),
    *(({"min_p": v}, "min_p") for v in (-0.1, 1.1, True)),
    *(({"seed": v}, "seed") for v in ("7", True, 1.0, 2**63, -(2**63) - 1, 2**64)),
    *(({f: v}, f) for f in ("presence_penalty", "frequency_penalty") for v in (-2.1, 2.1, "0", True)),
    *(({"repetition_penalty": v}, "repetition_penalty") for v in (0, -1, True)),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": True}, "min_tokens"),
    ({"stop": [""]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["x" * 1025]}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": 1}, "stop"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": 1}, "stop_token_ids"),
    ({"stop_token_ids": [True]}, "stop_token_ids[0]"),
    *(({"logit_bias": {k: 1}}, "logit_bias") for k in ("AI", "-1", "1.0", "", " 1", "１", "1" * 11)),
    *(({"logit_bias": {"1": v}}, "logit_bias") for v in (100.1, -101)),
    ({"logit_bias": {"1": True}}, "logit_bias.1"),
    ({"logit_bias": {"1": "5"}}, "logit_bias.1"),
    ({"logit_bias": []}, "logit_bias"),
    *(({f: v}, f) for f in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output") for v in (1, "true")),
    *(({"timeout_s": v}, "timeout_s") for v in (0, -1, "1", True, 1e9)),
    *(({"bad_words": v}, "bad_words") for v in (1, [""], ["x"] * 129, ["x" * 257], {})),
    ({"bad_words": [1]}, "bad_words[0]"),
    *(({"allowed_token_ids": v}, "allowed_token_ids") for v in ([], "5", 5)),
    *(({"allowed_token_ids": [v]}, "allowed_token_ids[0]") for v in ("5", True, 1.0)),
    *(({"max_length": v}, "max_length") for v in (0, 1, -5, True, "9", 9.0)),
    *(({"truncate_prompt_tokens": v}, "truncate_prompt_tokens") for v in (0, -2, True, "9", 9.0)),
    *(({"priority": v}, "priority") for v in (True, "1", 1.0, 2**31, -(2**31) - 1)),
    *(({"cache_salt": v}, "cache_salt") for v in ("", 1, "x" * 257)),
    ({"foo": 1}, "foo"),
    ({"max_token": 1}, "max_token"),
]
REFUSED_EVERYWHERE: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 2}, "best_of"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"guided_json": {}}, "guided_json"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"best_of": 1.0}, "best_of"),
    ({"truncation_side": "right"}, "truncation_side"),
]
STREAM_CASES: list[tuple[dict[str, Any], str]] = [
    *(({"stream": v}, "stream") for v in ("true", 1)),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": True}, "stream_options"),
    ({"stream": True, "stream_options": {"foo": 1}}, "stream_options.foo"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    *(({"echo": v}, "echo") for v in (1, "true")),
    *(({"prompt_logprobs": v}, "prompt_logprobs") for v in (-1, 21, True, "3", 1.0)),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    *(({"user": v}, "user") for v in (1, "x" * 257)),
    ({"model": ""}, "model"),
    ({"model": 1}, "model"),
    (
        {"response_format": {"type": "json_schema", "schema": {"type": "object"}}},
        "response_format.json_schema.schema",
    ),
    ({"return_token_ids": 1}, "return_token_ids"),
]
USER = {"role": "user", "content": "x"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
NAMED = {"type": "function", "function": {"name": "f"}}
BAD_FUNCTIONS: list[tuple[Any, str]] = [
    *(({"name": name}, "name") for name in ("", "a b", "é", "x" * 65, 1, None)),
    ({"name": "f", "description": 1}, "description"),
    *(({"name": "f", "parameters": v}, "parameters") for v in ("{}", [], True)),
    ({"name": "f", "parameters": {"type": "string"}}, "parameters.type"),
    ({"name": "f", "strict": "yes"}, "strict"),
    ({"name": "f", "schema": {}}, "schema"),
]
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}
BAD_CHOICES: list[Any] = [
    "any",
    1,
    {"type": "function"},
    {"type": "function", "function": {"name": "g"}},
    {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [NAMED]}},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{**NAMED, "function": {"name": "g"}}]}},
]
BAD_CALLS: list[tuple[Any, str]] = [
    ({"id": "c1"}, "messages[0].tool_calls"),
    (["c1"], "messages[0].tool_calls[0]"),
    ([CALL | {"type": "custom"}], "messages[0].tool_calls[0].type"),
    ([{"id": "c1"}], "messages[0].tool_calls[0].function"),
    ([CALL | {"function": {"arguments": "{}"}}], "messages[0].tool_calls[0].function.name"),
    ([CALL | {"function": {"name": "f", "arguments": [1]}}], "messages[0].tool_calls[0].function.arguments"),
    ([CALL | {"id": None}], "messages[0].tool_calls[0].id"),
    ([CALL | {"id": 1}], "messages[0].tool_calls[0].id"),
    ([CALL, CALL], "messages[0].tool_calls[1].id"),
    ([CALL], "messages[0].tool_calls"),
]
CHAT_CASES: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": "x", "foo": 1}]}, "messages[0].foo"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].role"),
    ({"messages": [USER | {"tool_call_id": "1"}]}, "messages[0].tool_call_id"),
    ({"messages": [USER | {"tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"messages": [USER | {"reasoning_content": "r"}]}, "messages[0].reasoning_content"),
    ({"messages": [{"role": "assistant", "content": "x", "reasoning": ["r"]}]}, "messages[0].reasoning"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
    *(({"messages": [{"role": "assistant", "tool_calls": calls}]}, param) for calls, param in BAD_CALLS),
    *(({"max_completion_tokens": v}, "max_completion_tokens") for v in (0, -1, True, "3", 16.0)),
    ({"max_completion_tokens": 3, "max_tokens": 4}, "max_tokens"),
    *(({"logprobs": v}, "logprobs") for v in (1, "true", 3)),
    *(({"logprobs": True, "top_logprobs": v}, "top_logprobs") for v in (-1, 21, "3", True, 1.0)),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ({"tools": "f"}, "tools"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [TOOL | {"cache": 1}]}, "tools[0].cache"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    ({"tools": [TOOL] * 513}, "tools"),
    *(({"tools": [{"type": "function", "function": f}]}, f"tools[0].function.{name}") for f, name in BAD_FUNCTIONS),
    *(({"tool_choice": v}, "tool_choice") for v in ("auto", "required", NAMED)),
    *(({"tool_choice": v, "tools": []}, "tool_choice") for v in ("auto", "required", NAMED)),
    *(({"tool_choice": v, "tools": [TOOL]}, "tool_choice") for v in BAD_CHOICES),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"functions": []}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"include_reasoning": 1}, "include_reasoning"),
    *(({"thinking_token_budget": v}, "thinking_token_budget") for v in (-1, 1.5, "3", True)),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    *(({"chat_template_kwargs": v}, "chat_template_kwargs") for v in (1, [], "x")),
    ({"continue_final_message": 1}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"echo": True}, "echo"),
    ({"max_tokens": 0, "prompt_logprobs": 1, "stream": False}, "max_tokens"),
    *(
        ({"messages": [{"role": "user", "content": [{"type": kind}]}]}, "messages[0].content[0].type")
        for kind in ("input_image", "input_audio", "video_url", "file", "refusal", "nonsense")
    ),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "reasoning_effort"),
    ({"prompt": "x"}, "prompt"),
]
COMPLETION_CASES: list[tuple[dict[str, Any], str]] = [
    *(({"prompt": v}, "prompt") for v in ([], [[]], [1, "a"], ["a", 1], [[1], "a"], [[1], []], 1, True, {}, [True])),
    *(({"prompt": v}, "prompt") for v in ([1.0], [[1.0]], [None], ["a"] * 2049)),
    *(({"logprobs": v}, "logprobs") for v in (True, "3", -1, 21, 1.0)),
    ({"prompt": ["a"] * 33, "n": 128}, "n"),
    ({"suffix": "x"}, "suffix"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"echo": True, "max_tokens": -1}, "max_tokens"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"messages": [USER]}, "messages"),
    ({"max_completion_tokens": 3}, "max_completion_tokens"),
]


def rows(
    route: str, base: dict[str, Any], *tables: list[tuple[dict[str, Any], str]]
) -> list[tuple[str, dict[str, Any], str]]:
    return [(route, base | fields, param) for table in tables for fields, param in table]


CASES = [
    *rows("/v1/chat/completions", CHAT, SAMPLING_CASES, REFUSED_EVERYWHERE, STREAM_CASES, CHAT_CASES),
    *rows("/v1/completions", COMPLETION, SAMPLING_CASES, REFUSED_EVERYWHERE, STREAM_CASES, COMPLETION_CASES),
    *rows("/basic_generate", {"prompt": "x"}, SAMPLING_CASES, REFUSED_EVERYWHERE, [({"prompt": ["x"]}, "prompt")]),
    *rows("/generate_stream", {"prompt": "x"}, SAMPLING_CASES, REFUSED_EVERYWHERE, [({"stream": True}, "stream")]),
    *rows("/generate", {"prompts": ["x"]}, SAMPLING_CASES, REFUSED_EVERYWHERE),
    *rows(
        "/generate",
        {},
        [
            ({"prompts": ["a"] * 33, "n": 128}, "n"),
            ({"prompts": []}, "prompts"),
            ({"prompts": "x"}, "prompts"),
            ({"prompts": [1]}, "prompts[0]"),
        ],
    ),
    ("/v1/chat/completions", {"messages": [USER]}, "model"),
    ("/v1/chat/completions", {"model": "m"}, "messages"),
    ("/v1/completions", {"model": "m"}, "prompt"),
    ("/v1/completions", {"model": "m", "prompt": None}, "prompt"),
    ("/basic_generate", {}, "prompt"),
    ("/generate", {}, "prompts"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"prompt": "x", "messages": [USER]}, "prompt"),
    ("/tokenize", {"prompt": 1}, "prompt"),
    ("/tokenize", {"messages": [USER], "add_special_tokens": True}, "add_special_tokens"),
    ("/tokenize", {"prompt": "x", "add_special_tokens": 1}, "add_special_tokens"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ("/detokenize", {"tokens": [True]}, "tokens[0]"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [256]}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
]


@pytest.mark.parametrize(("route", "body", "param"), CASES)
async def test_a_wrong_field_is_a_400_that_names_it(
    client: httpx2.AsyncClient, service: FakeService, route: str, body: dict[str, Any], param: str
) -> None:
    response = await client.post(route, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"
    assert param.split("[")[0].split(".")[0] in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(response.content) < 2000
    assert not service.open


async def test_streamed_requests_are_refused_before_the_200(client: httpx2.AsyncClient) -> None:
    for fields, param in [*SAMPLING_CASES, *CHAT_CASES]:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True} | fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), fields


ACCEPTED_CHAT: list[dict[str, Any]] = [
    {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u", "prompt_cache_key": "k"},
    {"verbosity": "low", "safety_identifier": "s", "prompt_cache_retention": "24h", "prediction": {}},
    {"stop": None, "seed": None, "n": None, "top_logprobs": None, "stream_options": None, "logit_bias": None},
    {"logprobs": True, "top_logprobs": None},
    {"logprobs": False, "top_logprobs": 0},
    {"stop": []},
    {"stop": "END"},
    {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "seed": -(2**63)},
    {"logit_bias": {"0": 100, "5": -100}},
    {"logit_bias": {}},
    {"echo": False, "best_of": 1, "modalities": ["text"], "response_format": {"type": "text"}, "priority": 0},
    {"max_tokens": 5, "max_completion_tokens": 5},
    {"continue_final_message": False, "chat_template_kwargs": {"enable_thinking": False}},
    {"bad_words": "x", "allowed_token_ids": [1], "max_length": 50, "truncate_prompt_tokens": -1},
    {"priority": -5, "cache_salt": "mine", "user": "u", "prompt_logprobs": 0, "truncation_side": "left"},
    {"n": 128},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {
        "messages": [
            {"role": "developer", "content": "d"},
            USER,
            {
                "role": "assistant",
                "content": "y",
                "refusal": None,
                "annotations": [],
                "tool_calls": None,
                "audio": None,
            },
            USER,
        ]
    },
    {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT, {"role": "assistant", "content": "y"}]},
    {"messages": [USER, {"role": "assistant", "content": "y", "tool_calls": [], "reasoning_content": "r"}, USER]},
    *({"tools": [TOOL], "tool_choice": v} for v in ("auto", "none", "required", NAMED, ALLOWED)),
    {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": None, "description": None}}]},
    {"parallel_tool_calls": False, "include_reasoning": False, "thinking_token_budget": 0},
    {"reasoning_effort": "none"},
    {"stream_options": {"include_usage": True, "include_obfuscation": True}, "stream": True},
    {"stream_options": {"include_usage": None, "new_option": None}, "stream": True, "new_field_of_a_client": None},
    {"messages": [USER | {"name": None, "new_field_of_a_client": None}]},
]


@pytest.mark.parametrize("fields", ACCEPTED_CHAT)
async def test_what_asks_for_nothing_unusual_is_taken(client: httpx2.AsyncClient, fields: dict[str, Any]) -> None:
    response = await client.post("/v1/chat/completions", json=CHAT | fields)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("fields", ACCEPTED_CHAT[:3])
async def test_what_openai_has_and_changes_nothing_is_taken_by_completions_too(
    client: httpx2.AsyncClient, fields: dict[str, Any]
) -> None:
    fields = {name: value for name, value in fields.items() if name != "top_logprobs"}
    response = await client.post("/v1/completions", json=COMPLETION | fields)
    assert response.status_code == 200, response.text


NAMING: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", COMPLETION),
    ("/basic_generate", {"prompt": "x"}),
    ("/generate", {"prompts": ["x"]}),
    ("/generate_stream", {"prompt": "x"}),
    ("/tokenize", {"prompt": "x"}),
    ("/detokenize", {"tokens": [1]}),
]


@pytest.mark.parametrize(("route", "body"), NAMING)
async def test_a_model_that_is_not_served_is_a_404_and_an_empty_name_is_none(
    client: httpx2.AsyncClient, route: str, body: dict[str, Any]
) -> None:
    response = await client.post(route, json=body | {"model": "other"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    response = await client.post(route, json=body | {"model": ""})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


async def test_two_thousand_wrong_items_make_one_short_error(client: httpx2.AsyncClient) -> None:
    body = {"model": "m", "messages": [{"role": 1, "content": "secret" * 50}] * 2000}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert len(response.content) < 1000
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"user": "x" * 300}, "user has 300 characters; it must have at most 256"),
        ({"cache_salt": ""}, "cache_salt has 0 characters; it must have at least 1"),
        ({"priority": 2**31}, "priority is 2147483648; it must be below 2147483648"),
        ({"priority": -(2**31) - 1}, "priority is -2147483649; it must be at least -2147483648"),
        ({"seed": 2**64}, "seed is 18446744073709551616; it must be an integer of at most 64 bits"),
        ({"max_tokens": -(2**70)}, "it must be an integer of at most 64 bits"),
        ({"": 1}, '"" is no field of this route'),
    ],
)
async def test_a_value_over_a_limit_is_told_with_both(
    client: httpx2.AsyncClient, fields: dict[str, Any], words: str
) -> None:
    response = await client.post("/v1/completions", json=COMPLETION | fields)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate, gzip", "br", "x" * 200])
@pytest.mark.parametrize(("route", "body"), NAMING)
async def test_a_compressed_body_is_a_415_that_says_so(
    client: httpx2.AsyncClient, route: str, body: dict[str, Any], encoding: str
) -> None:
    packed = gzip.compress(json.dumps(body).encode())
    response = await client.post(route, content=packed, headers={"content-encoding": encoding})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (415, "unsupported_encoding")
    assert encoding[:60] in error["message"]
    assert len(response.content) < 400


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_a_body_that_is_as_it_is_may_say_so(client: httpx2.AsyncClient, encoding: str) -> None:
    response = await client.post("/v1/completions", json=COMPLETION, headers={"content-encoding": encoding})
    assert response.status_code == 200
