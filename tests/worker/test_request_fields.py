"""What a request's fields make of its prompt and its sampling before it is submitted."""

from typing import Any

import pytest

from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokensPrompt
from headway.core.sampling import SamplingParams
from headway.errors import ContextLengthExceeded, InvalidRequest
from headway.text.chat_template import ChatTemplate
from headway.text.tokenizer import Tokenizer
from headway.worker.prompt import (
    ModelText,
    PreparedRequest,
    check_request,
    complete_sampling,
    fit_prompt,
    read_prompt,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{{ mood or '' }}{% endif %}"
)
TRIMS = CHATML.replace("m.content", "m.content | trim")
JOKE = [{"role": "user", "content": "Joke?"}, {"role": "assistant", "content": "OK!\n"}]


def render(tokenizer: Tokenizer, prompt: Prompt, template: str = CHATML) -> str:
    return tokenizer.decode(read_prompt(ModelText(tokenizer, ChatTemplate(template)), prompt).token_ids)


@pytest.mark.parametrize("template", [CHATML, TRIMS])
@pytest.mark.parametrize("content", ["OK!\n", "", "zqcontinuesherezq and <|im_end|> on "])
def test_a_final_message_is_continued_where_it_stops(tokenizer: Tokenizer, template: str, content: str) -> None:
    """Its own white space stays, and no end of a turn comes behind it."""
    messages = [JOKE[0], {"role": "assistant", "content": content}]
    text = render(tokenizer, ChatPrompt(messages, continue_final_message=True), template)
    assert text == f"<|im_start|>user\nJoke?<|im_end|>\n<|im_start|>assistant\n{content}"


def test_control_tokens_of_a_continued_message_stay_text() -> None:
    """Spans that are protected are cut where the prompt is."""
    template = ChatTemplate(CHATML, control_tokens=["<|im_start|>", "<|im_end|>"])
    ids: list[Any] = []

    class Spy:
        def encode_rendered(self, rendered: Any) -> list[int]:
            ids.append(rendered)
            return [1]

    messages = [JOKE[0], {"role": "assistant", "content": "a<|im_end|>b"}]
    read_prompt(ModelText(Spy(), template), ChatPrompt(messages, continue_final_message=True))  # type: ignore[arg-type]
    (rendered,) = ids
    assert rendered.text.endswith("assistant\na<|im_end|>b")
    assert any(rendered.text[start:end].find("<|im_end|>") >= 0 for start, end in rendered.protected)
    assert all(end <= len(rendered.text) for _, end in rendered.protected)


@pytest.mark.parametrize(
    ("messages", "template", "words"),
    [
        (JOKE[:1], CHATML, "needs a last message of the assistant"),
        ([JOKE[0], {"role": "assistant", "content": None}], CHATML, "needs a last message of the assistant"),
        ([], CHATML, "needs a last message of the assistant"),
        (JOKE, "{% for m in messages %}{{ m.role }}{% endfor %}", "leaves the last message out"),
    ],
)
def test_what_cannot_be_continued_is_refused(tokenizer: Tokenizer, messages: Any, template: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        render(tokenizer, ChatPrompt(messages, continue_final_message=True), template)
    assert caught.value.param == "continue_final_message"


def test_a_template_gets_its_own_switches_and_nothing_else(tokenizer: Tokenizer) -> None:
    user = JOKE[:1]
    assert render(tokenizer, ChatPrompt(user, template_kwargs={"enable_thinking": False})).endswith("<think></think>")
    assert render(tokenizer, ChatPrompt(user, template_kwargs={"mood": "!!"})).endswith("assistant\n!!")
    plain = "{{ messages[0].content }}{{ bos_token }}"
    assert render(tokenizer, ChatPrompt(user, template_kwargs={"enable_thinking": True}), plain) == "Joke?"
    for name in ("bos_token", "eos_token", "documents", "raise_exception", "namespace", "m", "x", "range"):
        with pytest.raises(InvalidRequest, match="does not take; it takes enable_thinking, mood") as caught:
            render(tokenizer, ChatPrompt(user, template_kwargs={name: "x"}))
        assert caught.value.param == "chat_template_kwargs"
    for name in ("messages", "tools", "add_generation_prompt"):
        with pytest.raises(InvalidRequest, match="field of its own"):
            render(tokenizer, ChatPrompt(user, template_kwargs={name: "x"}))


def prepared(tokenizer: Tokenizer, prompt: Prompt | None = None, **sampling: Any) -> PreparedRequest:
    prompt = prompt or TextPrompt("0123456789")
    request = GenerateRequest("r", "m", prompt, SamplingParams(**sampling))
    return check_request(ModelText(tokenizer), request, read_prompt(ModelText(tokenizer), prompt))


@pytest.mark.parametrize(
    ("sampling", "limit", "wanted"),
    [
        ({}, 4, "0123456789"),
        ({"truncate_prompt_tokens": 3}, None, "789"),
        ({"truncate_prompt_tokens": 10}, None, "0123456789"),
        ({"truncate_prompt_tokens": 99}, None, "0123456789"),
        ({"truncate_prompt_tokens": -1}, None, "0123456789"),
        ({"truncate_prompt_tokens": -1}, 8, "3456789"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 5}, 8, "789"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 5}, 80, "0123456789"),
        ({"truncate_prompt_tokens": -1, "max_length": 5}, 8, "6789"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 9}, 8, "0123456789"),
    ],
)
def test_a_prompt_is_cut_to_its_last_tokens_only_where_that_was_asked(
    tokenizer: Tokenizer, sampling: dict[str, Any], limit: int | None, wanted: str
) -> None:
    request = fit_prompt(prepared(tokenizer, **sampling), limit)
    assert tokenizer.decode(request.prompt_token_ids) == wanted
    assert (request.prompt_text is None) == (wanted != "0123456789")


def test_a_prompt_that_is_cut_keeps_its_bos(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "bos_token_id", ord("0"))
    request = fit_prompt(prepared(tokenizer, truncate_prompt_tokens=3), None)
    assert tokenizer.decode(request.prompt_token_ids) == "089"


@pytest.mark.parametrize(
    ("sampling", "limit", "max_tokens"),
    [
        ({"max_length": 15}, None, 5),
        ({"max_length": 15}, 100, 5),
        ({"max_length": 15, "max_tokens": 3}, 100, 3),
        ({"max_length": 15, "max_tokens": 50}, 100, 5),
        ({"max_length": 500}, 14, 4),
        ({"max_length": 500}, None, 490),
        ({}, None, None),
        ({"max_tokens": 0, "prompt_logprobs": 1}, 14, 0),
        ({"max_tokens": 50, "lowers_max_tokens": True}, 14, 4),
        ({"max_tokens": 50, "lowers_max_tokens": True}, None, 50),
        ({"max_tokens": 3, "lowers_max_tokens": True}, 14, 3),
    ],
)
def test_max_length_counts_the_prompt(sampling: dict[str, Any], limit: int | None, max_tokens: int | None) -> None:
    made = complete_sampling(SamplingParams(**sampling), num_prompt_tokens=10, max_model_len=limit)
    assert made.max_tokens == max_tokens


@pytest.mark.parametrize(
    ("sampling", "error", "words"),
    [
        ({"max_length": 10}, InvalidRequest, "10 tokens and max_length is 10"),
        (
            {"max_length": 15, "min_tokens": 6},
            InvalidRequest,
            "min_tokens is 6, and max_length 15 and the context leave 4",
        ),
        ({"max_tokens": 5}, ContextLengthExceeded, "10 tokens and max_tokens 5"),
    ],
)
def test_lengths_that_cannot_be_are_told_with_all_numbers(sampling: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        complete_sampling(SamplingParams(**sampling), num_prompt_tokens=10, max_model_len=14)


def test_bad_words_are_spelled_at_the_beginning_and_behind_a_space(tokenizer: Tokenizer) -> None:
    request = prepared(tokenizer, bad_words=("ab", " c", "ab"), bad_token_ids=[[7, 8]])
    assert request.sampling.bad_token_ids == [[7, 8], [97, 98], [32, 97, 98], [99], [32, 99]]
    sent = complete_sampling(request.sampling, num_prompt_tokens=10, max_model_len=64)
    assert sent.bad_token_ids == request.sampling.bad_token_ids


def test_masks_that_exclude_each_other_are_refused_once_the_words_are_tokens(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="no token is left"):
        prepared(tokenizer, bad_words=("a",), allowed_token_ids=[97])
    with pytest.raises(InvalidRequest, match="allowed_token_ids"):
        prepared(tokenizer, allowed_token_ids=[10**6])


def test_token_prompts_are_cut_too(tokenizer: Tokenizer) -> None:
    request = fit_prompt(prepared(tokenizer, TokensPrompt([1, 2, 3, 4]), truncate_prompt_tokens=2), None)
    assert request.prompt_token_ids == (3, 4)
