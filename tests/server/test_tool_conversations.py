"""Tool calls and reasoning through the official client, from scripted models: words that a model may say, and what a
client makes of them. Whole and streamed are the same."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from tests.server.conftest import listening

from headway.config import ServerConfig
from headway.server.app import make_app
from headway.server.run import HttpServer
from headway.testing.script import Script, say
from headway.testing.scripted_service import ScriptedService


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


OSLO, LIMA = call("get_time", '{"city": "Oslo"}'), call("get_time", '{"city": "Lima"}')
BRACES = '{"code": "if (x) { y } ]", "note": "quote \\" and } é"}'
THOUGHT = "<think>\nTwo towns.\n</think>\n\n"
SAID = {
    "both": f"I look.\n{OSLO}\n{LIMA}",
    "braces": call("run", BRACES),
    "thinks": f"{THOUGHT}{OSLO}",
    "answers": f"{THOUGHT}Noon.",
    "bad": '<tool_call>{"name": bad json',
    "broken": 'Well. <tool_call>\n{"name": "get_time", "arguments": {"city": ]}\n</tool_call>',
    "tail": "Noon.<think>",
}
SCRIPT = Script(
    replies={
        **{f"{word}-{size}": say(text, tokens_per_step=size) for word, text in SAID.items() for size in (1, 5, 500)},
        "n=2": say("Neither.", by_choice={1: [b"<tool_call>\n", OSLO[12:].encode()]}),
    },
    reasoning_parser="qwen3",
)
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    for name in ("get_time", "run")
]


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService(SCRIPT)


@pytest.fixture
async def server(service: ScriptedService) -> AsyncIterator[HttpServer]:
    async with listening(make_app(service, ServerConfig(port=0))) as server:
        await service.until_ready()
        yield server
        await service.until_idle()


@pytest.fixture
async def client(server: HttpServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def asked(word: str, **fields: Any) -> dict[str, Any]:
    start: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": word}], "tools": TOOLS}
    return start | fields


async def whole_of(client: AsyncOpenAI, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await client.chat.completions.create(**body)
    found = []
    for choice in answer.choices:
        message = choice.message
        calls = [(each.function.name, each.function.arguments) for each in message.tool_calls or []]
        ids = [each.id for each in message.tool_calls or []]
        assert len(set(ids)) == len(ids)
        assert all(each.startswith("call_") for each in ids)
        reasoning = (message.model_extra or {}).get("reasoning_content", "")
        found.append(
            {"text": message.content or "", "reasoning": reasoning, "calls": calls, "end": choice.finish_reason}
        )
    return found


async def streamed_of(client: AsyncOpenAI, body: dict[str, Any]) -> list[dict[str, Any]]:
    """As a careful client puts it together: by index, the id and the name from the first part alone."""
    found: list[dict[str, Any]] = [
        {"text": "", "reasoning": "", "calls": [], "end": None} for _ in range(body.get("n", 1))
    ]
    ids: set[str] = set()
    async for chunk in await client.chat.completions.create(**body, stream=True):
        for choice in chunk.choices:
            told, delta = found[choice.index], choice.delta
            told["text"] += delta.content or ""
            told["reasoning"] += (delta.model_extra or {}).get("reasoning_content", "")
            for part in delta.tool_calls or []:
                assert part.function is not None
                if part.index == len(told["calls"]):
                    assert part.id is not None
                    assert part.id not in ids
                    assert (part.type, part.function.arguments) == ("function", "")
                    ids.add(part.id)
                    told["calls"].append((part.function.name, ""))
                else:
                    assert (part.index, part.id, part.function.name) == (len(told["calls"]) - 1, None, None)
                name, arguments = told["calls"][part.index]
                told["calls"][part.index] = (name, arguments + (part.function.arguments or ""))
            assert told["end"] is None
            told["end"] = choice.finish_reason
    return found


async def answers(client: AsyncOpenAI, body: dict[str, Any]) -> list[dict[str, Any]]:
    whole = await whole_of(client, body)
    assert await streamed_of(client, body) == whole
    return whole


OSLO_CALL = ("get_time", '{"city": "Oslo"}')
TOLD = {
    "both": {"text": "I look.", "calls": [OSLO_CALL, ("get_time", '{"city": "Lima"}')], "end": "tool_calls"},
    "braces": {"calls": [("run", BRACES)], "end": "tool_calls"},
    "thinks": {"reasoning": "Two towns.", "calls": [OSLO_CALL], "end": "tool_calls"},
    "answers": {"reasoning": "Two towns.", "text": "Noon."},
    "bad": {"text": SAID["bad"]},
    "broken": {"text": SAID["broken"]},
    "tail": {"text": SAID["tail"]},
}


@pytest.mark.case(
    "tool-stream-dup-03", "tool-parallel-index-04", "tool-brace-string-10", "parser-500-05", "AG022", "AG023", "AG024"
)
@pytest.mark.parametrize("tokens_a_step", [1, 5, 500])
@pytest.mark.parametrize("word", SAID)
async def test_what_a_model_says_is_told_whole_and_streamed_alike(
    client: AsyncOpenAI, word: str, tokens_a_step: int
) -> None:
    """Each call has one index and one id, which its first part brings; no two calls share an index."""
    told = await answers(client, asked(f"{word}-{tokens_a_step}"))
    assert told == [{"text": "", "reasoning": "", "calls": [], "end": "stop"} | TOLD[word]]


async def test_the_official_client_puts_a_stream_together(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(**asked("both-1")) as stream:
        answer = await stream.get_final_completion()
    message = answer.choices[0].message
    assert message.content == "I look."
    assert [json.loads(each.function.arguments)["city"] for each in message.tool_calls or []] == ["Oslo", "Lima"]
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_one_of_two_choices_calls(client: AsyncOpenAI) -> None:
    told = await answers(client, asked("n=2", n=2))
    assert told == [
        {"text": "Neither.", "reasoning": "", "calls": [], "end": "stop"},
        {"text": "", "reasoning": "", "calls": [OSLO_CALL], "end": "tool_calls"},
    ]


async def test_a_call_that_is_cut_is_no_call(client: AsyncOpenAI) -> None:
    """Without a grammar behind it a call is told when it is whole; of half a call the words are told."""
    told = (await answers(client, asked("both-5", max_tokens=40)))[0]
    assert told == {"text": SAID["both"][:40], "reasoning": "", "calls": [], "end": "length"}


async def test_calls_are_text_where_none_are_wanted(client: AsyncOpenAI) -> None:
    for fields in ({"tool_choice": "none"}, {"tools": []}):
        told = (await answers(client, asked("both-5", **fields)))[0]
        assert told == {"text": SAID["both"], "reasoning": "", "calls": [], "end": "stop"}


@pytest.mark.case("reason-off-01")
async def test_a_closed_block_in_the_prompt_means_no_reasoning(client: AsyncOpenAI) -> None:
    for is_on, text, reasoning in ((False, SAID["answers"], ""), (True, "Noon.", "Two towns.")):
        body = asked("answers-5", extra_body={"chat_template_kwargs": {"enable_thinking": is_on}})
        told = (await answers(client, body))[0]
        assert (told["text"], told["reasoning"]) == (text, reasoning)


async def test_tokens_of_reasoning_are_in_the_usage(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**asked("thinks-1"))
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    # A token is a byte; those of the opening tag count from its last one on, when it is known to be one.
    assert details.reasoning_tokens == len("<think>\nTwo towns.\n</think>") - len("<think")
    stream = await client.chat.completions.create(
        **asked("thinks-1"), stream=True, stream_options={"include_usage": True}
    )
    assert [chunk.usage async for chunk in stream][-1] == answer.usage


async def test_calls_that_can_not_be_read_are_counted(client: AsyncOpenAI, server: HttpServer) -> None:
    await client.chat.completions.create(**asked("bad-1"))
    await client.chat.completions.create(**asked("broken-1"))
    async with httpx2.AsyncClient(base_url=server.url) as plain:
        lines = (await plain.get("/metrics")).text.splitlines()
    counts = [line for line in lines if line.startswith("headway_unreadable_tool_calls_total{")]
    assert counts == ['headway_unreadable_tool_calls_total{model_name="scripted"} 2.0']


@pytest.mark.case("AG042", "tool-id-12")
async def test_results_in_another_order_make_the_same_prompt(server: HttpServer) -> None:
    calls = [
        {"id": each, "type": "function", "function": {"name": "get_time", "arguments": f'{{"city": "{city}"}}'}}
        for each, city in (("id_abc", "Oslo"), ("id_xyz", "Lima"))
    ]
    results = [{"role": "tool", "tool_call_id": each, "content": text} for each, text in
               (("id_abc", "12:00"), ("id_xyz", "07:00"))]  # fmt: skip
    history = [{"role": "user", "content": "time?"}, {"role": "assistant", "tool_calls": calls}]
    async with httpx2.AsyncClient(base_url=server.url) as plain:
        texts = []
        for told in (results, results[::-1]):
            made = await plain.post("/tokenize", json={"messages": [*history, *told]})
            shown = await plain.post("/detokenize", json={"tokens": made.json()["tokens"]})
            texts.append(shown.json()["prompt"])
    assert (
        texts[0]
        == texts[1]
        == f"<|user|>time?<|end|><|assistant|>{OSLO}{LIMA}<|end|>"
        + ("<|tool|>12:00<|end|><|tool|>07:00<|end|><|assistant|>")
    )
