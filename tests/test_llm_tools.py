"""LLM.chat with tools and reasoning: they are fields of their own, and what was asked holds whatever the model would
say."""

import json
from typing import Any

import pytest

from headway.core.sampling import SamplingParams
from headway.core.structured import StructuredOutputsParams
from headway.core.tools import ToolUse
from headway.errors import InvalidRequest
from headway.llm import LLM
from headway.testing.scripted_text import REASONING_TEMPLATE
from headway.testing.tiny_model import write_tiny_model

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"day": {"enum": ["today", "tomorrow"]}},
                "required": ["day"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "tides")
]
ASKED = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    with LLM(str(folder), threads=1, kv_cache_memory=2**26) as llm:
        yield llm


@pytest.mark.parametrize(
    ("use", "names"),
    [
        (ToolUse("required", is_parallel=False), {"weather", "tides"}),
        (ToolUse("required", names=("tides",), is_parallel=False), {"tides"}),
        (ToolUse("named", "weather"), {"weather"}),
    ],
)
def test_a_call_that_must_be_made_is_made(llm: LLM, use: ToolUse, names: set[str]) -> None:
    for seed in range(4):
        output = llm.chat(ASKED, SamplingParams(seed=seed, max_tokens=90), tools=TOOLS, tool_use=use)[0].outputs[0]
        [call] = output.tool_calls
        assert call.name in names
        assert json.loads(call.arguments)["day"] in ("today", "tomorrow")
        assert (output.text, output.reasoning, output.finish_reason) == ("", "", "stop")


def test_a_tool_that_is_not_there_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="tool_choice names 'sun', and tools has tides, weather"):
        llm.chat(ASKED, tools=TOOLS, tool_use=ToolUse("named", "sun"))


@pytest.fixture(scope="module")
def reasoning_llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    flags: Any = {"chat_template": REASONING_TEMPLATE, "reasoning_parser": "qwen3"}
    with LLM(str(folder), threads=1, kv_cache_memory=2**26, **flags) as llm:
        yield llm


@pytest.mark.case("so-reason-12", "so-thinkfalse-10")
@pytest.mark.parametrize("is_on", [True, False])
def test_an_answer_is_structured_behind_reasoning_that_ends_in_time(reasoning_llm: LLM, is_on: bool) -> None:
    """The tiny model says one letter after the other and would never end its reasoning; a token is a byte."""
    sampling = SamplingParams(
        temperature=0,
        max_tokens=120,
        thinking_token_budget=20,
        structured_outputs=StructuredOutputsParams(choice=["<yes>", "<no>"]),
    )
    switches = {"enable_thinking": is_on}
    output = reasoning_llm.chat(ASKED, sampling, chat_template_kwargs=switches)[0].outputs[0]
    assert output.text in ("<yes>", "<no>")
    assert output.finish_reason == "stop"
    assert len(output.reasoning) <= 20
    assert bool(output.reasoning) == is_on
