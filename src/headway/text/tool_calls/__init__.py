"""Tool calls as models write them: a dialect a file, chosen from the chat template, for engine and parser."""

import re
from collections.abc import Callable, Mapping

from headway.errors import InvalidConfig
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls.base import Parsed, Tool, ToolCallParser
from headway.text.tool_calls.dialect import Dialect, Form, special_ids
from headway.text.tool_calls.hermes import HermesForm
from headway.text.tool_calls.plain_json import PlainJsonForm

__all__ = ["DIALECT_NAMES", "Dialect", "Parsed", "Tool", "ToolCallParser", "choose_dialect"]

_FALLBACK = "plain_json"
_HERMES = re.compile(r"<tool_call>(?:\\n|\s|\{\{-|'|\}\}|\")*\{[\\'\" ]*name")
_TOOLS = re.compile(r"\btools\b")

_FORMS: Mapping[str, Callable[[str, Tokenizer], Form]] = {
    "hermes": lambda template, tokenizer: HermesForm(),
    "plain_json": lambda template, tokenizer: PlainJsonForm(),
}
DIALECT_NAMES = tuple(_FORMS)
"""For --tool-call-parser."""


def choose_dialect(template: str, tokenizer: Tokenizer, name: str | None = None) -> Dialect:
    """The dialect of a model. Pure.

    Args:
        template: the source of its chat template.
        tokenizer: tells which markers are tokens.
        name: --tool-call-parser; None: the one that the template tells, else plain_json.

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
    if _HERMES.search(template):
        return "hermes"
    return _FALLBACK
