"""What the grammars accept and force, by llguidance over real vocabularies; and that chat templates write the same."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import llguidance
import pytest

from headway.errors import InvalidRequest
from headway.text.chat_template import ChatTemplate
from headway.text.constrained_vocabulary import make_llguidance_tokenizer
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls import DIALECT_NAMES, Dialect, choose_dialect
from oracles import llama_cpp_sources
from tool_answers import NOW, TOOLS, WEATHER, function, parse

MakeDialect = Callable[..., Dialect]
MakeTokenizer = Callable[..., Tokenizer]


@pytest.fixture(scope="session")
def demo_guidance(demo: Tokenizer) -> llguidance.LLTokenizer:
    return make_llguidance_tokenizer(demo)


def matcher_of(
    dialect: Dialect, guidance: llguidance.LLTokenizer, tools: Sequence[dict[str, Any]] = TOOLS, **how: Any
) -> llguidance.LLMatcher:
    text = dialect.grammar(tools, **how).text()
    assert llguidance.LLMatcher.validate_grammar(text, guidance) == ""
    return llguidance.LLMatcher(guidance, text)


def accepts(matcher: llguidance.LLMatcher, token_ids: list[int]) -> bool:
    """The whole of it, and it may end there. The matcher is as before."""
    matcher.reset()
    is_whole = matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()
    matcher.reset()
    return is_whole


ONE = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3, "metric": true, '
    '"tags": ["a", "b"]}}\n</tool_call>',
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3, "metric": true, '
    '"tags": ["a", "b"]}}',
    "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3, "metric": true, "tags": ["a", "b"]}',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
    "</parameter>\n<parameter=metric>\ntrue\n</parameter>\n<parameter=tags>\n"
    '["a", "b"]\n</parameter>\n</function>\n</tool_call>',
    "pythonic": '[get_weather(city="Paris", days=3, metric=True, tags=["a", "b"])]',
    "plain_json": '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3, "metric": true, '
    '"tags": ["a", "b"]}}',
}
TWO = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x"}}\n</tool_call>',
    "llama3_json": '{"name": "now", "parameters": {}}; {"name": "get_weather", "parameters": {"city": "x"}}',
    "mistral": '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "x"}',
    "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>",
    "pythonic": '[now(), get_weather(city="x")]',
    "plain_json": '{"name": "now", "arguments": {}}\n{"name": "get_weather", "arguments": {"city": "x"}}',
}


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_calls_are_accepted_and_read(make_dialect: MakeDialect, demo: Tokenizer, demo_guidance: Any, name: str) -> None:
    dialect = make_dialect(name)
    weather = ("get_weather", '{"city": "Paris", "days": 3, "metric": true, "tags": ["a", "b"]}')
    for text, calls in ((ONE[name], [weather]), (TWO[name], [("now", "{}"), ("get_weather", '{"city": "x"}')])):
        assert accepts(matcher_of(dialect, demo_guidance), demo.encode(text, add_special_tokens=False))
        assert parse(dialect, [text], is_enforced=True)[:3] == ("", calls, 0)
        assert re.match(dialect.trigger(TOOLS), text)


@pytest.mark.parametrize("name", DIALECT_NAMES)
@pytest.mark.parametrize(
    "change",
    [
        ("get_weather", "get_time"),
        ("days", "hours"),
        ("3", "12"),
        ("3", "x"),
        ("true", "1"),
        ("True", "1"),
        ("city", "town"),
        ('["a"', "[1"),
        ('"tags":', '"tags" :'),
        ("\n", " "),
        ("", "Sure. "),
    ],
)
def test_what_is_no_call_of_the_tools_is_refused(
    make_dialect: MakeDialect, demo: Tokenizer, demo_guidance: Any, name: str, change: tuple[str, str]
) -> None:
    wrong = ONE[name].replace(change[0], change[1], 1)
    if wrong == ONE[name]:
        wrong = ONE[name] + "x"  # This form has nothing of the kind; nothing may follow it either.
    assert not accepts(matcher_of(make_dialect(name), demo_guidance), demo.encode(wrong, add_special_tokens=False))


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_not_parallel_is_exactly_one_call(
    make_dialect: MakeDialect, demo: Tokenizer, demo_guidance: Any, name: str
) -> None:
    matcher = matcher_of(make_dialect(name), demo_guidance, is_parallel=False)
    assert accepts(matcher, demo.encode(ONE[name], add_special_tokens=False))
    assert not accepts(matcher, demo.encode(TWO[name], add_special_tokens=False))
    assert not accepts(matcher, [])


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_only_the_named_tools_may_be_called(
    make_dialect: MakeDialect, demo: Tokenizer, demo_guidance: Any, name: str
) -> None:
    matcher = matcher_of(make_dialect(name), demo_guidance, names=["get_weather"])
    assert accepts(matcher, demo.encode(ONE[name], add_special_tokens=False))
    assert not accepts(matcher, demo.encode(TWO[name], add_special_tokens=False))


FORCED = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "',
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "',
    "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\n",
    "pythonic": "[get_weather(city=",
    "plain_json": '{"name": "get_weather", "arguments": {"city": "',
}


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_a_named_call_is_forced_up_to_its_first_value(make_dialect: MakeDialect, demo_guidance: Any, name: str) -> None:
    matcher = matcher_of(make_dialect(name), demo_guidance, names=["get_weather"], is_parallel=False)
    assert matcher.compute_ff_bytes().decode() == FORCED[name]


@pytest.mark.parametrize(
    ("name", "markers", "text"),
    [
        ("hermes", ("<tool_call>", "</tool_call>"), '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'),
        ("mistral", ("[TOOL_CALLS]", "[ARGS]"), "[TOOL_CALLS]now[ARGS]{}"),
        ("mistral", ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"), "[TOOL_CALLS]now[CALL_ID]aB3456789[ARGS]{}"),
        ("pythonic", ("<|tool_call_start|>", "<|tool_call_end|>"), "<|tool_call_start|>[now()]<|tool_call_end|>"),
    ],
)
def test_markers_that_are_special_tokens_have_to_be_them(
    byte_tokenizer: MakeTokenizer, name: str, markers: tuple[str, ...], text: str
) -> None:
    tokenizer = byte_tokenizer(*markers)
    template = "[TOOL_CALLS] [CALL_ID] [ARGS]" if "[CALL_ID]" in markers else "tools"
    dialect = choose_dialect(template, tokenizer, name)
    matcher = matcher_of(dialect, make_llguidance_tokenizer(tokenizer))
    assert dialect.markers == set(markers)
    assert accepts(matcher, tokenizer.encode(text, add_special_tokens=False, parse_special=True))
    assert not accepts(matcher, tokenizer.encode(text, add_special_tokens=False))


def test_mistrals_older_form_is_a_list(make_dialect: MakeDialect, demo: Tokenizer, demo_guidance: Any) -> None:
    for opening in ("[TOOL_CALLS][", "[TOOL_CALLS] ["):
        dialect = make_dialect("mistral", opening)
        text = opening + '{"name": "now", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "x"}}]'
        assert accepts(matcher_of(dialect, demo_guidance), demo.encode(text, add_special_tokens=False))
        assert parse(dialect, [text], is_enforced=True).calls == [("now", "{}"), ("get_weather", '{"city": "x"}')]
        parser = dialect.make_parser(TOOLS, is_enforced=True)
        assert parser.push(opening + '{"name": "now", "arguments": {').calls[0].name == "now"


@pytest.mark.parametrize("value", ["", "\n", "a\n</parameter", "null", "</parameter> a", "x</parameter>y", "\n\n a\n"])
def test_qwen3_coders_strings_are_any_text_up_to_the_end_tag(
    make_dialect: MakeDialect, demo: Tokenizer, demo_guidance: Any, value: str
) -> None:
    dialect = make_dialect("qwen3_coder")
    text = f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{value}\n</parameter>\n</function>\n</tool_call>"
    is_accepted = accepts(matcher_of(dialect, demo_guidance), demo.encode(text, add_special_tokens=False))
    found = parse(dialect, [text], is_enforced=True)
    # A text that begins with the end tag is the one that cannot be written: it ends there.
    assert is_accepted == (not value.startswith("</parameter>"))
    if is_accepted:
        assert found.calls == [("get_weather", '{"city": ' + _quoted(value) + "}")]


def _quoted(text: str) -> str:
    return '"' + text.replace("\n", "\\n") + '"'


CHOICES = function(
    "f",
    {
        "type": "object",
        "properties": {
            "unit": {"enum": ["km", "mi"]},
            "count": {"$ref": "#/$defs/count"},
            "maybe": {"type": ["integer", "null"]},
            "nothing": {"type": "null"},
            "text": {"type": "string", "description": "Any."},
            "short": {"type": "string", "maxLength": 2},
        },
        "required": ["count"],
        "$defs": {"count": {"type": "integer", "maximum": 3}},
    },
)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("pythonic", '[f(unit="km", count=3, maybe=null, nothing=None)]', '[f(unit="m", count=3)]'),
        ("pythonic", "[f(count=3)]", "[f(count=4)]"),
        ("pythonic", "[f(unit='km', count=3)]", "[f(unit='m', count=3)]"),
        ("pythonic", r"[f(count=3, text='it\'s \n" + '"' + "')]", "[f(count=3, text='it's')]"),
        ("pythonic", '[f(count=3, short="ab")]', "[f(count=3, short='ab')]"),
        ("pythonic", "[f(count=1, maybe=7)]", "[f(maybe=7)]"),
        ("pythonic", '[f(unit="mi", count=1)]', '[f(count=1, unit="mi")]'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=unit>\nkm\n</parameter>\n<parameter=count>\n3\n</parameter>\n"
            "</function>\n</tool_call>",
            "<tool_call>\n<function=f>\n<parameter=unit>\nm\n</parameter>\n<parameter=count>\n3\n</parameter>\n"
            "</function>\n</tool_call>",
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=count>\n3\n</parameter>\n<parameter=maybe>\nnull\n</parameter>\n"
            "</function>\n</tool_call>",
            "<tool_call>\n<function=f>\n<parameter=count>\n4\n</parameter>\n</function>\n</tool_call>",
        ),
    ],
)
def test_arguments_written_one_by_one_keep_to_their_schemas(
    make_dialect: MakeDialect, demo: Tokenizer, demo_guidance: Any, name: str, right: str, wrong: str
) -> None:
    matcher = matcher_of(make_dialect(name), demo_guidance, [CHOICES])
    assert accepts(matcher, demo.encode(right, add_special_tokens=False))
    assert not accepts(matcher, demo.encode(wrong, add_special_tokens=False))


@pytest.mark.parametrize("name", DIALECT_NAMES)
@pytest.mark.parametrize(
    "parameters", [None, {}, True, {"type": "object"}, {"type": "object", "properties": {}}, {"properties": {}}]
)
def test_tools_without_arguments_can_be_called(
    make_dialect: MakeDialect, demo: Tokenizer, demo_guidance: Any, name: str, parameters: Any
) -> None:
    call = {
        "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "llama3_json": '{"name": "now", "parameters": {}}',
        "mistral": "[TOOL_CALLS]now[ARGS]{}",
        "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "pythonic": "[now()]",
        "plain_json": '{"name": "now", "arguments": {}}',
    }[name]
    matcher = matcher_of(make_dialect(name), demo_guidance, [function("now", parameters)])
    assert accepts(matcher, demo.encode(call, add_special_tokens=False))


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_a_strict_schema_is_refused_where_a_lenient_one_is_enforced_as_far_as_it_can_be(
    make_dialect: MakeDialect, demo_guidance: Any, name: str
) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}},
        "required": ["a"],
        "additionalProperties": False,
    }
    matcher_of(make_dialect(name), demo_guidance, [function("f", parameters)])
    strict = make_dialect(name).grammar([function("f", parameters, strict=True)]).text()
    assert "uniqueItems" in llguidance.LLMatcher.validate_grammar(strict, demo_guidance)


def test_names_are_quoted_as_the_form_quotes_them(
    make_dialect: MakeDialect, demo: Tokenizer, demo_guidance: Any
) -> None:
    tools = [function('a"\\é')]
    text = '<tool_call>\n{"name": "a\\"\\\\é", "arguments": {}}\n</tool_call>'
    dialect = make_dialect("hermes")
    assert accepts(matcher_of(dialect, demo_guidance, tools), demo.encode(text, add_special_tokens=False))
    assert parse(dialect, list(text), is_enforced=True, tools=tools).calls == [('a"\\é', "{}")]


@pytest.mark.parametrize(
    ("tools", "names", "message"),
    [
        ([{"type": "function"}], None, r"tools\[0\].function is missing"),
        ([NOW, function("")], None, r"tools\[1\].function.name must be a text of at least one character"),
        ([function("f", 7)], None, r"tools\[0\].function.parameters must be a JSON schema of an object"),
        ([function("f", False)], None, r"tools\[0\].function.parameters must be a JSON schema of an object"),
        ([NOW, WEATHER], ["later"], r"tool_choice names 'later', which is not among tools \(get_weather, now\)"),
    ],
)
def test_what_is_no_tool_is_refused_by_its_place(
    make_dialect: MakeDialect, tools: list[dict[str, Any]], names: list[str] | None, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_dialect("hermes").grammar(tools, names=names)


def test_an_argument_that_the_form_cannot_write_is_refused(make_dialect: MakeDialect) -> None:
    tool = function("f", {"type": "object", "properties": {"a>b": {"type": "string"}}})
    with pytest.raises(InvalidRequest, match="tool f has an argument named 'a>b'"):
        make_dialect("qwen3_coder").grammar([tool])


RENDERED = {
    "Bielik-11B-v3.0-Instruct": ("<tool_call>", "</tool_call>"),
    "MiMo-VL": ("<tool_call>", "</tool_call>"),
    "Qwen-QwQ-32B": ("<tool_call>", "</tool_call>"),
    "Qwen-Qwen2.5-7B-Instruct": ("<tool_call>", "</tool_call>"),
    "Qwen-Qwen3-0.6B": ("<tool_call>", "</tool_call>"),
    "ibm-granite-granite-4.0": ("<tool_call>", "</tool_call>"),
    "meta-llama-Llama-3.1-8B-Instruct": ('{"name": "get_weather", "parameters": {"city"', "}}"),
    "meta-llama-Llama-3.2-3B-Instruct": ('{"name": "get_weather", "parameters": {"city"', "}}"),
    "unsloth-mistral-Devstral-Small-2507": ("[TOOL_CALLS]", "}"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("[TOOL_CALLS]", "}"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("[TOOL_CALLS]", "}"),
    "Qwen3-Coder": ("<tool_call>", "</tool_call>"),
    "Qwen3.5-4B": ("<tool_call>", "</tool_call>"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("<tool_call>", "</tool_call>"),
    "StepFun3.5-Flash": ("<tool_call>", "</tool_call>"),
    "LFM2.5-8B-A1B": ("<|tool_call_start|>", "<|tool_call_end|>"),
}
"""By template: what its calls begin and end with."""


@pytest.mark.parametrize("name", RENDERED)
def test_the_grammar_is_what_the_template_writes(demo: Tokenizer, demo_guidance: Any, name: str) -> None:
    template = (llama_cpp_sources() / "models" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    arguments = {"city": 'Kö"ln', "days": 3}
    is_single = "only supports single tool-calls" in template
    calls = [
        {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": arguments}},
        {"id": "abcdefghj", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Bonn"}}},
    ][: 1 if is_single else 2]
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": call["id"], "content": "fine"} for call in calls),
    ]
    rendered = ChatTemplate(template).render(messages, tools=TOOLS, add_generation_prompt=False).text
    start, end = RENDERED[name]
    # Behind the question, for templates explain the form with examples.
    answer = rendered[rendered.index(start, rendered.index("Weather?")) :]
    text = answer[: answer.index(end, answer.index("3" if is_single else "Bonn")) + len(end)]
    dialect = choose_dialect(template, demo)
    assert accepts(matcher_of(dialect, demo_guidance), demo.encode(text, add_special_tokens=False)), text
    expected = [("get_weather", '{"city": "Kö\\"ln", "days": 3}'), ("get_weather", '{"city": "Bonn"}')][: len(calls)]
    assert parse(dialect, list(text), is_enforced=True)[:3] == ("", expected, 0)


def test_instructions_show_the_tools_and_the_form(make_dialect: MakeDialect) -> None:
    for name in DIALECT_NAMES:
        dialect = make_dialect(name, "")
        text = dialect.instructions(TOOLS)
        assert '"description": "Weather of a city."' in text
        example = text.rsplit("arguments:\n", 1)[1]
        tool = function("function_name", {"type": "object", "properties": {"argument": {"type": "string"}}})
        assert parse(dialect, [example], is_enforced=True, tools=[tool]).calls == [
            ("function_name", '{"argument": "value"}')
        ]
