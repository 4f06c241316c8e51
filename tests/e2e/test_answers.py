"""What the demo model answers through HTTP, against transformers on the same weights."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch
from serving import Server

from headway.checkpoint.demo import fetch_demo
from headway.config import default_cache_dir
from headway.server.basic.convert import PLAIN_MAX_TOKENS

MESSAGES = [{"role": "user", "content": "Write two sentences about ferries."}]
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small harbour,",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three primary colours are",
    "1, 2, 3, 4,",
]
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def client(shared_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared_server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    folder, name = os.path.split(fetch_demo(default_cache_dir()))
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()


@torch.inference_mode()
def reference_logprobs(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    return torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)


def complete(server: Server, prompt: str | list[int], **fields: object) -> dict[str, object]:
    body = {"model": "demo", "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, **fields}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    return response.json()


def test_greedy_tokens_and_their_logprobs_are_those_of_transformers(
    own_server: Callable[..., Server], reference: torch.nn.Module
) -> None:
    """One pass of the reference over prompt and answer: each token is the likeliest after those before."""
    server = own_server("--dtype", "float32")
    for prompt in PROMPTS:
        ids = server.post("/tokenize", {"model": "demo", "prompt": prompt}).json()["tokens"]
        choice = complete(server, prompt, logprobs=2, return_token_ids=True)["choices"][0]
        given = choice["token_ids"]
        assert len(given) == NUM_TOKENS
        logprobs = reference_logprobs(reference, ids + given)[len(ids) - 1 : -1]
        assert given == logprobs.argmax(-1).tolist()
        wanted = logprobs.gather(1, torch.tensor(given)[:, None])[:, 0].tolist()
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(wanted, abs=1e-4)
        text = server.post("/detokenize", {"model": "demo", "tokens": given}).json()["prompt"]
        assert choice["text"] == text


def test_requests_that_run_together_answer_as_each_does_alone(server: Server) -> None:
    alone = [complete(server, prompt)["choices"][0]["text"] for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for _ in range(3):
            together = list(pool.map(lambda prompt: complete(server, prompt)["choices"][0]["text"], PROMPTS))
            assert together == alone


def test_a_conversation_streams_the_same_text_as_it_answers_whole(server: Server, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=40)
    stream = client.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(text) > 40
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_second_request_with_a_long_prefix_finds_it_in_the_cache(server: Server, client: openai.OpenAI) -> None:
    system = "You are the harbour master. " * 40
    for turn, question in enumerate(["When does the ferry leave?", "Who is on board?"]):
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "system", "content": system}, {"role": "user", "content": question}],
            max_tokens=4,
            temperature=0,
        )
        cached = answer.usage.prompt_tokens_details.cached_tokens
        if turn:
            # All whole blocks of 16 that the two prompts share.
            assert answer.usage.prompt_tokens - 48 < cached < answer.usage.prompt_tokens


def test_a_seed_gives_the_same_choices_again_and_they_differ_among_themselves(
    server: Server, client: openai.OpenAI
) -> None:
    def ask() -> list[str]:
        answer = client.completions.create(
            model="demo", prompt="A random word:", n=4, seed=7, temperature=1.0, max_tokens=8
        )
        return [choice.text for choice in answer.choices]

    first = ask()
    assert ask() == first
    assert len(set(first)) > 1


def test_the_plain_routes_answer_in_order_without_the_prompt(server: Server) -> None:
    alone = [
        server.post("/basic_generate", {"prompt": prompt, "temperature": 0}).json()["generated_text"]
        for prompt in PROMPTS
    ]
    assert server.post("/generate", {"prompts": PROMPTS, "temperature": 0}).json() == {"generated_texts": alone}
    # A model may repeat its prompt of its own accord: OpenAI's route, which gives no prompt back, says what it wrote.
    assert alone == [
        complete(server, prompt, max_tokens=PLAIN_MAX_TOKENS, ignore_eos=False)["choices"][0]["text"]
        for prompt in PROMPTS
    ]
    raw = server.post("/generate_stream", {"prompt": PROMPTS[0], "temperature": 0}).text
    events = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    import json

    assert "".join(json.loads(event)["token"] for event in events[:-1]) == alone[0]
