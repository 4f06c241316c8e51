"""One tool conversation and two forced answers through every client.

The conversation: asked for the weather of two cities, the model calls a tool twice in one answer, the second call
fails, both results go back, and the model says it in words.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import HERE, Asked
from tests.e2e.serving import Server

from headway.testing.script import Script, say

sys.path.insert(0, str(HERE))
from weather import LIMA_ERROR, OSLO_WEATHER, Town

FINAL = "Oslo has rain; of Lima I know nothing."


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CALLS = "\n".join(call("get_weather", f'{{"city": "{city}"}}') for city in ("Oslo", "Lima"))


@dataclass(frozen=True)
class Client:
    """A program, where it runs, and how it talks."""

    name: str
    environment: str
    """Empty: this one."""
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
    Client("openai", ""),
    Client("langgraph", "frameworks"),
    Client("pydantic_ai", "frameworks"),
    Client("openai_agents", "frameworks"),
    # It asks for a call in every turn, and keeps the history of calls as text.
    Client("smolagents", "frameworks", says_first="", final=call("final_answer", f'{{"answer": "{FINAL}"}}'),
           has_results=False),
    Client("crewai", "crewai"),
    Client("google_adk", "google_adk"),
    Client("agent_framework", "agent_framework"),
]  # fmt: skip


def each_client() -> Any:
    marks = {True: [pytest.mark.clients], False: []}
    return pytest.mark.parametrize(
        "client", [pytest.param(each, id=each.name, marks=marks[bool(each.environment)]) for each in CLIENTS]
    )


@each_client()
@pytest.mark.parametrize("task", ["conversation", "streamed"])
async def test_two_calls_in_parallel_of_which_one_fails(
    serving: Callable[[Script], Any], ask: Asked, client: Client, task: str
) -> None:
    async with serving(client.script(tokens_per_step=3)) as server:
        told = await ask(client.environment, client.program, server.url, "scripted", task)
        prompts = server.prompts()
    assert sorted(each["city"] for each in told["calls"]) == ["Lima", "Oslo"]
    assert told["text"] == FINAL
    assert len(prompts) == 2
    check_history(prompts[1], client)


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
async def test_an_answer_of_a_form(demo: Server, ask: Asked, client: Client) -> None:
    told = await ask(client.environment, client.program, demo.url + "/v1", "demo", "answer")
    assert Town.model_validate(told["answer"]).model_dump() == told["answer"]


@each_client()
async def test_a_call_that_has_to_be_made(demo: Server, ask: Asked, client: Client) -> None:
    told = await ask(client.environment, client.program, demo.url + "/v1", "demo", "required")
    booking = told["answer"]
    assert booking.keys() in ({"city", "nights"}, {"city", "is_double"})
    assert booking["city"] in ("Oslo", "Lima")
