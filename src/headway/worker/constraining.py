"""What the outputs of a request are constrained by, and how they are read: reasoning, text and tool calls. Pure.

The model says what marks reasoning and calls (OutputStyle), the rendered prompt whether a block of reasoning is open
at its end, the request what the answer shall be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import headway_wire as wire
from headway.core.request import ChatPrompt, GenerateRequest
from headway.core.structured import StructuredOutputs
from headway.core.tools import ToolUse
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.text.grammar import Grammar, behind_line_breaks, either
from headway.text.reasoning import ReasoningState, ReasoningStyle
from headway.text.tool_calls import Dialect


@dataclass(frozen=True, slots=True)
class OutputStyle:
    """How one model's outputs look."""

    dialect: Dialect | None = None
    """Of its tool calls; None: there is no chat."""
    reasoning: ReasoningStyle | None = None
    """None: it does not reason."""
    can_constrain: bool = True
    """Its process takes constraints."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How the outputs of one request are read."""

    reasoning: ReasoningStyle | None
    """None: reasoning is not told apart."""
    state: ReasoningState
    """Where the outputs begin."""
    dialect: Dialect | None
    """None: calls are not looked for."""
    tools: Sequence[Mapping[str, Any]] = ()
    is_enforced: bool = False
    """The engine sees to it that calls are valid, and nothing that the request asks for ends one in the middle."""

    @property
    def markers(self) -> frozenset[str]:
        """Special tokens that have to be seen although they are left out of texts."""
        calls = self.dialect.markers if self.dialect is not None else frozenset()
        return calls | (self.reasoning.markers if self.reasoning is not None else frozenset())


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the answer, which is behind the reasoning, has to match; with a trigger only from there on."""

    grammar: Grammar
    trigger: str = ""
    max_matches: int | None = None
    param: str = "tools"
    last_trigger: str = ""


def choose_form(style: OutputStyle, request: GenerateRequest, rendered: str) -> OutputForm | None:
    """How the outputs are read; None: they are text alone.

    Args:
        rendered: the chat as its template made it.
    """
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return None
    reasoning = style.reasoning if request.splits_reasoning else None
    calls = style.dialect if prompt.tools and request.tool_use.choice != "none" else None
    if reasoning is None and calls is None:
        return None
    tools = _callable(prompt.tools or (), request.tool_use)
    # A stop may come in the middle of a call: then none is given before it is whole, and half a one is text.
    is_enforced = style.can_constrain and not (request.sampling.stop or request.sampling.stop_token_ids)
    return OutputForm(reasoning, _state(style, prompt, rendered), calls, tools, is_enforced)


def choose_constraint(style: OutputStyle, request: GenerateRequest, rendered: str) -> wire.Constraint | None:
    """What the outputs have to match; None: they are free. Arguments as choose_form's.

    1. Tools that must be called: calls and nothing else, from the beginning; a structured answer has no place then.
    2. Tools that may be called, and a structured answer: one or the other from the beginning.
    3. Tools that may be called: calls are valid from their trigger on.
    4. A structured answer.
    5. A budget of reasoning tokens alone.

    Where something holds from the beginning, it holds from the end of the reasoning; the block of a model that opens
    it itself is opened for it then, unless the prompt says that there shall be none.

    Raises InvalidRequest, UnsupportedFeature.
    """
    prompt, wanted = request.prompt, request.sampling.structured_outputs
    answer = _answer(style, prompt if isinstance(prompt, ChatPrompt) else None, request.tool_use, wanted)
    budget = request.sampling.thinking_token_budget
    if answer is None and budget is None:
        return request.sampling.constraint
    if not style.can_constrain:
        raise UnsupportedFeature(
            "the process of this model can not constrain its output: leave out structured outputs, tool_choice "
            "required and thinking_token_budget",
            param="structured_outputs" if answer is None else answer.param,
        )
    is_free = budget is None and answer is not None and bool(answer.trigger)
    opening, reasoning_start, reasoning_end = _reasoning(style, prompt, rendered, is_free=is_free)
    if budget is not None and not reasoning_end:
        _check_budget(style, budget)
        budget = None
    if answer is None:
        answer = _Answer(Grammar(""))
    elif reasoning_end and not answer.trigger:
        answer = replace(answer, grammar=behind_line_breaks(answer.grammar))
    return wire.Constraint(
        grammar=answer.grammar.text(),
        opening=opening,
        reasoning_start=reasoning_start,
        reasoning_end=reasoning_end,
        max_reasoning_tokens=budget,
        trigger=answer.trigger,
        max_matches=answer.max_matches,
        last_trigger=answer.last_trigger,
        param=answer.param,
    )


def _answer(
    style: OutputStyle, prompt: ChatPrompt | None, use: ToolUse, wanted: StructuredOutputs | None
) -> _Answer | None:
    structured = None
    if wanted is not None:
        from headway.text.structured import (
            structured_grammar,
            structured_trigger,
        )  # llguidance: not before it is needed

        structured = _Answer(structured_grammar(wanted), structured_trigger(wanted), None, wanted.param)
    tools = prompt.tools if prompt is not None else None
    if style.dialect is None or not tools or use.choice == "none" or (use.choice == "auto" and not style.can_constrain):
        return structured  # 4.
    is_one = not use.is_parallel or use.choice == "named"
    tools = _callable(tools, use)
    calls = style.dialect.grammar(tools, is_parallel=not is_one)
    if use.choice in ("required", "named"):
        return _Answer(calls)  # 1.
    trigger = style.dialect.trigger(tools)
    if structured is None:
        return _Answer(calls, trigger, 1 if is_one else None)  # 3.
    both = either(structured.grammar, calls)
    if not structured.trigger:
        return _Answer(both, param=structured.param)  # 2.
    triggers = f"(?:{structured.trigger})|(?:{trigger})"
    return _Answer(both, triggers, param=structured.param, last_trigger=trigger if is_one else "")


def _callable(tools: Sequence[Mapping[str, Any]], use: ToolUse) -> Sequence[Mapping[str, Any]]:
    """The tools that may be called. Raises InvalidRequest for a name that is not among them."""
    names = (use.name,) if use.name is not None else use.names
    if not names:
        return tools
    known = {tool["function"]["name"]: tool for tool in tools}
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"tool_choice names {name[:64]!r}, and tools has {', '.join(sorted(known))[:200]}: name one of them",
                param="tool_choice",
            )
    return [tool for name, tool in known.items() if name in names]


def _reasoning(style: OutputStyle, prompt: object, rendered: str, *, is_free: bool) -> tuple[str, str, str]:
    """wire.Constraint's opening, reasoning_start and reasoning_end. Where the answer is free, a model opens its block
    or does not."""
    reasoning = style.reasoning
    if reasoning is None or not isinstance(prompt, ChatPrompt):
        return "", "", ""
    match _state(style, prompt, rendered):
        case ReasoningState.OPEN:
            return "", "", reasoning.end
        case ReasoningState.UNOPENED if is_free:
            return "", reasoning.start, reasoning.end
        case ReasoningState.UNOPENED if reasoning.opening:
            return reasoning.opening, "", reasoning.end
    return "", "", ""


def _check_budget(style: OutputStyle, budget: int) -> None:
    """A budget means nothing where a model that reasons does not this time."""
    if style.reasoning is None:
        raise InvalidRequest(
            f"thinking_token_budget is {budget}, and this model has no reasoning that is known: leave it out, or start "
            "with --reasoning-parser",
            param="thinking_token_budget",
        )


def _state(style: OutputStyle, prompt: ChatPrompt, rendered: str) -> ReasoningState:
    if style.reasoning is None:
        return ReasoningState.CLOSED
    continued = prompt.messages[-1].get("content") if prompt.continue_final_message else None
    return style.reasoning.state(rendered, continued if isinstance(continued, str) else None)
