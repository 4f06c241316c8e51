"""One tool conversation and two forced answers through every client.

The conversation: asked for the weather of two cities, the model calls a tool twice in one answer, the second call
fails, both results go back, and the model says it in words.
"""

import json
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import HERE, Asked
from tests.e2e.serving import Server

from headway.testing.script import Script, say

sys.path.insert(0, str(HERE))
from weather import LIMA_ERROR, OSLO_WEATHER, Booking, Town

FINAL = "Oslo has rain; of Lima I know nothing."


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CALLS = "\n".join(call("get_weather", f'{{"city": "{city}"}}') for city in ("Oslo", "Lima"))


@dataclass(frozen=True)
class Client:
    """A program, where it runs, and how it talks."""

    name: str
    environment: str
    api: str = "chat"
    says_first: str = "I look it up.\n"
    final: str = FINAL
    has_results: bool = True
    """Results are messages of the role tool."""

    @property
    def program(self) -> Path:
        return HERE / f"ask_{self.name}.py"

    def script(self, tokens_per_step: int) -> Script:
        """Calls until a result or an error is in the prompt."""
        last = say(self.final, tokens_per_step=tokens_per_step)
        first = say(self.says_first + CALLS, tokens_per_step=tokens_per_step)
        return Script(reply=first, replies={LIMA_ERROR: last}, max_model_len=100_000, is_enforced=True)


CLIENTS = [
    Client("openai", "dev"),
    Client("langgraph", "frameworks"),
    Client("langgraph", "frameworks", "responses"),
    Client("pydantic_ai", "frameworks"),
    Client("pydantic_ai", "frameworks", "responses"),
    Client("openai_agents", "frameworks"),
    Client("openai_agents", "frameworks", "responses"),
    # It asks for a call in every turn, and keeps the history of calls as text.
    Client("smolagents", "frameworks", says_first="", final=call("final_answer", f'{{"answer": "{FINAL}"}}'),
           has_results=False),
    Client("crewai", "crewai"),
    Client("google_adk", "google_adk"),
    Client("agent_framework", "agent_framework"),
    Client("agent_framework", "agent_framework", "responses"),
]  # fmt: skip


def each_client() -> Any:
    return pytest.mark.parametrize(
        "client",
        [
            pytest.param(
                each, id=f"{each.name}-{each.api}", marks=[] if each.environment == "dev" else [pytest.mark.clients]
            )
            for each in CLIENTS
        ],
    )


Told = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
def told_by(ask: Asked, tmp_path: Path) -> Told:
    """What became of each task. They share a process: most of its time is what it imports."""

    async def told(client: Client, base_url: str, model: str, *tasks: str) -> list[dict[str, Any]]:
        await ask(client.environment, client.program, base_url, model, client.api, *tasks)
        lines = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
        assert [line["task"] for line in lines] == list(tasks)
        return lines

    return told


@each_client()
async def test_two_calls_in_parallel_of_which_one_fails(
    serving: Callable[..., Any], told_by: Told, client: Client
) -> None:
    """Whole, then streamed."""
    async with serving(client.script(tokens_per_step=3)) as server:
        told = await told_by(client, server.url, "scripted", "conversation", "streamed")
        prompts = server.prompts()
    for each in told:
        assert sorted(call["city"] for call in each["calls"]) == ["Lima", "Oslo"]
        assert each["text"] == FINAL
    assert len(prompts) == 4
    check_history(prompts[1], client)
    check_history(prompts[3], client)


def check_history(prompt: str, client: Client) -> None:
    """Both results, in the order of the calls that they are of."""
    if not client.has_results:
        assert LIMA_ERROR in prompt
        return
    assert CALLS.replace("\n<tool", "<tool") in prompt
    results = re.findall(r"<\|tool\|>(.*?)<\|end\|>", prompt, re.DOTALL)
    assert [OSLO_WEATHER in each for each in results] == [True, False]
    assert [LIMA_ERROR in each for each in results] == [False, True]
    assert prompt.endswith("<|end|><|assistant|>")


@each_client()
async def test_an_answer_of_a_form_and_a_call_that_has_to_be_made(demo: Server, told_by: Told, client: Client) -> None:
    """By the demo model, which would say something else."""
    answered, called = await told_by(client, demo.url + "/v1", "demo", "answer", "required")
    assert Town.model_validate(answered["answer"]).model_dump() == answered["answer"]
    booking = called["answer"]
    assert booking.keys() in ({"city", "nights"}, {"city", "is_double"})
    assert booking["city"] in ("Oslo", "Lima")
    if "nights" in booking:
        Booking.model_validate(booking)
