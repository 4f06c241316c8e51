"""`headway serve` over the tiny model, in a cache that holds three of eight requests; right answers are worked by hand.

Every token of a context shows in the model's logits, so that a wrong, lost or repeated token shows too.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from serving import Server, start_server, stop_server, wait_until

from headway.testing.script import CONTROL_TOKENS, END_TOKEN_ID
from headway.testing.tiny_model import HIDDEN_SIZE, MAX_POSITION, VOCAB_SIZE, logits_by_hand, write_tiny_model

EXTRA_END = ord("#")
"""Only generation_config.json knows it. The model says it where a bias makes it."""
FORCED_END = {str(EXTRA_END): 100}
BLOCK_SIZE = 16
VALUE_BYTES = {"torch": 4, "native": 2}
"""Of a number of K or V: float32 and bfloat16. The model's are 0 and 1, which both hold."""
TEMPLATE = (
    "{% for message in messages %}"
    "{% if not loop.first and message.role == loop.previtem.role %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
URL = "/v1/completions"


@pytest.fixture(scope="module", params=["torch", "native"])
def tiny_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END_TOKEN_ID, EXTRA_END]}))
    (folder / "template.jinja").write_text(TEMPLATE)
    flags = ["--executor", request.param, "--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--threads", "1"]
    flags += [
        "--block-size",
        str(BLOCK_SIZE),
        "--kv-cache-memory",
        str(MAX_POSITION * 2 * HIDDEN_SIZE * VALUE_BYTES[request.param]),
    ]
    flags += ["--chat-template", str(folder / "template.jinja"), "--seed", "5"]
    server = start_server(tmp_path_factory.mktemp("serve"), *flags, model=str(folder))
    yield server
    assert stop_server(server) == 0, server.describe()


@pytest.fixture
def server(tiny_server: Server) -> Iterator[Server]:
    yield tiny_server
    tiny_server.check_idle()


def by_hand(
    context: Sequence[int],
    num_tokens: int,
    *,
    ends: Collection[int] = (),
    min_tokens: int = 0,
    logit_bias: Mapping[str, float] | None = None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> list[int]:
    """The greedy answer; the penalties as vLLM defines them (repetition over prompt and output, the others output)."""
    said: list[int] = []
    while len(said) < num_tokens and not (said and said[-1] in ends):
        logits = logits_by_hand([*context, *said])
        for key, bias in (logit_bias or {}).items():
            logits[int(key)] += bias
        if len(said) < min_tokens:
            for token_id in ends:
                logits[token_id] = -math.inf
        for token_id in {*context, *said}:
            value = logits[token_id]
            logits[token_id] = value / repetition_penalty if value > 0 else value * repetition_penalty
        for token_id, count in Counter(said).items():
            logits[token_id] -= frequency_penalty * count + presence_penalty
        said.append(logits.index(max(logits)))
    return said


def logprobs_by_hand(context: Sequence[int], said: Sequence[int]) -> list[float]:
    """Of each token that was said: log-softmax of the raw logits, whatever the penalties."""
    found = []
    for place, token_id in enumerate(said):
        logits = logits_by_hand([*context, *said[:place]])
        found.append(logits[token_id] - math.log(sum(math.exp(value) for value in logits)))
    return found


def text_of(token_ids: Sequence[int]) -> str:
    return bytes(token_id for token_id in token_ids if token_id < 256).decode(errors="replace")


def complete(server: Server, prompt: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "return_token_ids": True, **fields}
    response = server.post(URL, body)
    assert response.status_code == 200, response.text
    return response.json()


def ids_of(answer: Mapping[str, Any]) -> list[list[int]]:
    """Of its choices in their order."""
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["token_ids"] for choice in answer["choices"]]


def stream(server: Server, body: Mapping[str, Any], *, path: str = URL, leave_after: int | None = None) -> list[Any]:
    """The chunks of a stream; a client may leave after some of them."""
    chunks = []
    with httpx2.stream("POST", server.url + path, json={**body, "stream": True}, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line.removeprefix("data: ")))
            if leave_after is not None and len(chunks) >= leave_after:
                return chunks
    return chunks


WAYS: list[dict[str, Any]] = [
    {},
    {"logit_bias": {"99": -100}},  # bans what it would say first
    {"logit_bias": {"120": 100}},  # forces x
    {"logit_bias": {"120": 6.0, "99": -2.0}},
    {"repetition_penalty": 1.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 2.0, "logit_bias": {"120": 7.5}},
    {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": -0.4, "logit_bias": {"121": 5.0}},
]


def test_biases_and_penalties_give_the_answer_worked_by_hand_alone_and_in_company(server: Server) -> None:
    cases = [(prompt, fields) for fields in WAYS for prompt in ("ab", "zebra", "aaaab!")]
    expected = [by_hand(list(prompt.encode()), 30, **fields) for prompt, fields in cases]
    assert set(expected[6]) == {ord("x")}

    def ask(case: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        return complete(server, case[0], max_tokens=30, ignore_eos=True, logprobs=0, **case[1])

    alone = [ask(case) for case in cases]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, cases))
    for case, ids, *answers in zip(cases, expected, alone, together, strict=True):
        right = pytest.approx(logprobs_by_hand(list(case[0].encode()), ids), abs=1e-4)
        for answer in answers:
            assert ids_of(answer) == [ids], case
            assert answer["choices"][0]["logprobs"]["token_logprobs"] == right, case


ENDS: list[tuple[dict[str, Any], int, str, str]] = [
    ({}, 1, "stop", ""),
    ({"ignore_eos": True}, 8, "length", "########"),
    ({"min_tokens": 8, "ignore_eos": True}, 8, "length", "########"),
    ({"min_tokens": 8}, 8, "length", "cdefghij"),
    ({"min_tokens": 3}, 4, "stop", "cde"),
    ({"logit_bias": {"113": 100}, "stop_token_ids": [113]}, 1, "stop", ""),
    ({"logit_bias": {"113": 100}, "stop_token_ids": [113], "min_tokens": 2}, 3, "stop", "cd"),
    ({"logit_bias": {"113": 100}, "stop_token_ids": [113], "ignore_eos": True}, 1, "stop", ""),
]


def test_every_end_token_of_the_model_ends_a_text_unless_it_is_ignored_or_comes_too_early(server: Server) -> None:
    for fields, *expected in ENDS:
        answer = complete(server, "ab", max_tokens=8, **{"logit_bias": FORCED_END, **fields})
        choice = answer["choices"][0]
        told = [answer["usage"]["completion_tokens"], choice["finish_reason"], choice["text"]]
        assert told == expected, fields


def test_an_ignored_end_token_leaves_no_trace_in_the_text_and_counts(server: Server) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    fields = {"max_completion_tokens": 64, "ignore_eos": True}
    answer = server.post("/v1/chat/completions", body | fields).json()
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    assert answer["choices"][0]["message"]["content"] == (alphabet * 3)[: 64 - 2]  # two of them were end tokens
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 64)


def test_a_seed_gives_its_choices_again_alone_and_in_company_and_they_differ(server: Server) -> None:
    def ask(seed: int = 7) -> list[list[int]]:
        return ids_of(complete(server, "A word:", n=4, seed=seed, temperature=2.0, max_tokens=12))

    alone = ask()
    assert len({tuple(choice) for choice in alone}) == 4
    assert ask() == alone
    with ThreadPoolExecutor(5) as pool:
        together = list(pool.map(ask, (1, 2, 7, 3, 7)))
    assert together[2] == together[4] == alone
    assert together[0] != alone


@pytest.mark.parametrize("is_stream", [False, True])
def test_choices_of_several_prompts_have_their_places(server: Server, is_stream: bool) -> None:
    prompts = ["1 1 a", "2 2 m", "3 3 3 x"]
    body = {"model": "tiny", "prompt": prompts, "n": 2, "max_tokens": 5, "temperature": 0}
    texts = ["bcdef", "bcdef", "nopqr", "nopqr", "yz", "yz"]
    if is_stream:
        chunks = stream(server, body | {"stream_options": {"include_usage": True}})
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        assert ["".join(c["text"] for c in choices if c["index"] == index) for index in range(6)] == texts
        ends = sorted((c["index"], c["finish_reason"]) for c in choices if c["finish_reason"])
        usage = chunks[-1]["usage"]
    else:
        answer = server.post(URL, body).json()
        assert [choice["text"] for choice in answer["choices"]] == texts
        ends = [(choice["index"], choice["finish_reason"]) for choice in answer["choices"]]
        usage = answer["usage"]
    assert ends == [(0, "length"), (1, "length"), (2, "length"), (3, "length"), (4, "stop"), (5, "stop")]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5 + 5 + 7, 4 * 5 + 2 * 3)


KINDS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 1.5, "seed": 11},
    {"temperature": 0.9, "seed": 12, "presence_penalty": 0.5},
]


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_is_preempted_answers_as_it_does_alone(server: Server, is_stream: bool) -> None:
    """Eight of 140 tokens in a cache of 512: each answer is that of the request alone, told once."""
    prompts = [[97 + (place * 7 + number) % 26 for place in range(40)] for number in range(8)]

    def ask(number: int) -> tuple[list[int], list[float], dict[str, Any]]:
        fields = {"max_tokens": 100, "ignore_eos": True, "logprobs": 0, **KINDS[number % 4]}
        if not is_stream:
            answer = complete(server, prompts[number], **fields)
            choice = answer["choices"][0]
            return choice["token_ids"], choice["logprobs"]["token_logprobs"], answer["usage"]
        body = {"model": "tiny", "prompt": prompts[number], "temperature": 0, "return_token_ids": True, **fields}
        chunks = stream(server, body | {"stream_options": {"include_usage": True}})
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        ids = [token_id for choice in choices for token_id in choice.get("token_ids", [])]
        logprobs = [value for choice in choices if choice["logprobs"] for value in choice["logprobs"]["token_logprobs"]]
        assert "".join(choice["text"] for choice in choices) == text_of(ids)
        return ids, logprobs, chunks[-1]["usage"]

    alone = [ask(number) for number in range(8)]
    preempted = server.metric("headway_num_preemptions_total")
    together = []
    for _ in range(20):  # so small a model may end one request before the next has arrived
        with ThreadPoolExecutor(8) as pool:
            together += enumerate(pool.map(ask, range(8)))
        if server.metric("headway_num_preemptions_total") > preempted:
            break
    assert server.metric("headway_num_preemptions_total") > preempted
    for number, (ids, logprobs, usage) in together:
        assert ids == alone[number][0]
        fields = KINDS[number % 4]
        if "seed" not in fields:
            assert ids == by_hand(prompts[number], 100, **fields)
        assert logprobs == pytest.approx(logprobs_by_hand(prompts[number], ids), abs=1e-4)
        assert (usage["prompt_tokens"], usage["completion_tokens"], len(logprobs)) == (40, 100, 100)


def test_one_as_long_as_the_cache_and_then_many_short_ones_fit(server: Server) -> None:
    """The limit of a request does not shrink with the number of those that may run."""
    long = [97 + place % 26 for place in range(480)]
    assert ids_of(complete(server, long, max_tokens=32, ignore_eos=True)) == [by_hand(long, 32)]
    prompts = [[97 + number] * 100 for number in range(8)]
    answer = complete(server, prompts, max_tokens=20, ignore_eos=True)
    assert ids_of(answer) == [by_hand(prompt, 20) for prompt in prompts]


def test_one_that_needs_the_whole_cache_gets_it_among_neighbours_and_they_get_on_too(server: Server) -> None:
    prompts = [[97 + (place + number) % 26 for place in range(60)] for number in range(8)]
    prompts[3] = [97 + place * 3 % 26 for place in range(480)]
    lengths = [60] * 3 + [32] + [60] * 4

    def ask(number: int) -> list[list[int]]:
        return ids_of(complete(server, prompts[number], max_tokens=lengths[number], ignore_eos=True))

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(ask, range(8)))
    assert told == [[by_hand(prompt, length)] for prompt, length in zip(prompts, lengths, strict=True)]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("num_prompt", "max_tokens", "numbers"), [(600, 1, "600 512"), (400, 113, "400 113 513 512")])
def test_what_can_never_fit_is_refused_with_the_numbers(
    server: Server, num_prompt: int, max_tokens: int, numbers: str, is_stream: bool
) -> None:
    body = {"model": "tiny", "prompt": [97] * num_prompt, "max_tokens": max_tokens, "stream": is_stream}
    response = server.post(URL, body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert all(number in response.json()["error"]["message"] for number in numbers.split())
    assert ids_of(complete(server, "ab", max_tokens=2)) == [list(b"cd")]


def test_a_turn_that_was_broken_off_does_not_show_in_the_next(server: Server) -> None:
    """The cache holds what was computed, by its tokens: a text that parts from it anywhere is computed from there."""
    start = [97 + place % 26 for place in range(3 * BLOCK_SIZE + 5)]
    whole = [*start, *by_hand(start, 40)]
    for turn, leave_after in enumerate((1, 2, 17, 40)):
        body = {"model": "tiny", "prompt": start, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        stream(server, body, leave_after=leave_after)
        server.check_idle()
        for place in (5, 20, 40, 60, len(whole) - 1):
            prompt = [*whole[:place], ord("A") + turn, *whole[place + 1 :]]
            answer = complete(server, prompt, max_tokens=12, ignore_eos=True, logprobs=0)
            expected = by_hand(prompt, 12)
            assert ids_of(answer) == [expected]
            told = answer["choices"][0]["logprobs"]["token_logprobs"]
            assert told == pytest.approx(logprobs_by_hand(prompt, expected), abs=1e-4)
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert min(place, len(start)) // BLOCK_SIZE * BLOCK_SIZE <= cached <= place


@pytest.mark.case("queue-disc-02")
@pytest.mark.parametrize("tiny_server", ["torch"], indirect=True)  # the native one is through before they are there
def test_requests_in_the_queue_whose_clients_leave_are_never_computed(server: Server) -> None:
    """Eight rows run all the time; behind 48 choices come five prompts of 300 tokens, and their clients go."""
    computed = server.metric("headway_computed_tokens_total")
    aborts = server.metric("headway_request_aborts_total")
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(complete, server, "a", n=8, max_tokens=50, ignore_eos=True) for _ in range(6)]
        wait_until(lambda: server.metric("headway_num_requests_waiting") >= 24, 20, server.describe)
        for number in range(5):
            body = {"model": "tiny", "prompt": [98 + number] * 300, "max_tokens": 50, "stream": True}
            with httpx2.stream("POST", server.url + URL, json=body, timeout=60) as response:
                assert response.status_code == 200
        assert [len(one.result()["choices"]) for one in asked] == [8] * 6
    server.check_idle()
    assert server.metric("headway_request_aborts_total") == aborts + 5
    # A choice computes its prompt of one token and 49 of its 50.
    assert server.metric("headway_computed_tokens_total") - computed == 48 * 50


@pytest.mark.case("tmpl-raise-01")
@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/chat/completions", {}), ("/v1/chat/completions", {"stream": True}), ("/tokenize", {})],
)
def test_a_conversation_that_the_template_refuses_is_a_400_in_its_words(
    server: Server, path: str, fields: dict[str, Any]
) -> None:
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    body: dict[str, Any] = {"model": "tiny", "messages": messages, **fields}
    response = server.post(path, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("chat_template_error", "messages")
    assert "Roles must alternate user/assistant" in error["message"]
    assert "Traceback" not in response.text
    assert server.post(path, body | {"messages": messages[:1]}).status_code == 200


def test_ids_that_are_no_tokens_are_refused_and_the_last_one_is_not(server: Server) -> None:
    last = VOCAB_SIZE - 1
    assert server.post("/detokenize", {"tokens": [last]}).json() == {"prompt": CONTROL_TOKENS[-1]}
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}
    assert ids_of(complete(server, [97, last], max_tokens=1, repetition_penalty=1.2)) == [[97]]
    for token_id in (-1, VOCAB_SIZE, 2**40):
        assert server.post("/detokenize", {"tokens": [token_id]}).status_code == 400
        fields: list[dict[str, Any]] = [{"prompt": [97, token_id], "repetition_penalty": 1.2}]
        fields += [{"prompt": "a", "logit_bias": {str(token_id): 1}}, {"prompt": "a", "stop_token_ids": [token_id]}]
        for one in fields:
            response = server.post(URL, {"model": "tiny", "max_tokens": 2, **one})
            assert response.status_code == 400, one
            assert response.json()["error"]["param"] in one
