"""What constrains an output: by the model's style, the prompt's end, and what the request asks for."""

import json
from dataclasses import replace
from typing import Any

import pytest

import headway_wire as wire
from headway.core.request import ChatPrompt, GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams
from headway.core.structured import StructuredOutputs
from headway.core.tools import ToolUse
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.text.reasoning import ReasoningState, choose_reasoning
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls import choose_dialect
from headway.worker.constraining import OutputStyle, choose_constraint, choose_form

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("f", "g")
]
SCHEMA = StructuredOutputs(kind="json_schema", value={"type": "object", "properties": {"n": {"type": "integer"}}})
OPENED, CLOSED, UNSAID = "<|assistant|><think>\n", "<|assistant|><think>\n\n</think>\n\n", "<|assistant|>"
QWEN3 = "<think></think>{% if enable_thinking %}{% endif %}"


@pytest.fixture
def style(tokenizer: Tokenizer) -> OutputStyle:
    """Of a model that opens its reasoning itself."""
    return OutputStyle(choose_dialect("", tokenizer, "hermes"), choose_reasoning(QWEN3, tokenizer, "qwen3"))


def request(use: ToolUse | None = None, tools: Any = TOOLS, **sampling: Any) -> GenerateRequest:
    prompt = ChatPrompt([{"role": "user", "content": "hi"}], tools)
    return GenerateRequest("r", "m", prompt, SamplingParams(**sampling), tool_use=use or ToolUse())


def constraint(style: OutputStyle, asked: GenerateRequest, rendered: str = CLOSED) -> wire.Constraint:
    found = choose_constraint(style, asked, rendered)
    assert found is not None
    return found


def names_in(grammar: str) -> set[str]:
    return {name for name in ("f", "g") if json.dumps(f'{{\\"name\\": \\"{name}\\"')[1:-1] in grammar}


def test_a_request_for_text_is_free(style: OutputStyle) -> None:
    for asked in (request(tools=None), request(ToolUse("none")), request(tools=None, stop=("x",))):
        assert choose_constraint(style, asked, OPENED) is None
    prompt = replace(request(), prompt=TextPrompt("hi"))
    assert choose_constraint(style, prompt, "") is None
    assert choose_form(style, prompt, "") is None


def test_calls_that_may_be_made_are_valid_from_their_trigger_on(style: OutputStyle) -> None:
    found = constraint(style, request())
    assert (found.trigger, found.max_matches, found.opening) == ("<tool_call>", None, "")
    assert (found.reasoning_start, found.reasoning_end) == ("", "")
    assert names_in(found.grammar) == {"f", "g"}
    unsaid, opened = constraint(style, request(), UNSAID), constraint(style, request(), OPENED)
    assert (unsaid.reasoning_start, unsaid.reasoning_end, unsaid.opening) == ("<think>", "</think>", "")
    assert (opened.reasoning_start, opened.reasoning_end) == ("", "</think>")
    assert constraint(style, request(ToolUse(is_parallel=False))).max_matches == 1


@pytest.mark.parametrize(
    ("use", "names"),
    [
        (ToolUse("required"), {"f", "g"}),
        (ToolUse("required", names=("g",)), {"g"}),
        (ToolUse("named", "f"), {"f"}),
    ],
)
def test_calls_that_must_be_made_hold_from_the_beginning(style: OutputStyle, use: ToolUse, names: set[str]) -> None:
    found = constraint(style, request(use))
    assert (found.trigger, found.max_matches) == ("", None)
    assert names_in(found.grammar) == names


def test_a_tool_that_may_not_be_called_is_no_call_and_triggers_nothing(tokenizer: Tokenizer) -> None:
    """Of plain JSON, where a tool's name is what tells a call from other objects."""
    plain = OutputStyle(choose_dialect("", tokenizer, "plain_json"))
    asked = request(ToolUse("auto", names=("g",)))
    found = constraint(plain, asked)
    assert '"g"' in found.trigger
    assert '"f"' not in found.trigger
    form = choose_form(plain, asked, CLOSED)
    assert form is not None
    assert [tool["function"]["name"] for tool in form.tools] == ["g"]


@pytest.mark.parametrize("is_parallel", [True, False])
def test_beside_structural_tags_one_call_is_the_end(style: OutputStyle, is_parallel: bool) -> None:
    structures = [{"begin": "<f=", "schema": {"type": "integer"}, "end": ">"}]
    tag = StructuredOutputs(kind="structural_tag", value={"structures": structures, "triggers": ["<f"]})
    found = constraint(style, request(ToolUse(is_parallel=is_parallel), structured_outputs=tag))
    assert (found.trigger, found.max_matches) == ("(?:<f)|(?:<tool_call>)", None)
    assert found.last_trigger == ("" if is_parallel else "<tool_call>")


def test_one_call_is_one(style: OutputStyle) -> None:
    several = "start: block ("
    for use in (ToolUse("required", is_parallel=False), ToolUse("named", "f"), ToolUse(is_parallel=False)):
        assert several not in constraint(style, request(use)).grammar
    for use in (ToolUse("required"), ToolUse()):
        assert several in constraint(style, request(use)).grammar


@pytest.mark.case("so-reason-12", "so-thinkfalse-10", "reason-off-01")
@pytest.mark.parametrize(
    ("rendered", "opening", "end"),
    [(OPENED, "", "</think>"), (CLOSED, "", ""), (UNSAID, "<think>\n", "</think>")],
)
def test_what_holds_from_the_beginning_holds_behind_the_reasoning(
    style: OutputStyle, rendered: str, opening: str, end: str
) -> None:
    for asked in (request(tools=None, structured_outputs=SCHEMA), request(ToolUse("required"))):
        found = constraint(style, asked, rendered)
        assert (found.opening, found.reasoning_end, found.trigger) == (opening, end, "")


def test_an_answer_is_structured_or_calls(style: OutputStyle) -> None:
    found = constraint(style, request(structured_outputs=SCHEMA))
    assert found.trigger == ""
    assert found.param == "structured_outputs"
    grammars = {each["name"]: each for each in json.loads(found.grammar)["grammars"]}
    assert grammars["main"]["lark_grammar"] == "start: @first | @second"
    assert names_in(found.grammar) == {"f", "g"}
    assert constraint(style, request(ToolUse("none"), structured_outputs=SCHEMA)).grammar == (
        constraint(style, request(tools=None, structured_outputs=SCHEMA)).grammar
    )


def test_a_budget_of_reasoning_needs_reasoning(style: OutputStyle) -> None:
    asked = request(tools=None, thinking_token_budget=7)
    for rendered, opening in ((OPENED, ""), (UNSAID, "<think>\n")):
        found = constraint(style, asked, rendered)
        assert (found.grammar, found.opening, found.max_reasoning_tokens) == ("", opening, 7)
    assert constraint(style, asked, CLOSED).max_reasoning_tokens is None
    with pytest.raises(InvalidRequest, match="thinking_token_budget is 7, and this model has no reasoning") as refused:
        choose_constraint(replace(style, reasoning=None), asked, UNSAID)
    assert refused.value.param == "thinking_token_budget"


def test_a_process_without_constraints_says_so(style: OutputStyle) -> None:
    free = replace(style, can_constrain=False)
    assert choose_constraint(free, request(), CLOSED) is None
    form = choose_form(free, request(), CLOSED)
    assert form is not None
    assert not form.is_enforced
    for asked in (request(ToolUse("required")), request(tools=None, structured_outputs=SCHEMA)):
        with pytest.raises(UnsupportedFeature, match="can not constrain"):
            choose_constraint(free, asked, CLOSED)


@pytest.mark.parametrize(
    ("rendered", "state"),
    [(OPENED, ReasoningState.OPEN), (CLOSED, ReasoningState.CLOSED), (UNSAID, ReasoningState.UNOPENED)],
)
def test_the_prompts_end_says_where_an_output_begins(style: OutputStyle, rendered: str, state: ReasoningState) -> None:
    form = choose_form(style, request(), rendered)
    assert form is not None
    assert (form.state, form.is_enforced) == (state, True)
    assert choose_form(style, replace(request(tools=None), splits_reasoning=False), rendered) is None


def test_a_message_that_goes_on_says_where_too(style: OutputStyle) -> None:
    for content, state in (("<think>\nso", ReasoningState.OPEN), ("So", ReasoningState.CLOSED)):
        prompt = ChatPrompt([{"role": "assistant", "content": content}], continue_final_message=True)
        form = choose_form(style, replace(request(), prompt=prompt), f"<|assistant|>{content}")
        assert form is not None
        assert form.state is state
