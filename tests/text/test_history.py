"""Results belong to calls by their ids, and prompts of a conversation that goes on begin alike."""

import json
from typing import Any

import pytest

from headway.errors import InvalidRequest, TemplateRefused
from headway.text.chat_template import ChatTemplate
from headway.text.history import pair_results
from oracles import llama_cpp_sources

TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time in a town",
        "parameters": {"type": "object", "properties": {"zeta": {"type": "number"}, "alpha": {"type": "string"}}},
    },
}


def asks(text: str = "What time is it?") -> dict[str, Any]:
    return {"role": "user", "content": text}


def calls(*ids: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": each, "type": "function", "function": {"name": f"f_{each}", "arguments": arguments}} for each in ids
        ],
    } | fields


def result(call_id: str, content: str = "noon", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content} | fields


@pytest.mark.case("tool-id-12")
def test_results_come_in_the_order_of_the_calls() -> None:
    messages = [asks(), calls("a", "b"), result("b", "B"), result("a", "A", name="mine"), asks("thanks")]
    paired = pair_results(messages)
    assert [message["content"] for message in paired] == ["What time is it?", "", "A", "B", "thanks"]
    assert [message.get("name") for message in paired[2:4]] == ["mine", "f_b"]
    assert messages[2] == result("b", "B")


def test_an_id_may_come_again_in_a_later_message() -> None:
    messages = [asks(), calls("a"), result("a", "1"), calls("a"), result("a", "2")]
    assert [message["content"] for message in pair_results(messages)] == ["What time is it?", "", "1", "", "2"]


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([asks(), result("a")], "messages[1].tool_call_id", "'a', and the message of the assistant before it made no"),
        ([asks(), calls("a"), result("a"), asks(), result("a")], "messages[4].tool_call_id", "made no calls"),
        ([asks(), calls("a"), result("b")], "messages[2].tool_call_id", "has the calls 'a'"),
        ([asks(), calls("a"), result("a"), result("a")], "messages[3].tool_call_id", "an earlier message has that"),
        ([asks(), calls("a"), {"role": "tool", "content": ""}], "messages[2].tool_call_id", "is missing"),
        ([asks(), calls("a", "b"), result("b"), asks()], "messages[1].tool_calls", "has the call 'a', and no message"),
        ([asks(), calls("a"), asks(), result("a")], "messages[1].tool_calls", "has the call 'a', and no message"),
        ([asks(), calls("a")], "messages[1].tool_calls", "has the call 'a', and no message"),
        ([asks(), calls("a", "a")], "messages[1].tool_calls[1].id", "ids must differ"),
        ([asks(), calls("")], "messages[1].tool_calls[0].id", "is missing"),
    ],
)
def test_what_does_not_pair_is_refused_by_place_and_id(messages: list[Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        pair_results(messages)
    assert refused.value.param == param


def test_a_conversation_may_end_with_calls_where_nothing_is_asked() -> None:
    messages = [asks(), calls("a", "b")]
    assert pair_results(messages, may_end_open=True) == messages
    with pytest.raises(InvalidRequest, match="has the call 'a'"):
        pair_results([*messages, result("b")], may_end_open=True)


def template_named(name: str) -> ChatTemplate:
    source = (llama_cpp_sources() / "models" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", control_tokens=("<|im_end|>",))


SHOWN = {
    "Qwen-Qwen2.5-7B-Instruct": '{"name": "f_a", "arguments": {"zeta": 1.0, "alpha": "ü\\u00fc"}}',
    "Qwen-Qwen3-0.6B": '{"name": "f_a", "arguments": {"zeta": 1.0, "alpha": "ü\\u00fc"}}',
    "mistralai-Mistral-Nemo-Instruct-2407": '{"name": "f_a", "arguments": {"zeta": 1.0, "alpha": "üü"}, "id"',
    "meta-llama-Llama-3.2-3B-Instruct": '{"name": "f_a", "parameters": {"zeta": 1.0, "alpha": "ü\\u00fc"}}',
    "Qwen3-Coder": "<parameter=zeta>\n1.0\n</parameter>\n<parameter=alpha>\nüü\n</parameter>",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": '```json\n{"zeta": 1.0, "alpha": "ü\\u00fc"}\n```',
}
"""Of templates that take arguments as text, as an object, look into them, or show calls beside null alone."""


@pytest.mark.case("kv-order-07")
@pytest.mark.parametrize("name", SHOWN)
def test_arguments_are_rendered_as_they_were_written(name: str) -> None:
    template = template_named(name)
    long_id = "abcdefgh1"  # Mistral's ids have nine characters
    message = calls(long_id, arguments='{"zeta": 1.0, "alpha": "ü\\u00fc"}')
    message["tool_calls"][0]["function"]["name"] = "f_a"
    text = template.render([asks(), message, result(long_id)], tools=[TOOL]).text
    assert SHOWN[name] in text


@pytest.mark.parametrize("written", ['{"zeta":1.0,"alpha":"ü"}', {"zeta": 1.0, "alpha": "ü"}])
@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B"])
def test_arguments_that_a_client_wrote_anew_are_spaced_as_models_do(name: str, written: Any) -> None:
    text = template_named(name).render([asks(), calls("a", arguments=written), result("a")], tools=[TOOL]).text
    assert '"arguments": {"zeta": 1.0, "alpha": "ü"}' in text


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen3-Coder"])
def test_no_arguments_are_an_object_without_members(name: str) -> None:
    template = template_named(name)
    rendered = {
        template.render([asks(), calls("a", arguments=none), result("a")]).text for none in ("", " ", "{}", {})
    }  # fmt: skip
    assert len(rendered) == 1


def test_arguments_that_were_cut_stay_as_they_are() -> None:
    text = template_named("Qwen-Qwen3-0.6B").render([asks(), calls("a", arguments='{"zeta": 1'), result("a")]).text
    assert '"arguments": {"zeta": 1}' in text


def test_control_tokens_in_arguments_stay_text() -> None:
    arguments = json.dumps({"text": "a<|im_end|>b"})
    rendered = template_named("Qwen-Qwen3-0.6B").render([asks(), calls("a", arguments=arguments), result("a")])
    assert arguments in rendered.text
    protected = [rendered.text[start:end] for start, end in rendered.protected]
    assert protected == ["<|im_end|>"]


@pytest.mark.case("AG045")
def test_no_content_beside_calls_is_the_same_however_it_is_said() -> None:
    """Over all templates that show calls at all: null, "" and no content; nothing prints None."""
    num_shown = 0
    for file in sorted((llama_cpp_sources() / "models" / "templates").glob("*.jinja")):
        template = template_named(file.stem)
        rendered = {_without_content(template, content) for content in ("", None, "absent")}
        assert len(rendered) == 1, file.stem
        text = rendered.pop()
        if text is not None and "abcdefgh1" in text:
            num_shown += 1
    assert num_shown > 10


def _without_content(template: ChatTemplate, content: str | None) -> str | None:
    message = calls("abcdefgh1")
    del message["content"]
    message |= {} if content == "absent" else {"content": content}
    try:
        text = template.render([asks(), message, result("abcdefgh1")], tools=[TOOL]).text
    except TemplateRefused:
        return None
    assert "None" not in text.replace("None of", "") or "None" in template.source, text
    return text


APPEND_ONLY = (
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen3-Coder",
    "meta-llama-Llama-3.2-3B-Instruct",
    "ibm-granite-granite-4.0",
    "GigaChat3-10B-A1.8B",
)
"""Templates whose text of earlier messages does not depend on later ones. (Qwen 3 drops earlier turns' reasoning,
Mistral's moves the tools to the last question.)"""


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_a_turns_prompt_begins_with_the_turn_befores(name: str) -> None:
    template = template_named(name)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, asks()]
    before = ""
    for turn in range(10):
        prompt = template.render(messages, tools=[TOOL], add_generation_prompt=True, **_date(template)).text
        assert prompt.startswith(before.rstrip())
        before = template.render(messages, tools=[TOOL], add_generation_prompt=False, **_date(template)).text
        assert prompt.startswith(before)
        arguments = json.dumps({"zeta": turn / 2, "alpha": "ü"}, ensure_ascii=False)
        messages += pair_results([calls(f"c{turn}", arguments=arguments), result(f"c{turn}", str(turn))])


def _date(template: ChatTemplate) -> dict[str, str]:
    return {"date_string": "1 Jan 2026"} if "date_string" in template.switches else {}
