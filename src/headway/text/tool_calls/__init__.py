"""Tool calls as models write them: a dialect a file, chosen from the chat template, for engine and parser."""

import re
from collections.abc import Callable, Mapping

from headway.errors import InvalidConfig
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls.base import Parsed, Tool, ToolCallParser
from headway.text.tool_calls.dialect import Dialect, Form, is_token, special_ids
from headway.text.tool_calls.hermes import HermesForm
from headway.text.tool_calls.llama3_json import Llama3JsonForm
from headway.text.tool_calls.mistral import make_mistral_form
from headway.text.tool_calls.plain_json import PlainJsonForm
from headway.text.tool_calls.pythonic import START as PYTHONIC_START
from headway.text.tool_calls.pythonic import PythonicForm
from headway.text.tool_calls.qwen3_coder import Qwen3CoderForm

__all__ = ["DIALECT_NAMES", "Dialect", "Parsed", "Tool", "ToolCallParser", "choose_dialect"]

_FORMS: Mapping[str, Callable[[str, Tokenizer], Form]] = {
    "hermes": lambda template, tokenizer: HermesForm(),
    "llama3_json": lambda template, tokenizer: Llama3JsonForm(),
    "mistral": lambda template, tokenizer: make_mistral_form(template),
    "qwen3_coder": lambda template, tokenizer: Qwen3CoderForm(),
    "pythonic": lambda template, tokenizer: PythonicForm(has_tags=_has_pythonic_tags(template, tokenizer)),
    "plain_json": lambda template, tokenizer: PlainJsonForm(),
}
DIALECT_NAMES = tuple(_FORMS)
"""For --tool-call-parser."""

_QUOTES = r"(?:\\n|\\?['\"]|\{\{-?|-?\}\}|~|\s)*"
"""What may stand in a template between two pieces of a text that it writes."""
_TOLD_BY: Mapping[str, re.Pattern[str]] = {
    "mistral": re.compile(r"\[TOOL_CALLS\]"),
    "qwen3_coder": re.compile(rf"<tool_call>{_QUOTES}<function={'.*'}<parameter=", re.DOTALL),
    "hermes": re.compile(rf"<tool_call>{_QUOTES}\{{{_QUOTES}name\b"),
    "llama3_json": re.compile(r"\{\\?\"name\\?\": function name, \\?\"parameters\\?\":"),
    "pythonic": re.compile(r"\[func_name1\(|<\|tool_call_start\|>"),
}
"""What a template says that a dialect is its own; the first that does."""
_TOOLS = re.compile(r"\btools\b")


def choose_dialect(template: str, tokenizer: Tokenizer, name: str | None = None) -> Dialect:
    """The dialect of a model. Pure.

    Args:
        template: the source of its chat template.
        tokenizer: tells which markers are tokens.
        name: --tool-call-parser; None: the dialect that template and vocabulary tell, else plain_json.

    Raises:
        InvalidConfig: there is no dialect of this name.
    """
    if name is not None and name not in _FORMS:
        raise InvalidConfig(
            f"--tool-call-parser is {name!r}; it must be one of {', '.join(DIALECT_NAMES)}", param="tool_call_parser"
        )
    chosen = name or _told_by(template, tokenizer)
    form = _FORMS[chosen](template, tokenizer)
    return Dialect(
        name=chosen,
        form=form,
        specials=special_ids(tokenizer, form.markers),
        needs_instructions=_TOOLS.search(template) is None,
    )


def _told_by(template: str, tokenizer: Tokenizer) -> str:
    """The template's own form, else the vocabulary's: LFM2's templates leave calls to the model."""
    for name, pattern in _TOLD_BY.items():
        if pattern.search(template):
            return name
    return "pythonic" if is_token(tokenizer, PYTHONIC_START) else "plain_json"


def _has_pythonic_tags(template: str, tokenizer: Tokenizer) -> bool:
    return PYTHONIC_START in template or is_token(tokenizer, PYTHONIC_START)
