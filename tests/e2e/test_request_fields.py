"""Fields of requests through OpenAI's client, over the demo model."""

from collections.abc import Iterator

import openai
import pytest
from serving import Server

PROMPT = "The ferry left at nine, and it came back"


@pytest.fixture(scope="module")
def client(shared_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared_server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_an_echo_tells_the_prompt_with_its_logprobs_and_offsets(client: openai.OpenAI, server: Server) -> None:
    asked = {"model": "demo", "prompt": PROMPT, "echo": True, "logprobs": 2, "temperature": 0.0}
    whole = client.completions.create(**asked, max_tokens=4)
    choice = whole.choices[0]
    assert choice.text.startswith(PROMPT)
    told = choice.logprobs
    assert told is not None
    assert len(told.tokens) == whole.usage.prompt_tokens + 4
    assert told.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in told.token_logprobs[1:])
    assert all(choice.text[at:].startswith(token) for at, token in zip(told.text_offset, told.tokens, strict=True))
    alone = client.completions.create(**asked, max_tokens=0)
    assert alone.choices[0].text == PROMPT
    assert alone.choices[0].finish_reason == "length"
    assert alone.usage.completion_tokens == 0
    count = alone.usage.prompt_tokens
    assert alone.choices[0].logprobs.token_logprobs == told.token_logprobs[:count]
    streamed = [each.choices[0] for each in client.completions.create(**asked, max_tokens=4, stream=True)]
    assert "".join(part.text for part in streamed) == choice.text
    parts = [part.logprobs for part in streamed if part.logprobs]
    assert [value for part in parts for value in part.token_logprobs] == told.token_logprobs
    assert [value for part in parts for value in part.text_offset] == told.text_offset


def test_masks_hold_in_every_answer(client: openai.OpenAI, server: Server) -> None:
    asked = {"model": "demo", "prompt": PROMPT, "max_tokens": 20, "temperature": 0.0}
    free = client.completions.create(**asked, extra_body={"return_token_ids": True, "ignore_eos": True}).choices[0]
    ids = free.model_extra["token_ids"]
    bad = free.text.split()[1]
    without = client.completions.create(**asked, extra_body={"bad_words": [bad], "ignore_eos": True}).choices[0]
    assert bad in free.text.split()
    assert bad not in without.text.split()
    only = {"allowed_token_ids": ids[:2], "return_token_ids": True, "ignore_eos": True}
    some = client.completions.create(**(asked | {"temperature": 2.0}), extra_body=only).choices[0]
    assert set(some.model_extra["token_ids"]) <= set(ids[:2])


def test_a_chat_goes_on_with_the_message_it_is_given(client: openai.OpenAI, server: Server) -> None:
    messages = [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "A colour is"}]
    body = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    asked = {"model": "demo", "messages": messages, "max_tokens": 8, "temperature": 0.0}
    plain = client.chat.completions.create(**asked, extra_body=body)
    rendered = server.post("/detokenize", {"tokens": plain.model_extra["prompt_token_ids"]}).json()["prompt"]
    assert rendered.endswith("<|im_start|>assistant\nA colour is")
    again = client.chat.completions.create(**asked, extra_body=body | {"echo": True})
    assert again.choices[0].message.content == "A colour is" + plain.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="takes enable_thinking"):
        client.chat.completions.create(**asked, extra_body={"chat_template_kwargs": {"mood": 1}})


def test_lengths_count_the_prompt_and_a_long_one_is_cut_only_if_asked(client: openai.OpenAI, server: Server) -> None:
    made = client.completions.create(model="demo", prompt=PROMPT, extra_body={"max_length": 16, "ignore_eos": True})
    assert made.usage.total_tokens == 16
    long = "word " * 10_000
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model="demo", prompt=long, max_tokens=2)
    body = {"truncate_prompt_tokens": 7, "return_token_ids": True}
    cut = client.completions.create(model="demo", prompt=long, max_tokens=2, extra_body=body)
    assert cut.usage.prompt_tokens == len(cut.model_extra["prompt_token_ids"]) == 7


def test_prompt_logprobs_are_the_same_behind_a_cached_prefix_and_salts_keep_prefixes_apart(
    client: openai.OpenAI, server: Server
) -> None:
    prompt = "One after the other the boats went out, small and quick, each as soon as it was full enough to go. " * 3
    asked = {"model": "demo", "prompt": prompt, "max_tokens": 1, "temperature": 0.0}
    first = client.completions.create(**asked, extra_body={"prompt_logprobs": 1})
    second = client.completions.create(**asked, extra_body={"prompt_logprobs": 1})
    assert first.choices[0].model_extra["prompt_logprobs"] == second.choices[0].model_extra["prompt_logprobs"]
    assert second.usage.prompt_tokens_details.cached_tokens == 0
    salted = [client.completions.create(**asked, extra_body={"cache_salt": salt}) for salt in ("a", "b", "a")]
    cached = [made.usage.prompt_tokens_details.cached_tokens for made in salted]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0
    assert client.completions.create(**asked).usage.prompt_tokens_details.cached_tokens > 0
