"""LLM.chat with tools: calls are fields of their own, and hold to what was asked whatever the model would say."""

import json
from typing import Any

import pytest

from headway.core.sampling import SamplingParams
from headway.core.tools import ToolUse
from headway.errors import InvalidRequest
from headway.llm import LLM
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
