"""Items of callers and of turns before: how they become messages, and what is kept, listed and forgotten."""

from typing import Any

import httpx2
import pytest
from tests.server.conftest import FakeService, client_of, say
from tests.server.test_responses import CALLS, TOOL, TOOLS, URL, delta, post, stream

from headway.config import ServerConfig
from headway.core.request import ChatPrompt
from headway.server.app import make_app
from headway.text.history import Message


def call(call_id: str, name: str = "get_time", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"} | fields


def result(call_id: str, output: Any = "12:00", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output} | fields


def said(text: Any, role: str = "assistant", **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text} | fields


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


USER = {"role": "user", "content": "time?"}


def chat_call(call_id: str, name: str = "get_time", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(content: str = "", calls: list[Any] | None = None, reasoning: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": content}
    made |= {"tool_calls": calls} if calls else {}
    return made | ({"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {})


def tool(call_id: str, content: str = "12:00", name: str = "get_time") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": name}


def messages(service: FakeService) -> list[Message]:
    prompt = service.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return list(prompt.messages)


TOLD: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([USER], [USER]),
    ([said([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "user")],
     [{"role": "user", "content": "a\nb"}]),
    ([said("be brief", "developer"), said("", "user", id="msg_1", status="completed")],
     [{"role": "system", "content": "be brief"}, {"role": "user", "content": ""}]),
    ([USER, thought("hm"), said([{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]), USER],
     [USER, assistant("a", reasoning="hm"), USER]),
    ([USER, thought("hm"), said("I look"), call("a"), call("b"), result("b", "07:00"), result("a")],
     [USER, assistant("I look", [chat_call("a"), chat_call("b")], "hm"), tool("a"), tool("b", "07:00")]),
    ([USER, call("a"), result("a"), call("a"), result("a", [{"type": "input_text", "text": "ok"}])],
     [USER, assistant("", [chat_call("a")]), tool("a"), assistant("", [chat_call("a")]), tool("a", "ok")]),
    ([USER, call("a"), said("wait"), result("a", [])], [USER, assistant("wait", [chat_call("a")]), tool("a", "")]),
    ([said("a"), said("b"), thought("c"), said("d")], [assistant("a"), assistant("b"), assistant("d", reasoning="c")]),
    ([USER, {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}],
             "encrypted_content": "gAAA"}, said("a")], [USER, assistant("a")]),
    ([USER, call("a", id="fc_1", status="completed", arguments=""), result("a", id="fco_1", name=None)],
     [USER, assistant("", [chat_call("a", arguments="")]), tool("a")]),
]  # fmt: skip


@pytest.mark.parametrize(("items", "told"), TOLD)
async def test_items_are_told_as_a_chats_messages(
    client: httpx2.AsyncClient, service: FakeService, items: list[dict[str, Any]], told: list[dict[str, Any]]
) -> None:
    await post(client, {"model": "m", "input": items})
    assert messages(service) == told


@pytest.mark.case("responses-out-05")
async def test_a_result_may_be_parts_and_a_type_that_is_none_is_named_with_its_place(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    items = [
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]},
    ]
    await post(client, {"model": "m", "input": items})
    assert messages(service) == [assistant("", [chat_call("c1", "f")]), tool("c1", "ok", "f")]
    response = await client.post(URL, json={"model": "m", "input": [*items, {"type": "nonsense"}]})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "input[2].type")
    assert "input[2].type is 'nonsense'" in error["message"]


WRONG: list[tuple[list[Any], str, str]] = [
    (["text"], "input[0]", "a string"),
    ([USER, {}], "input[1].type", "null"),
    ([USER, {"type": 3}], "input[1].type", "3"),
    ([{"type": "item_reference", "id": "msg_1"}], "input[0].type", "previous_response_id"),
    ([{"type": "computer_call_output"}], "input[0].type", "function_call_output"),
    ([{"type": "x" * 5000}], "input[0].type", "xxxx"),
    ([said("a", "tool")], "input[0].role", "user"),
    ([said(None, "user")], "input[0].content", "null"),
    ([said([], "user")], "input[0].content", "empty"),
    ([said([{"type": "input_image", "image_url": "x"}], "user")], "input[0].content[0].type", "input_image"),
    ([said([{"type": "input_text", "text": 1}], "user")], "input[0].content[0].text", "1"),
    ([said("a", "user", tool_calls=[])], "input[0].tool_calls", "message"),
    ([call("a", arguments={})], "input[0].arguments", "an object"),
    ([call("")], "input[0].call_id", "empty"),
    ([{"type": "function_call", "call_id": "a", "arguments": "{}"}], "input[0].name", "missing"),
    ([call("a", namespace="n"), result("a")], "input[0].namespace", "function_call"),
    ([call("a"), result("a", {"x": 1})], "input[1].output", "an object"),
    ([call("a"), {"type": "function_call_output", "call_id": "a"}], "input[1].output", "null"),
    ([{"type": "reasoning", "summary": [], "content": [{"type": "text", "text": "x"}]}],
     "input[0].content[0].type", "reasoning_text"),
    ([{"type": "reasoning", "summary": []}], "input", "reasoning"),
    ([{"type": "reasoning", "summary": "x"}], "input[0].summary", "a string"),
    ([{"type": "message", "role": "user", "content": "x", "id": 3}], "input[0].id", "3"),
    # What does not pair is told of the item.
    ([USER, call("a"), call("b"), result("a")], "input[2]", "'b'"),
    ([USER, call("a"), USER, result("a")], "input[1]", "'a'"),
    ([USER, result("a")], "input[1].call_id", "'a'"),
    ([USER, call("a"), result("b")], "input[2].call_id", "'b'"),
    ([USER, call("a"), result("a"), result("a")], "input[3].call_id", "'a'"),
    ([USER, call("a"), call("a"), result("a")], "input[2].call_id", "'a'"),
    ([USER, call("a"), result("a"), call("b"), USER, call("b"), result("b")], "input[3]", "'b'"),
]  # fmt: skip


@pytest.mark.parametrize(("items", "param", "words"), WRONG)
async def test_a_wrong_item_is_a_400_with_its_place(
    client: httpx2.AsyncClient, service: FakeService, items: list[Any], param: str, words: str
) -> None:
    response = await client.post(URL, json={"model": "m", "input": items})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert param in error["message"]
    assert words in error["message"]
    assert "messages[" not in error["message"]
    assert len(response.content) < 1000
    assert service.requests == []


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_turn_goes_on_from_the_one_before(
    client: httpx2.AsyncClient, service: FakeService, is_stream: bool
) -> None:
    async def ask(**body: Any) -> Any:
        asked = {"model": "m", "tools": TOOLS["tools"]} | body
        return (await stream(client, asked))[-1]["response"] if is_stream else await post(client, asked)

    service.script = lambda _: CALLS
    first = await ask(input="Oslo?", instructions="Be brief.")
    calls = [chat_call("call_a", arguments='{"zeta": "Oslo"}'), chat_call("call_b", "get_place")]
    service.script = say("It is ", "noon.")
    results = [result("call_b", "north"), result("call_a")]
    second = await ask(input=results, previous_response_id=first["id"])
    told = [
        {"role": "user", "content": "Oslo?"},
        assistant("I look it up.", calls, "Two towns."),
        tool("call_a"),
        tool("call_b", "north", "get_place"),
    ]
    assert messages(service) == told  # instructions are of their own turn alone
    assert second["previous_response_id"] == first["id"]
    third = await ask(input="Thanks.", previous_response_id=second["id"], instructions="Be polite.")
    thanks = [assistant("It is noon."), {"role": "user", "content": "Thanks."}]
    assert messages(service) == [{"role": "system", "content": "Be polite."}, *told, *thanks]
    # The same by items that are sent back as they came.
    items = [USER | {"content": "Oslo?"}, *first["output"], *results, *second["output"], USER | {"content": "Thanks."}]
    await ask(input=items, instructions="Be polite.")
    assert messages(service) == [{"role": "system", "content": "Be polite."}, *told, *thanks]
    # Two may go on from one.
    await ask(input="Again?", previous_response_id=second["id"])
    assert messages(service) == [*told, thanks[0], {"role": "user", "content": "Again?"}]
    # A turn that is forgotten is still what others went on from.
    for each in (first, second):
        assert (await client.delete(f"{URL}/{each['id']}")).json() == {
            "id": each["id"],
            "object": "response",
            "deleted": True,
        }
    await ask(input="Bye.", previous_response_id=third["id"])
    assert len(messages(service)) == len(told) + 4
    gone = await client.post(URL, json={"model": "m", "input": "x", "previous_response_id": second["id"]})
    assert (gone.status_code, gone.json()["error"]["param"]) == (400, "previous_response_id")


async def test_calls_of_the_turn_before_need_their_results(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: CALLS
    first = await post(client, TOOLS)
    for items, param, words in (
        ("and?", "previous_response_id", "'call_a'"),
        ([result("call_a")], "previous_response_id", "'call_b'"),
        ([result("call_a"), result("call_b"), result("call_c")], "input[2].call_id", "'call_c'"),
    ):
        body = {"model": "m", "input": items, "previous_response_id": first["id"]}
        error = (await client.post(URL, json=body)).json()["error"]
        assert (error["param"], words in error["message"]) == (param, True), error


async def test_a_cut_answer_is_gone_on_from_and_one_that_is_not_to_be_kept_is_not(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = lambda _: [delta("Hel"), delta(finish_reason="length")]
    first = await post(client, {"model": "m", "input": "hi"})
    await post(client, {"model": "m", "input": "go on", "previous_response_id": first["id"]})
    assert messages(service)[1:] == [assistant("Hel"), {"role": "user", "content": "go on"}]
    for fields in ({"store": False}, {"store": False, "previous_response_id": first["id"]}):
        answer = await post(client, {"model": "m", "input": "hi"} | fields)
        assert answer["store"] is False
        assert (await client.get(f"{URL}/{answer['id']}")).status_code == 404


async def test_a_kept_response_is_told_as_it_was_answered(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: CALLS
    whole = await post(client, TOOLS)
    streamed = (await stream(client, TOOLS))[-1]["response"]
    for answer in (whole, streamed):
        place = f"{URL}/{answer['id']}"
        assert (await client.get(place)).json() == answer
        assert (await client.get(place, params={"stream": "false"})).json() == answer
        assert (await client.get(place, params={"stream": "true"})).json()["error"]["param"] == "stream"
        cancelled = await client.post(f"{place}/cancel")
        assert (cancelled.status_code, cancelled.json()["error"]["code"]) == (400, "unsupported_feature")
    for way in (client.get, client.delete):
        missing = await way(f"{URL}/resp_none")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "response_not_found")


async def test_log_probabilities_are_kept_with_the_response_and_not_with_its_turn(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    asked = {"model": "m", "input": "hi", "include": ["message.output_text.logprobs"]}
    answer = await post(client, asked)
    assert len(answer["output"][0]["content"][0]["logprobs"]) == 3
    assert (await client.get(f"{URL}/{answer['id']}")).json() == answer
    await post(client, asked | {"previous_response_id": answer["id"]})
    assert messages(service)[1] == assistant("Hello!")


async def test_the_items_of_a_request_are_listed_in_pages(client: httpx2.AsyncClient) -> None:
    items = [
        said("be brief", "developer", id="msg_1"),
        USER | {"id": "msg_2"},
        call("a", id="fc_1"),
        result("a", [{"type": "input_text", "text": "12"}, {"type": "input_text", "text": "00"}], id="fco_1"),
        USER,
    ]
    answer = await post(client, {"model": "m", "input": items, "tools": [TOOL]})
    place = f"{URL}/{answer['id']}/input_items"
    told = (await client.get(place, params={"order": "asc"})).json()
    assert (told["object"], told["has_more"]) == ("list", False)
    own = told["data"][4].pop("id")
    assert own.startswith("msg_")
    assert (told["first_id"], told["last_id"]) == ("msg_1", own)
    text = {"type": "input_text", "text": "time?"}
    user = {"type": "message", "role": "user", "content": [text], "status": "completed"}
    assert told["data"] == [
        {"type": "message", "id": "msg_1", "role": "developer", "content": [text | {"text": "be brief"}],
         "status": "completed"},
        user | {"id": "msg_2"},
        call("a", id="fc_1", status="completed"),
        result("a", "12\n00", id="fco_1", status="completed"),
        user,
    ]  # fmt: skip
    page = (await client.get(place, params={"limit": 2})).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == ([own, "fco_1"], True)
    page = (await client.get(place, params={"limit": "3", "after": "fco_1"})).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (["fc_1", "msg_2", "msg_1"], False)
    page = (await client.get(place, params={"after": "msg_1"})).json()
    assert page == {"data": [], "first_id": None, "last_id": None, "has_more": False, "object": "list"}
    for name, value in (
        ("limit", "0"),
        ("limit", "101"),
        ("limit", "0001000"),
        ("limit", "x"),
        ("order", "up"),
        ("after", "msg_9"),
    ):
        response = await client.get(place, params={name: value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


async def test_the_longest_unused_is_let_go(service: FakeService) -> None:
    async with client_of(make_app(service, ServerConfig(max_stored_responses=2))) as client:
        ids = [(await post(client, {"model": "m", "input": "hi"}))["id"] for _ in range(2)]
        assert (await client.get(f"{URL}/{ids[0]}")).status_code == 200
        await post(client, {"model": "m", "input": "hi"})
        assert (await client.get(f"{URL}/{ids[1]}")).status_code == 404
        response = await client.post(URL, json={"model": "m", "input": "hi", "previous_response_id": ids[1]})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "previous_response_id")
        assert "2" in response.json()["error"]["message"]
        await post(client, {"model": "m", "input": "hi", "previous_response_id": ids[0]})
