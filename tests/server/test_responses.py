"""POST /v1/responses: what reaches the service, the response whole and as events, and what is refused by its place."""

from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from tests.server.conftest import FakeService, client_of, sse_events, token

from headway.config import ServerConfig
from headway.core.output import TextDelta
from headway.core.request import ChatPrompt
from headway.core.structured import StructuredOutputs
from headway.core.tools import ToolCallDelta, ToolUse
from headway.errors import ContextLengthExceeded, InvalidRequest, NonFiniteLogits, QueueFull
from headway.server.app import make_app

URL = "/v1/responses"
ASK: dict[str, Any] = {"model": "m", "input": "hi"}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_time",
    "description": "The time in a town",
    "parameters": {"type": "object", "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}}},
    "strict": True,
}
TOOLS = ASK | {"tools": [TOOL, {"type": "function", "name": "get_place", "parameters": None, "strict": None}]}


def delta(text: str = "", *, reasoning: str = "", calls: Sequence[ToolCallDelta] = (), **end: Any) -> TextDelta:
    return TextDelta(0, text, (7,), reasoning=reasoning, tool_calls=tuple(calls), **end)


CALLS = [
    delta(reasoning="Two "),
    delta(reasoning="towns.", text="I look"),
    delta(" it up."),
    delta(calls=[ToolCallDelta(0, "call_a", "get_time"), ToolCallDelta(0, arguments='{"zeta": ')]),
    delta(calls=[ToolCallDelta(0, arguments='"Oslo"}'), ToolCallDelta(1, "call_b", "get_place", "{}")]),
    delta("\n", finish_reason="stop"),
]


async def post(client: httpx2.AsyncClient, body: dict[str, Any]) -> Any:
    response = await client.post(URL, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(client: httpx2.AsyncClient, body: dict[str, Any]) -> list[Any]:
    """The events; their names, numbers and places are checked."""
    response = await client.post(URL, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    named = sse_events(response.text)
    assert all(name == event["type"] for name, event in named)
    assert [event["sequence_number"] for _, event in named] == list(range(len(named)))
    return [event for _, event in named]


def without_ids(value: Any) -> Any:
    """What may differ from one response to the next is left out."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    own = ("id", "item_id", "created_at", "completed_at", "sequence_number")
    return {name: without_ids(each) for name, each in value.items() if name not in own}


async def test_a_text_is_answered_with_one_message(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.num_cached_tokens = 2
    answer = await post(client, ASK | {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "ann"})
    request = service.requests[-1]
    assert request.request_id == answer["id"]
    assert answer["id"].startswith("resp_")
    assert request.tenant == "ann"
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    [message] = answer.pop("output")
    assert message.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}
    assert message == {"type": "message", "role": "assistant", "content": [part], "status": "completed"}
    # A token is a byte, and there is one before all.
    assert answer.pop("usage") == {
        "input_tokens": 1 + 9 + 2,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0, "forced_tokens": 0},
        "total_tokens": 15,
    }
    assert without_ids(answer) == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "background": False,
        "instructions": "Be brief.",
        "max_output_tokens": None,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": "ann",
    }


async def test_tools_and_their_use_reach_the_service_as_a_chats(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    named = {"type": "function", "name": "get_time"}
    for choice, use in (
        ({}, ToolUse()),
        ({"tool_choice": "none"}, ToolUse("none")),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ToolUse("required", is_parallel=False)),
        ({"tool_choice": named}, ToolUse("named", "get_time")),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [named]}},
            ToolUse("required", names=("get_time",)),
        ),
    ):
        answer = await post(client, TOOLS | choice)
        request = service.requests[-1]
        assert request.tool_use == use
        assert isinstance(request.prompt, ChatPrompt)
        function = {name: value for name, value in TOOL.items() if name != "type"}
        assert request.prompt.tools == [
            {"type": "function", "function": function},
            {"type": "function", "function": {"name": "get_place"}},
        ]
        assert answer["tools"] == [
            TOOL,
            {"type": "function", "name": "get_place", "description": None, "parameters": None, "strict": False},
        ]
        assert answer["tool_choice"] == choice.get("tool_choice", "auto")
        assert answer["parallel_tool_calls"] == use.is_parallel


async def test_what_is_said_of_the_answer_reaches_the_service(client: httpx2.AsyncClient, service: FakeService) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}
    wanted = {"type": "json_schema", "name": "pair", "schema": schema, "strict": True}
    answer = await post(
        client,
        ASK
        | {
            "text": {"format": wanted, "verbosity": "low"},
            "max_output_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.25,
            "top_k": 9,
            "reasoning": {"effort": "none", "summary": "auto"},
            "thinking_token_budget": 5,
            "truncation": "disabled",
            "background": False,
            "prompt_cache_key": "k",
            "service_tier": "auto",
            "safety_identifier": "s",
            "include": ["reasoning.encrypted_content"],
        },
    )
    request = service.requests[-1]
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.template_kwargs == {"enable_thinking": False}
    sampling = request.sampling
    assert sampling.structured_outputs == StructuredOutputs(
        kind="json_schema", value=schema, param="text.format.schema"
    )
    assert list(sampling.structured_outputs.value["properties"]) == ["b", "a"]
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.25, 9)
    assert sampling.thinking_token_budget == 5
    assert sampling.logprobs is None
    assert answer["text"] == {"format": wanted, "verbosity": "low"}
    assert (answer["max_output_tokens"], answer["temperature"], answer["top_p"]) == (7, 0.5, 0.25)
    assert answer["reasoning"] == {"effort": "none", "summary": "auto"}
    await post(client, ASK | {"text": {"format": {"type": "json_object"}}})
    assert service.requests[-1].sampling.structured_outputs == StructuredOutputs(
        kind="json_object", param="text.format"
    )


OUTPUT = [
    {
        "type": "reasoning",
        "content": [{"type": "reasoning_text", "text": "Two towns."}],
        "summary": [],
        "encrypted_content": None,
        "status": "completed",
    },
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look it up.", "annotations": [], "logprobs": []}],
        "status": "completed",
    },
    {
        "type": "function_call",
        "call_id": "call_a",
        "name": "get_time",
        "arguments": '{"zeta": "Oslo"}',
        "status": "completed",
    },
    {"type": "function_call", "call_id": "call_b", "name": "get_place", "arguments": "{}", "status": "completed"},
]


async def test_a_whole_response_has_its_items_in_order(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: CALLS
    answer = await post(client, TOOLS)
    assert answer["status"] == "completed"
    assert without_ids(answer["output"]) == OUTPUT
    ids = [item["id"] for item in answer["output"]]
    assert [each.partition("_")[0] for each in ids] == ["rs", "msg", "fc", "fc"]
    assert len(set(ids)) == 4


async def test_a_stream_tells_each_item_from_its_beginning_to_its_end(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = lambda _: CALLS
    events = await stream(client, TOOLS)
    told = [
        (event["type"].removeprefix("response."), event.get("output_index"), event.get("delta")) for event in events
    ]
    assert told == [
        ("created", None, None),
        ("in_progress", None, None),
        ("output_item.added", 0, None),
        ("content_part.added", 0, None),
        ("reasoning_text.delta", 0, "Two "),
        ("reasoning_text.delta", 0, "towns."),
        ("reasoning_text.done", 0, None),
        ("content_part.done", 0, None),
        ("output_item.done", 0, None),
        ("output_item.added", 1, None),
        ("content_part.added", 1, None),
        ("output_text.delta", 1, "I look"),
        ("output_text.delta", 1, " it up."),
        ("output_text.done", 1, None),
        ("content_part.done", 1, None),
        ("output_item.done", 1, None),
        ("output_item.added", 2, None),
        ("function_call_arguments.delta", 2, '{"zeta": '),
        ("function_call_arguments.delta", 2, '"Oslo"}'),
        ("function_call_arguments.done", 2, None),
        ("output_item.done", 2, None),
        ("output_item.added", 3, None),
        ("function_call_arguments.delta", 3, "{}"),
        ("function_call_arguments.done", 3, None),
        ("output_item.done", 3, None),
        ("completed", None, None),
    ]
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert without_ids(last["output"]) == OUTPUT
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == last["output"]
    ids = [item["id"] for item in last["output"]]
    assert all(event["item_id"] == ids[event["output_index"]] for event in events if "item_id" in event)
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [(item["id"], item["status"]) for item in added] == [(each, "in_progress") for each in ids]
    done = [event.get("text", event.get("arguments")) for event in events if {"text", "arguments"} & set(event)]
    assert done == ["Two towns.", "I look it up.", '{"zeta": "Oslo"}', "{}"]
    assert without_ids(last) == without_ids(await post(client, TOOLS))


@pytest.mark.parametrize(
    ("said", "kinds", "texts"),
    [
        ([delta(finish_reason="stop")], ["message"], [""]),
        ([delta("a"), delta(calls=[ToolCallDelta(0, "c", "f", "{}")]), delta(" \n"), delta("b", finish_reason="stop")],
         ["message", "function_call", "message"], ["a", "{}", " \nb"]),
        ([delta(calls=[ToolCallDelta(0, "c", "f", "{}")]), delta("\n"),
          delta(calls=[ToolCallDelta(1, "d", "g", "[]")], finish_reason="stop")],
         ["function_call", "function_call"], ["{}", "[]"]),
        ([delta("\n"), delta("a", finish_reason="stop")], ["message"], ["\na"]),
        ([delta(reasoning="r", calls=[ToolCallDelta(0, "c", "f")]), delta(finish_reason="stop")],
         ["reasoning", "function_call"], ["r", ""]),
    ],
)  # fmt: skip
async def test_items_follow_what_is_said_and_white_space_behind_a_call_is_none(
    client: httpx2.AsyncClient, service: FakeService, said: list[TextDelta], kinds: list[str], texts: list[str]
) -> None:
    service.script = lambda _: said
    answer = await post(client, TOOLS)
    told = [item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in answer["output"]]
    assert ([item["type"] for item in answer["output"]], told) == (kinds, texts)
    last = (await stream(client, TOOLS))[-1]["response"]
    assert without_ids(last) == without_ids(answer)


@pytest.mark.parametrize("end", [{"finish_reason": "length"}, {"finish_reason": "abort", "stop_reason": "timeout"}])
@pytest.mark.parametrize("num_said", [1, 2, 3, 4, 5])
async def test_a_cut_response_is_incomplete_and_so_is_its_last_item(
    client: httpx2.AsyncClient, service: FakeService, end: dict[str, Any], num_said: int
) -> None:
    service.script = lambda _: [*CALLS[:num_said], delta(**end)]
    answer = await post(client, TOOLS)
    assert answer["status"] == "incomplete"
    reason = "max_output_tokens" if end["finish_reason"] == "length" else "timeout"
    assert answer["incomplete_details"] == {"reason": reason}
    assert answer["completed_at"] is None
    states = [item["status"] for item in answer["output"]]
    assert states == ["completed"] * (len(states) - 1) + ["incomplete"]
    events = await stream(client, TOOLS)
    assert events[-1]["type"] == "response.incomplete"
    assert without_ids(events[-1]["response"]) == without_ids(answer)


async def test_an_error_on_the_way_is_an_event_and_a_failed_response(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = lambda _: [*CALLS[:4], NonFiniteLogits("the model computed NaN")]
    events = await stream(client, TOOLS)
    error, failed = events[-2:]
    assert error["type"] == "error"
    assert (error["code"], error["message"], error["param"]) == ("non_finite_logits", "the model computed NaN", None)
    assert failed["type"] == "response.failed"
    response = failed["response"]
    assert (response["status"], response["error"]) == (
        "failed",
        {"code": "server_error", "message": "the model computed NaN"},
    )
    assert [item["status"] for item in response["output"]] == ["completed", "completed", "incomplete"]
    assert (await client.get(f"{URL}/{response['id']}")).status_code == 404
    whole = await client.post(URL, json=TOOLS)
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "non_finite_logits")


async def test_a_fault_of_our_own_is_told_without_its_words(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: [delta("a"), RuntimeError("a secret path")]
    events = await stream(client, ASK)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert "secret" not in str(events)


async def test_what_is_refused_before_the_stream_is_an_answer_of_its_own(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.refusal = QueueFull("2 wait, at most 2")
    for fields in ({}, {"stream": True}):
        response = await client.post(URL, json=ASK | fields)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_full")
    service.refusal = None
    response = await client.post(URL, json=ASK | {"model": "other"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_logprobs_are_those_of_the_texts_tokens(client: httpx2.AsyncClient, service: FakeService) -> None:
    one = token(0, "x").logprobs
    said = [
        *(TextDelta(d.choice, d.text, (7,), one, None, None, d.reasoning, d.tool_calls) for d in CALLS[:3]),
        TextDelta(0, "", (7,), token(0, "y").logprobs, "stop"),
    ]
    service.script = lambda _: said
    body = ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = await post(client, body)
    assert service.requests[-1].sampling.logprobs == 2
    assert answer["top_logprobs"] == 2
    logprobs = answer["output"][1]["content"][0]["logprobs"]
    # Reasoning has none; the delta that ends it and begins the text has its own, and the end token too.
    assert [entry["token"] for entry in logprobs] == ["x", "x", "y"]
    assert logprobs[0]["top_logprobs"][0] == {"token": "x", "logprob": -0.5, "bytes": [120]}
    events = await stream(client, body)
    assert [e for event in events for e in event.get("logprobs", ()) if event["type"].endswith("delta")] == logprobs
    assert without_ids(events[-1]["response"]) == without_ids(answer)
    await post(client, ASK | {"include": ["message.output_text.logprobs"]})
    assert service.requests[-1].sampling.logprobs == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"messages": []}, "messages"),
    ({"max_tokens": 3}, "max_tokens"),
    ({"response_format": {"type": "text"}}, "response_format"),
    ({"n": 2}, "n"),
    ({"wrong": 1}, "wrong"),
    ({"input": None}, "input"),
    ({"input": 3}, "input"),
    ({"input": []}, "input"),
    ({"model": ""}, "model"),
    ({"instructions": ["x"]}, "instructions"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"temperature": 101}, "temperature"),
    ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"stream_options": {"include_usage": True}, "stream": True}, "stream_options.include_usage"),
    ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": True}}, "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}},
     "text.format.json_schema"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "text.format"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL, {"type": "mcp", "server_label": "x"}]}, "tools[1].type"),
    ({"tools": [{"name": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
    ({"tools": [TOOL | {"strict": 1}]}, "tools[0].strict"),
    ({"tools": [TOOL | {"wrong": 1}]}, "tools[0].wrong"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get_time"}}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": ["auto"]}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ({"cache_salt": ""}, "cache_salt"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_what_is_wrong_is_a_400_by_its_name(
    client: httpx2.AsyncClient, service: FakeService, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(URL, json=ASK | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert set(error) == {"message", "type", "param", "code"}
    assert param.partition("[")[0].partition(".")[0] in error["message"]
    assert ".function." not in error["message"]
    assert service.requests == []


MANY = 2000


@pytest.mark.case("err-amplify-06", "err-shape-07")
@pytest.mark.parametrize(
    "fields",
    [
        {"input": [{"role": 1, "content": "secret" * 50}] * MANY},
        {"input": [{"role": "user", "content": [{"type": "secret" * 50}]}] * MANY},
        {"input": [{"role": "user", "content": "x", "wrong": "secret"}] * MANY},
        {"input": [{"type": "function_call", "call_id": {"secret": 1}}] * MANY},
        {"tools": [{"type": "function", "name": "secret" * 50}] * 500},
        {"tools": [{"type": {"secret": 1}}] * MANY},
        {"include": ["message.output_text.logprobs"] * MANY + ["x"], "top_logprobs": 99},
        {"metadata": {str(number): "secret" for number in range(MANY)}},
        {"text": {"format": {"type": "secret" * 500}}},
    ],
)
async def test_many_wrong_items_make_one_short_error_without_their_words(
    client: httpx2.AsyncClient, fields: dict[str, Any]
) -> None:
    response = await client.post(URL, json=ASK | fields)
    assert response.status_code == 400
    assert len(response.content) < 1000
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in response.text
    broken = await client.post(URL, content=b'{"input": ')
    assert (broken.status_code, "no valid JSON" in broken.text) == (400, True)


async def test_the_description_has_what_is_taken(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert {path for path in document["paths"] if path.startswith(URL)} == {
        URL,
        f"{URL}/{{response_id}}",
        f"{URL}/{{response_id}}/cancel",
        f"{URL}/{{response_id}}/input_items",
    }
    listed = document["paths"][f"{URL}/{{response_id}}/input_items"]["get"]["parameters"]
    assert {each["name"]: each["in"] for each in listed} == {
        "response_id": "path",
        "limit": "query",
        "order": "query",
        "after": "query",
    }
    fields = document["components"]["schemas"]["ResponsesBody"]["properties"]
    assert {"input", "previous_response_id", "text", "temperature", "stop", "cache_salt"} <= set(fields)
    assert not {"n", "max_tokens", "messages", "response_format"} & set(fields)


async def test_a_schema_that_the_model_can_not_keep_to_is_told_in_this_routes_words(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    for param, told in (
        ("tools[1].function.parameters", "tools[1].parameters"),
        ("text.format.schema", "text.format.schema"),
        ("max_tokens", "max_output_tokens"),
    ):
        for kind in (InvalidRequest, ContextLengthExceeded):
            service.refusal = kind(f"{param} is wrong", param=param)
            for fields in ({}, {"stream": True}):
                response = await client.post(URL, json=ASK | fields)
                error = response.json()["error"]
                assert (error["param"], error["message"], error["code"]) == (told, f"{told} is wrong", kind.code)


async def test_keys_see_only_their_own_responses(service: FakeService) -> None:
    app = make_app(service, ServerConfig(api_keys=("one", "two")))
    async with client_of(app) as client:
        mine, same = {"authorization": "Bearer one"}, {"x-api-key": "one"}
        other = {"authorization": "Bearer two"}
        answer = (await client.post(URL, json=ASK, headers=mine)).json()
        place = f"{URL}/{answer['id']}"
        for headers, status in ((mine, 200), (same, 200), (other, 404)):
            assert (await client.get(place, headers=headers)).status_code == status
            assert (await client.get(f"{place}/input_items", headers=headers)).status_code == status
            goes_on = ASK | {"previous_response_id": answer["id"]}
            response = await client.post(URL, json=goes_on, headers=headers)
            assert response.status_code == (200 if status == 200 else 400)
        assert (await client.delete(place, headers=other)).status_code == 404
        assert (await client.delete(place, headers=same)).status_code == 200
        assert (await client.get(place, headers=mine)).status_code == 404


@pytest.mark.parametrize("config", [ServerConfig(response_store_bytes=0), ServerConfig(max_stored_responses=0)])
async def test_a_server_that_keeps_nothing_says_so(service: FakeService, config: ServerConfig) -> None:
    async with client_of(make_app(service, config)) as client:
        answer = await post(client, ASK)
        assert answer["store"] is False
        response = await client.get(f"{URL}/{answer['id']}")
        assert (response.status_code, "--response-store" in response.text) == (404, True)
        for fields in ({"store": True}, {"previous_response_id": answer["id"]}):
            response = await client.post(URL, json=ASK | fields)
            assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(fields)))
            assert "--response-store" in response.text
        assert (await post(client, ASK | {"store": False}))["store"] is False
