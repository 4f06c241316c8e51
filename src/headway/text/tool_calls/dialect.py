"""Dialect: how one family of models writes its tool calls, as text for the engine (trigger, grammar) and as a parser.

A dialect is a file of this folder, which has a Form, and its lines in __init__.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.text.grammar import Grammar, Part, lark_text
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls.base import Tool, ToolCallParser, read_tools
from headway.text.tool_calls.block import BlockParser, Syntax


class GrammarWriter:
    """A Lark grammar that is written rule by rule.

    Args:
        specials: markers that are special tokens, with their ids.
    """

    def __init__(self, specials: Mapping[str, int]) -> None:
        self._specials = specials
        self._rules: list[str] = []
        self._parts: dict[str, Part] = {}

    def marker(self, text: str) -> str:
        """A marker in a rule."""
        token_id = self._specials.get(text)
        return lark_text(text) if token_id is None else f"<[{token_id}]>"

    def rule(self, name: str, *alternatives: str) -> str:
        """Adds a rule, or a terminal if its name is in capitals; gives its name."""
        self._rules.append(f"{name}: {' | '.join(alternatives)}")
        return name

    def part(self, name: str, part: Part) -> str:
        """Adds a part; gives what stands for it in a rule."""
        self._parts[name] = part
        return f"@{name}"

    def grammar(self) -> Grammar:
        """What was written; one of the rules is `start`."""
        return Grammar("\n".join(self._rules), self._parts)


class Form(Protocol):
    """What a dialect's file says of it."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be special tokens."""

    @property
    def example(self) -> str:
        """A call, for a model that was not trained on the form; without line breaks around it."""

    def syntax(self, tools: Sequence[Tool]) -> Syntax:
        """For the parser."""

    def trigger(self, tools: Sequence[Tool]) -> str:
        """See Dialect.trigger."""

    def write_grammar(self, writer: GrammarWriter, tools: Sequence[Tool], is_parallel: bool) -> None:
        """Rules, one of them `start`: one call (or, is_parallel, several in a row) and nothing else."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One form of tool calls, for one model. May be used from any thread. Tools are given as the API has them."""

    name: str
    """For --tool-call-parser."""
    form: Form
    specials: Mapping[str, int]
    """Those of the form's markers that are special tokens of this model."""
    needs_instructions: bool
    """The model's template says nothing of tools, so the prompt has to: see `instructions`."""

    @property
    def markers(self) -> frozenset[str]:
        """Texts of special tokens that the parser has to see although skip_special_tokens."""
        return frozenset(self.specials)

    def trigger(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """wire.Constraint.trigger with tool_choice auto: where in free text `grammar` begins to hold.

        A match is the beginning of what the grammar describes. Raises InvalidRequest as `grammar` does.
        """
        return self.form.trigger(read_tools(tools))

    def grammar(
        self, tools: Sequence[Mapping[str, Any]], *, names: Collection[str] | None = None, is_parallel: bool = True
    ) -> Grammar:
        """One call (or, is_parallel, several in a row) and nothing else, written as the model's template writes them.

        Args:
            tools: at least one.
            names: of those that may be called; None: all.
            is_parallel: one or more calls; False: exactly one.

        Raises:
            InvalidRequest: a tool is none, or a name is not among them. What cannot be enforced of a strict tool's
                schema only the compiler tells.
        """
        writer = GrammarWriter(self.specials)
        self.form.write_grammar(writer, read_tools(tools, names), is_parallel)
        return writer.grammar()

    def make_parser(
        self, tools: Sequence[Mapping[str, Any]], *, is_enforced: bool, tells_specials: bool = False
    ) -> ToolCallParser:
        """A parser for one choice.

        Args:
            tools: as the request has them.
            is_enforced: the engine was given the trigger or the grammar.
            tells_specials: pushes tell which text is a special token's; else all that reads as one is one.
        """
        found = read_tools(tools)
        specials = frozenset(self.specials) if tells_specials else frozenset[str]()
        names = {tool.name for tool in found}
        return BlockParser(self.form.syntax(found), names, is_enforced=is_enforced, specials=specials)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """A system text that tells a model of these tools and of the form of calls."""
        described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        return (
            f"You can call functions. These are there, with the JSON schemas of their arguments:\n{described}\n\n"
            f"To call one, answer with nothing but this, with its name and its arguments:\n{self.form.example}"
        )


def is_token(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text is one token of the vocabulary's own: a control token, or one that its author added."""
    return len(tokenizer.encode(text, add_special_tokens=False, parse_special=True)) == 1


def special_ids(tokenizer: Tokenizer, markers: Collection[str]) -> Mapping[str, int]:
    """The markers that are special tokens, which no text of other tokens stands for, with their ids."""
    found: dict[str, int] = {}
    for marker in markers:
        ids = tokenizer.encode(marker, add_special_tokens=False, parse_special=True)
        if len(ids) == 1 and ids[0] in tokenizer.special_token_ids:
            found[marker] = ids[0]
    return found
