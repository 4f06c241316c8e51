"""A choice's text on its way through reasoning and tool calls: whole, token by token, cut, and when a parser fails."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

import headway_wire as wire
from headway.core.output import TextDelta
from headway.core.request import ChatPrompt, GenerateRequest
from headway.core.sampling import SamplingParams
from headway.core.tools import ToolCall, add_deltas
from headway.testing.script import Script
from headway.testing.scripted_text import make_text
from headway.text.reasoning import ReasoningState, choose_reasoning
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls import Dialect, choose_dialect, pythonic
from headway.text.tool_calls.dialect import special_ids
from headway.worker import answer_parser
from headway.worker.answer_parser import AnswerParser
from headway.worker.assembler import ChoiceAssembler
from headway.worker.constraining import OutputForm, OutputStyle, choose_form

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}é"}}\n</tool_call>'
SAID = f"<think>\nwhy\n</think>\n\nText. {CALL}\n{CALL}"
TEMPLATE = "<think></think>"


def form(
    tokenizer: Tokenizer, state: ReasoningState = ReasoningState.UNOPENED, *, is_enforced: bool = False
) -> OutputForm:
    dialect = choose_dialect("", tokenizer, "hermes")
    return OutputForm(choose_reasoning(TEMPLATE, tokenizer, "qwen3"), state, dialect, TOOLS, is_enforced)


def read(
    assembler: ChoiceAssembler, tokens: Sequence[Sequence[int]], end: str = "stop"
) -> tuple[str, str, list[ToolCall], TextDelta]:
    deltas = [assembler.push(wire.TokenEvent("r", 0, list(ids))) for ids in tokens]
    deltas.append(assembler.push(wire.TokenEvent("r", 0, [], finish_reason=end)))
    told = [delta for delta in deltas if delta is not None]
    calls: list[ToolCall] = []
    for delta in told:
        add_deltas(calls, delta.tool_calls)
    return "".join(d.reasoning for d in told), "".join(d.text for d in told), calls, told[-1]


@pytest.mark.parametrize("tokens_a_step", [1, 2, 7, 1000])
def test_reasoning_text_and_calls_are_the_same_however_tokens_come(tokenizer: Tokenizer, tokens_a_step: int) -> None:
    ids = list(SAID.encode())
    steps = [ids[i : i + tokens_a_step] for i in range(0, len(ids), tokens_a_step)]
    assembler = ChoiceAssembler(tokenizer, SamplingParams(), 0, form(tokenizer))
    reasoning, text, calls, last = read(assembler, steps)
    assert (reasoning, text) == ("why", "Text.")
    assert [(call.name, call.arguments) for call in calls] == [("f", '{"a": "}é"}')] * 2
    assert len({call.id for call in calls}) == 2
    assert last.finish_reason == "stop"
    assert assembler.num_tokens == len(ids)
    # A token is a byte: those of the opening tag are known to be its own when it is whole.
    assert assembler.num_reasoning == len("<think>\nwhy\n</think>") - len("<think")
    assert assembler.num_unreadable == 0


@pytest.mark.case("reason-trunc-03")
@pytest.mark.parametrize("said", ["<think>\nI wond", "<think>\nI wond</thi", "I wond</thi"])
def test_reasoning_that_is_cut_shows_no_half_tag(tokenizer: Tokenizer, said: str) -> None:
    state = ReasoningState.UNOPENED if said.startswith("<") else ReasoningState.OPEN
    assembler = ChoiceAssembler(tokenizer, SamplingParams(), 0, form(tokenizer, state))
    reasoning, text, calls, last = read(assembler, [said.encode()], end="length")
    assert (reasoning, text, calls, last.finish_reason) == ("I wond", "", [], "length")
    assert 0 < assembler.num_reasoning <= assembler.num_tokens


@pytest.mark.case("AG027")
@pytest.mark.parametrize("is_enforced", [False, True])
def test_a_call_that_is_cut_ends_by_length(tokenizer: Tokenizer, is_enforced: bool) -> None:
    parser_form = form(tokenizer, ReasoningState.CLOSED, is_enforced=is_enforced)
    assembler = ChoiceAssembler(tokenizer, SamplingParams(), 0, parser_form)
    _, _, calls, last = read(assembler, [CALL[:46].encode()], end="length")
    assert last.finish_reason == "length"
    assert assembler.num_unreadable == 0
    assert [call.arguments for call in calls] == (['{"a": "'] if is_enforced else [])


LFM2 = "<|tool|>[f(a='x')]<|end|>"
"""As LFM2 writes calls, with <|tool|> and <|end|> for its own control tokens."""


def marked_form(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> OutputForm:
    """Of a model whose calls open with a special token."""
    monkeypatch.setattr(pythonic, "START", "<|tool|>")
    monkeypatch.setattr(pythonic, "END", "<|end|>")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]
    own = pythonic.PythonicForm(has_tags=True, markers=("<|tool|>", "<|end|>"))
    dialect = Dialect("pythonic", own, special_ids(tokenizer, own.markers), needs_instructions=False)
    assert "<|tool|>" in dialect.specials
    return OutputForm(None, ReasoningState.CLOSED, dialect, tools, is_enforced=True)


@pytest.mark.parametrize("is_genuine", [True, False])
def test_a_marker_that_is_spelt_in_other_tokens_streams_nothing(
    is_genuine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_text(Script()).tokenizer
    parser_form = marked_form(tokenizer, monkeypatch)
    ids = tokenizer.encode(LFM2, add_special_tokens=False, parse_special=is_genuine)
    assembler = ChoiceAssembler(tokenizer, SamplingParams(), 0, parser_form)
    cut = ids[: len(ids) - len(tokenizer.encode("x')]<|end|>", add_special_tokens=False, parse_special=is_genuine))]
    _, text, calls, last = read(assembler, [[97, 32], *([token_id] for token_id in cut)], end="length")
    if is_genuine:
        assert (text, [(call.name, call.arguments) for call in calls]) == ("a", [("f", '{"a": "')])
    else:
        assert (text, calls) == ("a <|tool|>[f(a='", []), "the engine does not hold it to anything"
    assert (last.finish_reason, assembler.num_unreadable) == ("length", 0)


@pytest.mark.parametrize("tokens_a_step", [1, 3, 100])
def test_a_marker_that_is_spelt_is_a_call_if_it_is_whole_and_valid(
    tokens_a_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_text(Script()).tokenizer
    spelt = tokenizer.encode(LFM2, add_special_tokens=False)
    genuine = tokenizer.encode(LFM2, add_special_tokens=False, parse_special=True)
    broken = tokenizer.encode("<|tool|>[f(a=)]", add_special_tokens=False)
    ids = [*spelt, *genuine, *broken]
    assembler = ChoiceAssembler(tokenizer, SamplingParams(), 0, marked_form(tokenizer, monkeypatch))
    steps = [ids[i : i + tokens_a_step] for i in range(0, len(ids), tokens_a_step)]
    _, text, calls, last = read(assembler, steps)
    assert [(call.name, call.arguments) for call in calls] == [("f", '{"a": "x"}')] * 2
    assert (text, last.finish_reason, assembler.num_unreadable) == ("<|tool|>[f(a=)]", "stop", 1)


@pytest.mark.parametrize("told", [0, 1])
def test_what_a_stop_cuts_is_never_half_a_call(tokenizer: Tokenizer, told: int) -> None:
    request = GenerateRequest(
        "r",
        "m",
        ChatPrompt([{"role": "user", "content": "hi"}], TOOLS),
        SamplingParams(stop_token_ids=(ord("}"),)),
    )
    style = OutputStyle(choose_dialect("", tokenizer, "hermes"))
    found = choose_form(style, request, "")
    assert found is not None
    assert not found.is_enforced
    whole = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
    half = '<tool_call>\n{"name": "f", "arguments": {"a": 2'
    assembler = ChoiceAssembler(tokenizer, SamplingParams(stop_token_ids=(ord("}"),)), 0, found)
    said = list((whole * told + half).encode())
    deltas = [assembler.push(wire.TokenEvent("r", 0, [byte])) for byte in said]
    deltas.append(assembler.push(wire.TokenEvent("r", 0, [ord("}")], finish_reason="stop", stop_reason=ord("}"))))
    calls: list[ToolCall] = []
    for delta in deltas:
        add_deltas(calls, delta.tool_calls if delta else ())
    assert [(call.name, call.arguments) for call in calls] == [("f", '{"a": 1}')] * told
    assert "".join(delta.text for delta in deltas if delta) == "\n" * told + half
    assert deltas[-1] is not None
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason, assembler.num_unreadable) == ("stop", ord("}"), 0)


def test_a_stop_string_is_met_wherever_it_stands(tokenizer: Tokenizer) -> None:
    for stop, reasoning, text, num_calls in (
        ("hy", "w", "", 0),
        ("ext", "why", "T", 0),
        ('"f"', "why", 'Text. <tool_call>\n{"name": ', 0),
    ):
        assembler = ChoiceAssembler(tokenizer, SamplingParams(stop=(stop,)), 0, form(tokenizer))
        told = [assembler.push(wire.TokenEvent("r", 0, [byte])) for byte in SAID.encode()]
        deltas = [delta for delta in told if delta is not None]
        assert deltas[-1].stop_reason == stop
        assert "".join(delta.reasoning for delta in deltas) == reasoning
        assert "".join(delta.text for delta in deltas) == text
        assert sum(bool(delta.tool_calls) for delta in deltas) == num_calls


def test_forced_tokens_are_counted(tokenizer: Tokenizer) -> None:
    for parser_form in (None, form(tokenizer)):
        assembler = ChoiceAssembler(tokenizer, SamplingParams(), 0, parser_form)
        assembler.push(wire.TokenEvent("r", 0, [97, 98, 99], num_forced_tokens=2))
        assembler.push(wire.TokenEvent("r", 0, [97, 98], num_forced_tokens=1, finish_reason="length"))
        assert (assembler.num_tokens, assembler.num_forced) == (5, 3)


def test_without_a_form_everything_is_text(tokenizer: Tokenizer) -> None:
    assembler = ChoiceAssembler(tokenizer, SamplingParams())
    reasoning, text, calls, _ = read(assembler, [SAID.encode()])
    assert (reasoning, text, calls) == ("", SAID, [])


class _Broken:
    num_unreadable = 1

    def push(self, text: str) -> None:
        raise RuntimeError("a fault")

    end = push


@pytest.mark.case("parser-500-05")
def test_a_parser_that_fails_leaves_text_and_is_counted(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(answer_parser.logger, "exception", logged.append)
    parser = AnswerParser(form(tokenizer, ReasoningState.CLOSED))
    parser._calls = _Broken()  # type: ignore[assignment]
    assert parser.push("some ") == ("", "some ", ())
    assert parser.push("text") == ("", "text", ())
    assert parser.end(is_cut=False) == ("", "", ())
    assert parser.num_unreadable == 2
    assert logged == ["a tool call parser failed: the rest of the answer is told as text"]


def test_markers_that_are_special_tokens_reach_the_parser() -> None:
    tokenizer = make_text(Script()).tokenizer
    dialect = choose_dialect("", tokenizer, "hermes")
    # <|tool|>, which is special in this vocabulary, stands for a marker that is.
    marked = OutputForm(None, ReasoningState.CLOSED, replace(dialect, specials={"<|tool|>": 0}), TOOLS)
    assembler = ChoiceAssembler(tokenizer, SamplingParams(), 0, marked)
    tool_id = tokenizer.encode("<|tool|>", add_special_tokens=False, parse_special=True)[0]
    _, text, _, _ = read(assembler, [[97, tool_id, 98], [257]])
    assert text == "a<|tool|>b"
    assert read(ChoiceAssembler(tokenizer, SamplingParams()), [[97, tool_id, 98]])[1] == "ab"
