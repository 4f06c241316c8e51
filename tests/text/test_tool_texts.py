"""Tools, calls and results where a chat template knows nothing of them; and what templates are found to know."""

from typing import Any

import pytest

from headway.testing.script import Script
from headway.testing.scripted_text import make_text
from headway.text.chat_template import ChatTemplate
from headway.text.template_forms import TemplateForms
from headway.text.tool_calls import choose_dialect
from headway.text.tool_texts import with_tool_texts
from oracles import llama_cpp_sources

TOOL = {"type": "function", "function": {"name": "get_time", "description": "The time in a town"}}
ASKED = {"role": "user", "content": "time?"}
CALLED = {
    "role": "assistant",
    "content": "I look.",
    "tool_calls": [
        {"id": each, "type": "function", "function": {"name": "get_time", "arguments": arguments}}
        for each, arguments in (("a", '{"town": "Oslo"}'), ("b", {"town": "Å"}))
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "a", "name": "get_time", "content": "12:00"},
    {"role": "tool", "tool_call_id": "b", "name": "get_time", "content": [{"type": "text", "text": "13:00"}]},
]
KNOWS_NOTHING = TemplateForms()
KNOWS_ALL = TemplateForms(shows_tools=True, shows_calls=True)


def told(messages: list[Any], *, dialect: str = "plain_json", forms: TemplateForms = KNOWS_NOTHING) -> list[Any]:
    chosen = choose_dialect("", make_text(Script()).tokenizer, dialect)
    return with_tool_texts(messages, [TOOL], chosen, forms)


def test_a_template_that_knows_tools_gets_what_was_sent() -> None:
    messages = [ASKED, CALLED, *RESULTS]
    assert told(messages, forms=KNOWS_ALL) == messages


def test_tools_and_the_form_of_a_call_are_a_system_text() -> None:
    for messages, tail in (([ASKED], ""), ([{"role": "system", "content": "Be brief."}, ASKED], "\n\nBe brief.")):
        system, *rest = told(messages)
        assert rest == [ASKED]
        assert system["role"] == "system"
        assert '{"name": "get_time", "description": "The time in a town"}' in system["content"]
        assert system["content"].endswith('{"name": "function_name", "arguments": {"argument": "value"}}' + tail)


@pytest.mark.parametrize(
    ("dialect", "written"),
    [
        (
            "plain_json",
            '{"name": "get_time", "arguments": {"town": "Oslo"}}\n{"name": "get_time", "arguments": {"town": "Å"}}',
        ),
        (
            "hermes",
            '<tool_call>\n{"name": "get_time", "arguments": {"town": "Oslo"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_time", "arguments": {"town": "Å"}}\n</tool_call>',
        ),
    ],
)
def test_calls_are_written_as_the_dialect_writes_them_and_results_are_the_users(dialect: str, written: str) -> None:
    _, *rest = told([ASKED, CALLED, *RESULTS, {"role": "assistant", "content": "Noon."}], dialect=dialect)
    assert rest == [
        ASKED,
        {"role": "assistant", "content": f"I look.\n{written}"},
        {"role": "user", "content": "Result of get_time: 12:00\nResult of get_time: 13:00"},
        {"role": "assistant", "content": "Noon."},
    ]


FORMS = {
    "Qwen-Qwen2.5-7B-Instruct": (False, False, True, True),
    "Qwen-Qwen3-0.6B": (True, False, True, True),
    "Qwen3-Coder": (False, False, True, True),
    "meta-llama-Llama-3.1-8B-Instruct": (False, False, True, True),
    "mistralai-Mistral-Nemo-Instruct-2407": (False, False, True, True),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (True, True, False, True),
    "google-gemma-2-2b-it": (False, False, False, False),
    "microsoft-Phi-3.5-mini-instruct": (False, False, False, False),
}
"""Read from the templates: arguments written as they are given, calls shown beside null alone, tools, calls."""


@pytest.mark.parametrize("name", FORMS)
def test_what_a_template_takes_is_found_out(name: str) -> None:
    source = (llama_cpp_sources() / "models" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    forms = ChatTemplate(source, bos_token="<s>", eos_token="</s>").forms
    found = (forms.takes_arguments_text, forms.needs_null_content, forms.shows_tools, forms.shows_calls)
    assert found == FORMS[name]
