"""ChatTemplate: messages -> one text, by the model's own Jinja template, with what no template can be trusted with.

Templates come with models: they run in minijinja, which has no Python objects to climb through, with
fuel (steps, and characters made) in proportion to what came in and a cap on what comes out. What they see is a copy of
plain data. The text equals what jinja2's sandbox, set up as transformers does, makes of the same template.

That bounds faults, not malice: a list that holds another twice, forty times over, or a namespace that holds itself
costs no fuel until a filter walks it, and then all memory or the stack. Only a process of its own could bound that. So
templates come from whoever serves the model, never from a request.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

from minijinja import Environment, TemplateError

from headway.errors import HeadwayError, InvalidConfig, InvalidRequest, TemplateRefused, UnsupportedModel
from headway.text.json_vocabulary import read_control_tokens, token_text_of
from headway.text.protection import Protection
from headway.text.rendered import RenderedPrompt
from headway.text.source import GgufVocabulary, TextSource
from headway.text.template_forms import TemplateForms, find_forms
from headway.text.template_input import Arguments, Plain, plain_copy, plain_messages, strings_of, with_strings

_BASE_FUEL = 1 << 22
"""A unit is a step, or some tens of characters: about 100 MB of text at most."""
_FUEL_PER_CHARACTER = 32
_BASE_OUTPUT = 1 << 22
_OUTPUT_PER_CHARACTER = 8
_MAX_JSON_INDENT = 16
_GENERATION_TAG = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
_FORM_CHARACTERS = 64
"""In a chat that find_forms() tries."""
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})
_FUNCTIONS = {"dict", "lipsum", "namespace", "range", "raise_exception", "strftime_now"}
COMMON_SWITCHES = frozenset({"enable_thinking"})
"""Of chat_template_kwargs: what callers send whatever the model."""


class ChatTemplate:
    """One template, ready to render. May be used from any thread.

    Args:
        template: Jinja source.
        bos_token: the template's bos_token.
        eos_token: the template's eos_token.
        control_tokens: texts that stay text where they stand in a caller's string.

    Raises:
        UnsupportedModel: the template does not parse.
    """

    def __init__(
        self, template: str, *, bos_token: str = "", eos_token: str = "", control_tokens: Collection[str] = ()
    ) -> None:
        self.source = template
        self._constants = {"bos_token": bos_token, "eos_token": eos_token, "documents": None}
        self._protection = Protection(control_tokens)
        self._fixed_texts = (template, bos_token, eos_token)
        _environment(template, _BASE_FUEL)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> RenderedPrompt:
        """The prompt of a chat.

        Args:
            messages: role, content and what else the template knows; not changed.
            tools: JSON schemas of functions, as OpenAI has them.
            add_generation_prompt: ends with the beginning of an assistant's turn.
            kwargs: the template's own switches.

        Raises:
            TemplateRefused: the template raised, failed on these messages, ran out of fuel or made too much text.
            InvalidRequest: the messages are no messages (see plain_messages).
        """
        if taken := _RESERVED & kwargs.keys():
            raise InvalidRequest(f"chat_template_kwargs may not set {min(taken)}", param="chat_template_kwargs")
        given = {
            "messages": plain_messages(messages, self.forms),
            "tools": plain_copy(tools, "tools"),
            "kwargs": plain_copy(kwargs, "chat_template_kwargs"),
        }
        texts = list(strings_of(given))
        num_characters = sum(map(len, texts))
        if not self._protection.is_needed(texts):
            return RenderedPrompt(self._run(given, add_generation_prompt, num_characters))
        marks = self._protection.choose_marks([*texts, *self._fixed_texts])
        marked = {
            name: with_strings(value, lambda text: self._protection.mark(text, marks)) for name, value in given.items()
        }
        return self._protection.read(self._run(marked, add_generation_prompt, num_characters), marks)

    def _run(self, given: Mapping[str, Plain], add_generation_prompt: bool, num_characters: int) -> str:
        context = {
            **self._constants,
            **(given["kwargs"] or {}),
            "messages": given["messages"],
            "tools": given["tools"],
            "add_generation_prompt": add_generation_prompt,
        }
        fuel = _BASE_FUEL
        while fuel < _FUEL_PER_CHARACTER * num_characters:
            fuel *= 2
        try:
            text = _environment(self.source, fuel).render_template("chat", **context)
        except TemplateError as problem:
            raise TemplateRefused(_words_of(problem), param="messages") from problem
        except HeadwayError:
            raise
        except Exception as problem:
            # Lists and dicts keep their Python methods, and filters of ours run Python: what those raise comes through
            # as it is, and is the template's fault all the same.
            raise TemplateRefused(f"the chat template failed: {problem}", param="messages") from problem
        limit = _BASE_OUTPUT + _OUTPUT_PER_CHARACTER * num_characters
        if len(text) > limit:
            raise TemplateRefused(
                f"the chat template made {len(text)} characters of {num_characters}; the limit is {limit}",
                param="messages",
            )
        return text

    @cached_property
    def switches(self) -> frozenset[str]:
        """Names of values that a caller may give: those that the template asks for and nobody else gives."""
        asked = _environment(self.source, _BASE_FUEL).undeclared_variables_in_template("chat")
        return COMMON_SWITCHES | (asked - _RESERVED - self._constants.keys() - _FUNCTIONS)

    @cached_property
    def forms(self) -> TemplateForms:
        """What it takes: tried out once."""
        return find_forms(lambda given: self._run(given, True, _FORM_CHARACTERS))


def make_chat_template(source: TextSource, override: str | None) -> ChatTemplate | None:
    """The template of a model, or the one that stands in for it; None where there is neither.

    Args:
        source: the model's text.
        override: --chat-template: Jinja source, or the path of a file with it.

    Raises:
        InvalidConfig: the override cannot be read, or does not parse.
        UnsupportedModel: the model's own does not parse.
    """
    template = source.chat_template if override is None else _read_override(override)
    if template is None:
        return None
    bos_token, eos_token, control_tokens = _special_texts(source)
    try:
        return ChatTemplate(template, bos_token=bos_token, eos_token=eos_token, control_tokens=control_tokens)
    except UnsupportedModel as problem:
        if override is None:
            raise
        raise InvalidConfig(problem.message, param="chat_template") from problem


def _read_override(override: str) -> str:
    if "{" in override or "\n" in override:
        return override
    try:
        return Path(override).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise InvalidConfig(
            f"--chat-template {override}: it has no {{ and so is a file's name, which cannot be read ({problem})",
            param="chat_template",
        ) from problem


def _special_texts(source: TextSource) -> tuple[str, str, frozenset[str]]:
    """BOS, EOS and all control tokens as texts."""
    found = source.vocabulary
    if not isinstance(found, GgufVocabulary):
        bos, eos = (token_text_of(found.config.get(name)) or "" for name in ("bos_token", "eos_token"))
        return bos, eos, read_control_tokens(found)
    control = frozenset(
        text
        for token_id, (text, kind) in enumerate(zip(found.tokens, found.token_types, strict=False))
        if text and (kind in (_CONTROL, _UNKNOWN) or (kind != _NORMAL and token_id in source.end_token_ids))
    )
    return _token(found, found.bos_token_id), _token(found, _eos_token_id(found)), control


def _eos_token_id(found: GgufVocabulary) -> int | None:
    if found.eos_token_id is None and len(found.end_token_ids) == 1:
        return next(iter(found.end_token_ids))
    return found.eos_token_id


def _token(found: GgufVocabulary, token_id: int | None) -> str:
    return found.tokens[token_id] if token_id is not None and 0 <= token_id < len(found.tokens) else ""


@lru_cache(maxsize=64)
def _environment(template: str, fuel: int) -> Environment:
    """An environment that holds the parsed template as "chat"."""
    environment = Environment(
        fuel=fuel,
        trim_blocks=True,
        lstrip_blocks=True,
        debug=False,
        auto_escape_callback=lambda name: False,
        filters={"tojson": _to_json},
        tests={"iterable": _is_iterable},
        globals={"raise_exception": _raise_exception, "strftime_now": _strftime_now},
    )
    try:
        environment.add_template("chat", _GENERATION_TAG.sub(_generation_as_if, template))
    except TemplateError as problem:
        raise UnsupportedModel(
            f"the chat template does not parse: {_words_of(problem)}; give another with --chat-template"
        ) from problem
    return environment


def _generation_as_if(tag: re.Match[str]) -> str:
    """{% generation %} only marks an assistant's text for training; a block of the same shape keeps its white space."""
    return f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}"


def _words_of(problem: TemplateError) -> str:
    return str(problem).partition("\n")[0]


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefused(str(message), param="messages")


def _is_iterable(value: object) -> bool:
    """jinja2's test; minijinja's own says yes to None, which templates ask about tools."""
    return isinstance(value, Iterable)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """transformers' filter: json.dumps, not escaped for HTML; a call's arguments as the model wrote them."""
    width = indent if isinstance(indent, int) else len(indent or "")
    if width > _MAX_JSON_INDENT:
        raise TemplateRefused(f"the chat template indents JSON by {width}, over {_MAX_JSON_INDENT}", param="messages")
    if isinstance(value, Arguments) and (indent, separators, sort_keys) == (None, None, False):
        return value.text
    pair = None if separators is None else (str(separators[0]), str(separators[1]))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)
