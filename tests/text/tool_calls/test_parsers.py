"""Every parser on the same kinds of answers: whole, by character, and cut at every offset, enforced or not."""

import re
from collections.abc import Callable

import pytest

from headway.text.tool_calls import DIALECT_NAMES, Dialect
from headway.text.tool_calls.source import Source
from tool_answers import TOOLS, function, parse, parse_anyhow

MakeDialect = Callable[..., Dialect]
PARIS = ("get_weather", '{"city": "Paris"}')
NOW = ("now", "{}")

MISTRAL_LIST = 'tools "[TOOL_CALLS] ["'
"""Of a template: the older form."""

READ: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    # dialect, answer, its text, its calls
    ("hermes", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "", [NOW]),
    (
        "hermes",
        'Let me see.\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
        "Let me see.",
        [PARIS, NOW],
    ),
    ("hermes", '\n\n<tool_call>{"name":"now","arguments":{}}</tool_call>', "", [NOW]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n\nDone. ', "\n\nDone. ", [NOW]),
    ("hermes", '<tool_call>\n{"name": "now", "arguments": {}}', "", [NOW]),
    ("hermes", 'Now: \n<tool_call>{"name": "now", "arguments": {}}</tool_call> Done.', "Now: Done.", [NOW]),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}}{"name": "now", "arguments": {}}</tool_call>',
        "",
        [NOW] * 2,
    ),
    ("hermes", '<tool_call>\n{"arguments": {"city": "Paris"}, "name": "get_weather"}\n</tool_call>', "", [PARIS]),
    ("hermes", '<tool_call>{"id": 7, "name": "now", "more": [{}], "arguments": {}}</tool_call>', "", [NOW]),
    ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [NOW]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', "", [NOW]),
    ("hermes", '<tool_call>{"name": "now", "arguments": ""}</tool_call>', "", [NOW]),
    ("hermes", r'<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>', "", [PARIS]),
    ("hermes", '<tool_call>{"name": "get_weather", "parameters": {"city": "Paris"}}</tool_call>', "", [PARIS]),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', "", [("unknown", "{}")]),
    (
        "hermes",
        r'<tool_call>{"name": "n\u006fw", "arguments": {"a": "}</tool_call>\"{", "b": {"c": [1.5e3, "é☀😀\u00e9"]}}}',
        "",
        [("now", r'{"a": "}</tool_call>\"{", "b": {"c": [1.5e3, "é☀😀\u00e9"]}}')],
    ),
    ("hermes", "a < b <tool <tool_call", "a < b <tool <tool_call", []),
    ("hermes", "  only text \n", "  only text \n", []),
    ("hermes", " \n ", " \n ", []),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "llama3_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}',
        "",
        [PARIS, NOW],
    ),
    ("llama3_json", '{"name": "now", "parameters": {}};{"name": "now", "parameters": {}}', "", [NOW] * 2),
    ("llama3_json", '{"name": "now", "parameters": {}}\n{"name": "now", "parameters": {}}', "", [NOW] * 2),
    ("llama3_json", 'Sure: {"type": "function", "name": "now", "parameters": {}}', "Sure:", [NOW]),
    ("llama3_json", '{"name": "now", "arguments": {}}', "", [NOW]),
    ("llama3_json", '<|python_tag|>{"name": "unknown", "parameters": {}}', "", [("unknown", "{}")]),
    ("llama3_json", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
    ("llama3_json", '{"a": {"b": 1}} and {x}', '{"a": {"b": 1}} and {x}', []),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}', "", [PARIS, NOW]),
    ("mistral", "Yes.[TOOL_CALLS]now[CALL_ID]aB3456789[ARGS]{}", "Yes.", [NOW]),
    ("mistral", "[TOOL_CALLS]now{}", "", [NOW]),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        "",
        [PARIS, NOW],
    ),
    ("mistral", '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "abcdefghi"}]', "", [NOW]),
    ("mistral", '[TOOL_CALLS] {"name": "now", "arguments": {}}', "", [NOW]),
    ("mistral", "See [1] and [TOOL].", "See [1] and [TOOL].", []),
    (
        "qwen3_coder",
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
        "\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "I look.",
        [PARIS, NOW],
    ),
    (
        "qwen3_coder",
        '<tool_call>\n<function=get_weather>\n<parameter=city>\n\n  <b>"Köln"\n\\</b>\n\n</parameter>\n<parameter=days>'
        "\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n<parameter=tags>\n['a', \"b\"]\n</parameter>"
        "\n</function>\n</tool_call>",
        "",
        [
            (
                "get_weather",
                '{"city": "\\n  <b>\\"Köln\\"\\n\\\\</b>\\n", "days": 3, "metric": true, "tags": ["a", "b"]}',
            )
        ],
    ),
    (
        "qwen3_coder",
        "<function=get_weather><parameter=city>Paris</parameter></function></tool_call>",
        "",
        [PARIS],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=get_weather>\n<parameter=city>\n7\n</parameter>\n<parameter=days>\nsoon\n</parameter>\n"
        "<parameter=other>\n7\n</parameter>\n</function>",
        "",
        [("get_weather", '{"city": "7", "days": "soon", "other": "7"}')],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n</parameter>\n</function>\n</tool_call>",
        "",
        [("get_weather", '{"city": ""}')],
    ),
    ("pythonic", '[get_weather(city="Paris"), now()]', "", [PARIS, NOW]),
    ("pythonic", "<|tool_call_start|>[get_weather(city='Paris')]<|tool_call_end|>Wait.", "Wait.", [PARIS]),
    (
        "pythonic",
        'I call [get_weather(city="a\\"\\u00e9\\n\', ]", days=-3, metric=False, tags=["a", ("b",)], x={"y": None,}, )]',
        "I call",
        [
            (
                "get_weather",
                '{"city": "a\\"\\u00e9\\n\', ]", "days": -3, "metric": false, "tags": ["a", ["b"]], "x": {"y": null}}',
            )
        ],
    ),
    ("pythonic", "<|tool_call_start|>[unknown()]", "", [("unknown", "{}")]),
    ("pythonic", "[1, 2] and [text](link) and [nothing()]", "[1, 2] and [text](link) and [nothing()]", []),
    ("plain_json", '{"name": "get_weather", "arguments": {"city": "Paris"}}', "", [PARIS]),
    (
        "plain_json",
        'So:\n```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n{"name": "now", "arguments": {}}\n```',
        "So:",
        [PARIS, NOW],
    ),
    ("plain_json", '```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```', []),
    ("plain_json", '{"name": "Bob", "arguments": {}}', '{"name": "Bob", "arguments": {}}', []),
]


@pytest.mark.parametrize("is_enforced", [False, True])
@pytest.mark.parametrize(("name", "answer", "text", "calls"), READ)
def test_text_and_calls_are_told_apart_however_the_answer_is_cut(
    make_dialect: MakeDialect, name: str, answer: str, text: str, calls: list[tuple[str, str]], is_enforced: bool
) -> None:
    assert parse_anyhow(make_dialect(name), answer, is_enforced=is_enforced)[:3] == (text, calls, 0)


UNREADABLE = [
    ("hermes", "<tool_call>nothing</tool_call>"),
    ("hermes", "a  <tool_call>\n</tool_call> b"),
    ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "soon"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 01}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "\n"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1,}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": null, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>{'name': 'now', 'arguments': {}}</tool_call>"),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1'),
    ("llama3_json", '<|python_tag|>brave_search.call(query="x")'),
    ("llama3_json", '{"name": "now", "parameters": 7}'),
    ("llama3_json", '{"name": "now", "age": 3}'),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS] []"),
    ("mistral", "[TOOL_CALLS]now[CALL_ID]short[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]now[ARGS]soon"),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\n1\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>now</tool_call>"),
    ("qwen3_coder", "<function=now\n>"),
    ("pythonic", "[now(a=1, a=2)]"),
    ("pythonic", "[now(1)]"),
    ("pythonic", "[now(a=b)]"),
    ("pythonic", "<|tool_call_start|>now<|tool_call_end|>"),
]


@pytest.mark.parametrize(("name", "answer"), UNREADABLE)
def test_what_cannot_be_read_is_text_and_counted(make_dialect: MakeDialect, name: str, answer: str) -> None:
    assert parse_anyhow(make_dialect(name), answer)[:3] == (answer, [], 1)


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_a_call_behind_one_that_cannot_be_read_is_read(make_dialect: MakeDialect, name: str) -> None:
    broken, whole, _ = _broken_and_whole(name)
    assert parse_anyhow(make_dialect(name), broken + whole)[:3] == (broken.rstrip(), [NOW], 1)


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_a_call_before_one_that_cannot_be_read_stays_a_call(make_dialect: MakeDialect, name: str) -> None:
    broken, whole, _ = _broken_and_whole(name)
    found = parse_anyhow(make_dialect(name), whole + "\n" + broken)
    assert (found.text.strip(), found.calls, found.num_unreadable) == (broken.strip(), [NOW], 1)


def _broken_and_whole(name: str) -> tuple[str, str, str]:
    """The beginning of a call, which goes wrong behind it; a whole call; what makes a call of the beginning."""
    return {
        "hermes": ('<tool_call>\n{"name": "now", "arguments": {"a" ', _whole("hermes"), ": 1}}\n</tool_call>"),
        "llama3_json": ('{"name": "now", "parameters": {"a" ', _whole("llama3_json"), ": 1}}"),
        "mistral": ('[TOOL_CALLS]now[ARGS]{"a" ', _whole("mistral"), ": 1}"),
        "qwen3_coder": (
            "<tool_call>\n<function=now>\n<parameter=\n",
            _whole("qwen3_coder"),
            "a>\n1\n</parameter>\n</function>\n</tool_call>",
        ),
        "pythonic": ("[now(a ", _whole("pythonic"), "=1)]"),
        "plain_json": ('{"name": "now", "arguments": {"a" ', _whole("plain_json"), ": 1}}"),
    }[name]


def _whole(name: str) -> str:
    return {
        "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "llama3_json": '{"name": "now", "parameters": {}}',
        "mistral": "[TOOL_CALLS]now[ARGS]{}",
        "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "pythonic": "[now()]",
        "plain_json": '{"name": "now", "arguments": {}}',
    }[name]


ENFORCED: dict[str, tuple[str, str, str]] = {
    # What comes before the arguments, the arguments up to where they are cut, as JSON.
    "hermes": ('<tool_call>\n{"name": "get_weather", "arguments": ', '{"city": "Par', '{"city": "Par'),
    "llama3_json": ('{"name": "get_weather", "parameters": ', '{"city": "Par', '{"city": "Par'),
    "mistral": ("[TOOL_CALLS]get_weather[ARGS]", '{"city": "Par', '{"city": "Par'),
    "qwen3_coder": ("<tool_call>\n<function=get_weather>\n", "<parameter=city>\nPar", '{"city": "Par'),
    "pythonic": ("[get_weather(", 'city="Par', '{"city": "Par'),
    "plain_json": ('{"name": "get_weather", "arguments": ', '{"city": "Par', '{"city": "Par'),
}


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_an_enforced_call_is_given_as_it_is_made_and_its_part_stays_where_it_is_cut(
    make_dialect: MakeDialect, name: str
) -> None:
    head, arguments, expected = ENFORCED[name]
    dialect = make_dialect(name)
    assert parse_anyhow(dialect, head + arguments, is_enforced=True, is_cut=True)[:3] == (
        "",
        [("get_weather", expected)],
        0,
    )
    parser = dialect.make_parser(TOOLS, is_enforced=True)
    parser.push(head[:-1])
    named = parser.push(head[-1] + arguments[:1])
    assert [delta.name for delta in named.calls][:1] == ["get_weather"]
    before = sum(len(delta.arguments) for delta in named.calls)
    assert sum(len(delta.arguments) for delta in parser.push(arguments[1:]).calls) + before == len(expected)


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_a_call_that_nobody_enforces_is_given_whole_or_not_at_all(make_dialect: MakeDialect, name: str) -> None:
    head, arguments, _ = ENFORCED[name]
    found = parse_anyhow(make_dialect(name), head + arguments, is_cut=True)
    assert found[:3] == (head + arguments, [], 0)


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_a_call_that_does_not_keep_to_the_grammar_is_not_taken_for_enforced(
    make_dialect: MakeDialect, name: str
) -> None:
    """As where the engine gave up: a token went on behind the trigger in another way."""
    broken, _, _ = _broken_and_whole(name)
    other = re.sub(r"now", "elsewhere", broken) if name == "mistral" else broken.replace('"name": ', '"name":  ')
    if name in ("qwen3_coder", "pythonic"):
        other = broken.replace("<tool_call>\n", "<tool_call>").replace("[now", "[ now")
    assert other != broken
    assert parse_anyhow(make_dialect(name), other, is_enforced=True)[:3] == (other, [], 1)


def test_half_a_closing_tag_is_nobodys_text(make_dialect: MakeDialect) -> None:
    answer = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_ca'
    assert parse_anyhow(make_dialect("hermes"), answer, is_enforced=True, is_cut=True)[:2] == ("", [NOW])


@pytest.mark.parametrize("name", DIALECT_NAMES)
def test_ids_are_unique_and_of_the_dialects_form(make_dialect: MakeDialect, name: str) -> None:
    answers = [parse(make_dialect(name), [_whole(name) + "\n" + _whole(name)]) for _ in range(20)]
    ids = [each for answer in answers for each in answer.ids]
    assert len(set(ids)) == 40
    form = "[A-Za-z0-9]{9}" if name == "mistral" else "call_[0-9a-f]{24}"
    assert all(re.fullmatch(form, each) for each in ids)


def test_an_id_that_the_model_wrote_is_kept_unless_it_is_taken(make_dialect: MakeDialect) -> None:
    call = "[TOOL_CALLS]now[CALL_ID]aB3456789[ARGS]{}"
    first, second = parse(make_dialect("mistral"), [call, call]).ids
    assert first == "aB3456789"
    assert re.fullmatch("[A-Za-z0-9]{9}", second)


def test_text_is_held_back_only_while_it_may_become_a_call(make_dialect: MakeDialect) -> None:
    parser = make_dialect("hermes").make_parser(TOOLS, is_enforced=False)
    assert parser.push("a <tool").text == "a"
    assert parser.push("s> b").text == " <tools> b"
    assert parser.push(" \n").text == ""
    assert parser.push("c").text == " \nc"


def test_an_answer_in_json_is_not_held_back_until_its_end(make_dialect: MakeDialect) -> None:
    parser = make_dialect("llama3_json").make_parser(TOOLS, is_enforced=False)
    assert parser.push('{"items": [').text == '{"items": ['


TYPED = function(
    "f",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "integer": {"type": "integer"},
            "number": {"type": "number"},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "maybe": {"type": ["string", "null"]},
            "object": {"$ref": "#/$defs/object"},
            "choice": {"enum": [1, True]},
            "untyped": {},
        },
        "$defs": {"object": {"type": "object"}},
    },
)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("text", "null", '"null"'),
        ("text", '{"a": 1}', '"{\\"a\\": 1}"'),
        ("integer", " 12345678901234567890 ", "12345678901234567890"),
        ("integer", "1.5", '"1.5"'),
        ("number", "1", "1"),
        ("number", "-1.50E2", "-1.50E2"),
        ("either", "7", "7"),
        ("either", "None", "null"),
        ("maybe", "null", "null"),
        ("maybe", "7", '"7"'),
        ("object", '{"a": [1, {}]}', '{"a": [1, {}]}'),
        ("object", "{'a': True}", '{"a": true}'),
        ("object", "{", '"{"'),
        ("choice", "1", "1"),
        ("choice", "TRUE", "true"),
        ("untyped", "1", '"1"'),
    ],
)
def test_qwen3_coders_values_have_the_types_of_the_schema(
    make_dialect: MakeDialect, argument: str, value: str, expected: str
) -> None:
    answer = f"<tool_call>\n<function=f>\n<parameter={argument}>\n{value}\n</parameter>\n</function>\n</tool_call>"
    found = parse_anyhow(make_dialect("qwen3_coder"), answer, tools=[TYPED])
    assert found.calls == [("f", f'{{"{argument}": {expected}}}')]


LONG: dict[str, tuple[str, str]] = {
    "hermes": ('<tool_call>\n{"name": "now", "arguments": {"a": "', '"}}\n</tool_call>'),
    "llama3_json": ('{"name": "now", "parameters": {"a": "', '"}}'),
    "mistral": ('[TOOL_CALLS]now[ARGS]{"a": "', '"}'),
    "qwen3_coder": ("<tool_call>\n<function=now>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "pythonic": ('[now(a="', '")]'),
    "plain_json": ('{"name": "now", "arguments": {"a": "', '"}}'),
}


@pytest.mark.parametrize("name", DIALECT_NAMES)
@pytest.mark.parametrize("is_enforced", [False, True])
def test_what_was_read_is_not_read_again(
    make_dialect: MakeDialect, monkeypatch: pytest.MonkeyPatch, name: str, is_enforced: bool
) -> None:
    """The cost of an answer is in proportion to its length: at most a marker's beginning waits for what comes next."""
    waiting: list[int] = []
    feed = Source.feed

    def watched(source: Source, text: str) -> None:
        waiting.append(len(source.text) - source.at)
        feed(source, text)

    monkeypatch.setattr(Source, "feed", watched)
    head, tail = LONG[name]
    value = "ab </c> {[(<" * 500
    found = parse(make_dialect(name), list("free text. " * 500 + head + value + tail), is_enforced=is_enforced)
    assert found[1:3] == ([("now", f'{{"a": "{value}"}}')], 0)
    assert max(waiting) < 20
