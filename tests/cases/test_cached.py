"""One cache of 512 tokens for all: what is found in it, pushed out of it, or left in it changes no answer."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from cases.asking import COMPLETIONS, answer, by_hand, refused
from e2e.serving import Server


@pytest.mark.case("greedy-cache-08")
def test_greedy_is_the_same_cold_warm_and_in_company(server: Server) -> None:
    """Cold, warm, warm, and in company of seven: the same; the cache says that it was hit."""
    prompt = [ord("G") + place * 5 % 20 for place in range(100)]
    fields = {"prompt": prompt, "max_tokens": 10, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
    found = [answer(server, COMPLETIONS, **fields) for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        others = [{**fields, "prompt": [number] * 20} for number in range(65, 72)]
        found += list(pool.map(lambda one: answer(server, COMPLETIONS, **one), [fields, *others]))[:1]
    told = [(one["choices"][0]["token_ids"], one["choices"][0]["logprobs"]["token_logprobs"]) for one in found]
    assert told[1:] == told[:1] * 3
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in found]
    assert cached == [0, 96, 96, 96]


@pytest.mark.case("salt-01")
def test_a_salt_keeps_prefixes_apart(server: Server) -> None:
    prompt = [ord("S") + place * 7 % 25 for place in range(70)]
    fields = {"prompt": prompt, "max_tokens": 3, "return_token_ids": True}
    found = [answer(server, COMPLETIONS, cache_salt=salt, **fields) for salt in ("key A", "key A", "key B")]
    assert [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in found] == [0, 64, 0]
    assert len({tuple(one["choices"][0]["token_ids"]) for one in found}) == 1


@pytest.mark.case("preempt-01")
def test_what_is_preempted_answers_as_it_does_alone(server: Server) -> None:
    """Eight that each need 150 of the cache's 512 tokens, greedy and seeded, with and without penalties and echo."""
    kinds: list[dict[str, Any]] = [
        {"logprobs": 1},
        {"repetition_penalty": 1.3},
        {"temperature": 1, "seed": 3, "logprobs": 0},
        {"echo": True, "logprobs": 1},
    ]
    jobs = [
        {"prompt": [65 + (place * 3 + number) % 50 for place in range(50)], "max_tokens": 100, "ignore_eos": True}
        | {"return_token_ids": True}
        | kinds[number % 4]
        for number in range(8)
    ]
    alone = [answer(server, COMPLETIONS, **job) for job in jobs]
    before = server.metric("headway_num_preemptions_total")
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: answer(server, COMPLETIONS, **job), jobs))
    assert server.metric("headway_num_preemptions_total") > before
    for one, other in zip(alone, together, strict=True):
        assert other["choices"] == one["choices"]
        assert other["usage"]["completion_tokens"] == one["usage"]["completion_tokens"] == 100


@pytest.mark.case("preempt-livelock-02")
def test_a_full_cache_makes_progress_and_what_never_fits_is_refused(server: Server) -> None:
    jobs = [{"prompt": [65 + number] * 60, "max_tokens": 60, "ignore_eos": True} for number in range(7)]
    jobs.append({"prompt": [90] * 480, "max_tokens": 32, "ignore_eos": True})
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda job: answer(server, COMPLETIONS, **job), jobs))
    assert [one["usage"]["completion_tokens"] for one in found] == [60] * 7 + [32]
    assert "512" in refused(server, path=COMPLETIONS, prompt=[90] * 600)


@pytest.mark.case("disc-session-03")
def test_a_turn_that_was_broken_off_does_not_show_in_the_next(server: Server) -> None:
    start = [97 + place % 26 for place in range(60)]
    body = {"model": "tiny", "prompt": start, "max_tokens": 300, "temperature": 0, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", server.url + COMPLETIONS, json=body, timeout=60) as response:
        next(response.iter_lines())
    other = [*start[:40], ord("Q"), *start[41:]]
    found = answer(server, COMPLETIONS, prompt=other, max_tokens=10, ignore_eos=True, return_token_ids=True)
    assert found["choices"][0]["token_ids"] == by_hand(bytes(other), 10)
