"""Prompts become ids where they do not keep others waiting."""

import threading
from typing import Any

import pytest

from headway.core.request import ChatPrompt, Prompt, TextPrompt, TokensPrompt
from headway.text.chat_template import ChatTemplate
from headway.text.tokenizer import Tokenizer
from headway.worker import prompt as prompt_module
from headway.worker.prompt import LONG_TEXT_CHARACTERS, ModelText, ReadPrompt, num_characters, tokenize_prompt

LONG = "word " * LONG_TEXT_CHARACTERS


@pytest.mark.parametrize(
    ("prompt", "is_in_a_thread"),
    [
        (TextPrompt("word"), False),
        (TextPrompt(LONG), True),
        (TokensPrompt([97, 98]), False),
        (TokensPrompt(list(LONG.encode())), True),
        (ChatPrompt([{"role": "user", "content": "word"}]), False),
        (ChatPrompt([{"role": "user", "content": [{"type": "text", "text": LONG}]}]), True),
        (ChatPrompt([{"role": "user", "content": "a"}], tools=[{"description": LONG}]), True),
    ],
)
async def test_a_long_prompt_of_any_kind_is_prepared_off_the_event_loop(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, prompt: Prompt, is_in_a_thread: bool
) -> None:
    threads = []
    prepare = prompt_module.read_prompt

    def watched(text: ModelText, prompt: Prompt) -> ReadPrompt:
        threads.append(threading.current_thread())
        return prepare(text, prompt)

    monkeypatch.setattr(prompt_module, "read_prompt", watched)
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert (await tokenize_prompt(ModelText(tokenizer, template), prompt)).token_ids
    assert [thread is not threading.main_thread() for thread in threads] == [is_in_a_thread]


def test_how_long_a_prompt_is_does_not_depend_on_how_deep_it_is() -> None:
    tools: Any = "four"
    for _ in range(5000):
        tools = {"items": [tools]}
    assert num_characters(ChatPrompt(messages=[{"role": "user", "content": "hello"}], tools=[tools])) == 13
