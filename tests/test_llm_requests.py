"""Fields of requests at the offline door, over the tiny model whose every answer is worked by hand."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway import LLM, AsyncLLM, RequestOutput, SamplingParams
from headway.core.output import TokenLogprob
from headway.errors import InvalidRequest
from headway.testing.tiny_model import logits_by_hand, write_tiny_model

FLAGS: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_cache_memory": 2**26}
PROMPT = "Zebra: abcabd!"
TOLERANCE = 2e-2
"""Of a bfloat16 matrix of eights and fours, which are exact in it, and of activations of 8 bits."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("llm") / "tiny")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **FLAGS) as llm:
        yield llm


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 6, **fields})


def check_by_hand(told: list[TokenLogprob | None] | None, prompt: str, num_top: int) -> None:
    ids = list(prompt.encode())
    assert told is not None
    assert told[0] is None
    assert len(told) == len(ids)
    for place, entry in enumerate(told[1:], 1):
        logits = np.array(logits_by_hand(ids[:place]), np.float64)
        wanted = logits - np.log(np.exp(logits).sum())
        assert entry is not None
        assert (entry.chosen.token_id, entry.chosen.bytes) == (ids[place], bytes([ids[place]]))
        assert entry.chosen.logprob == pytest.approx(wanted[ids[place]], abs=TOLERANCE)
        assert [top.logprob for top in entry.top] == pytest.approx(np.sort(wanted)[::-1][:num_top], abs=TOLERANCE)


@pytest.mark.parametrize("num_top", [0, 3])
def test_prompt_logprobs_are_those_worked_by_hand(llm: LLM, num_top: int) -> None:
    for prompt in (PROMPT, list(PROMPT.encode()), PROMPT):
        made = llm.generate(prompt, greedy(prompt_logprobs=num_top))[0]
        check_by_hand(made.prompt_logprobs, PROMPT, num_top)
    assert llm.generate(PROMPT, greedy())[0].prompt_logprobs is None
    assert llm.generate("a", greedy(prompt_logprobs=1))[0].prompt_logprobs == [None]


def test_without_an_output_there_are_the_prompts_logprobs_alone(llm: LLM) -> None:
    made = llm.generate([PROMPT, "xy"], greedy(prompt_logprobs=1, max_tokens=0))
    check_by_hand(made[0].prompt_logprobs, PROMPT, 1)
    assert [(each.outputs[0].text, each.outputs[0].finish_reason) for each in made] == [("", "length")] * 2


def test_masks_change_the_answer_as_by_hand(llm: LLM) -> None:
    """After b comes c, unless it is not allowed; then what there is most of."""
    assert llm.generate("ab", greedy())[0].outputs[0].text == "cdefgh"
    assert llm.generate("ab", greedy(bad_words=("e",)))[0].outputs[0].text[:3] == "cda"
    assert llm.generate("ab", greedy(bad_words=("de",)))[0].outputs[0].text[:3] == "cda"
    assert llm.generate("ab", greedy(bad_words=("xe", "be")))[0].outputs[0].text == "cdefgh"
    only = greedy(allowed_token_ids=[ord("x"), ord("y")], max_tokens=3)
    assert set(llm.generate("ab", only)[0].outputs[0].text) <= {"x", "y"}
    with pytest.raises(InvalidRequest, match="no token is left"):
        llm.generate("ab", greedy(bad_words=("x", "y"), allowed_token_ids=[ord("x"), ord("y")]))


def test_lengths_count_the_prompt_and_a_long_one_is_cut_where_that_is_asked(llm: LLM) -> None:
    made = llm.generate("ab", greedy(max_length=5, max_tokens=None))[0]
    assert made.outputs[0].text == "cde"
    made = llm.generate("zzzzab", greedy(truncate_prompt_tokens=2))[0]
    assert (made.prompt_token_ids, made.outputs[0].text) == (list(b"ab"), "cdefgh")
    long = llm.generate("x" * 4000 + "ab", greedy(truncate_prompt_tokens=-1))[0]
    assert len(long.prompt_token_ids) == llm.info["max_model_len"] - 6


def test_a_chat_goes_on_with_its_last_message(llm: LLM) -> None:
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "xyab"}]
    made = llm.chat(chat, greedy(), continue_final_message=True, add_generation_prompt=False)[0]
    assert made.outputs[0].text.startswith("c")
    assert llm.get_tokenizer().decode(made.prompt_token_ids).endswith("<|assistant|>xyab")
    with pytest.raises(InvalidRequest, match="exclude each other"):
        llm.chat(chat, continue_final_message=True)
    llm.chat(chat[:1], greedy(), chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(InvalidRequest, match="does not take"):
        llm.chat(chat[:1], chat_template_kwargs={"mood": 1})


def test_salts_keep_prefixes_apart_and_priorities_are_one_a_prompt(llm: LLM) -> None:
    prompt = "salted " * 9
    made = [llm.generate({"prompt": prompt, "cache_salt": salt}, greedy())[0] for salt in ("a", "b", "a")]
    assert [each.num_cached_tokens for each in made[:2]] == [0, 0]
    assert made[2].num_cached_tokens > 0
    assert len(llm.generate(["a", "b"], greedy(), priority=[0, 0])) == 2
    with pytest.raises(InvalidRequest, match=r"priority is -1, and .* --scheduling-policy fcfs"):
        llm.generate(["a", "b"], greedy(), priority=[0, -1])
    with pytest.raises(InvalidRequest, match="2 prompts and 1 priorities"):
        llm.generate(["a", "b"], greedy(), priority=[3])
    with pytest.raises(InvalidRequest, match="cache_salt"):
        llm.generate({"prompt": "a", "cache_salt": 5})


async def test_another_process_tells_the_same(folder: Path) -> None:
    async def last(asked: Any) -> RequestOutput:
        async for output in asked:
            made = output
        return made

    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "xyab"}]
    form = {"continue_final_message": True, "add_generation_prompt": False}
    async with AsyncLLM(str(folder), **FLAGS, scheduling_policy="priority") as llm:
        scored, masked, continued = await asyncio.gather(
            last(llm.generate(PROMPT, greedy(prompt_logprobs=2), priority=1)),
            last(llm.generate({"prompt": "ab", "cache_salt": "s"}, greedy(bad_words=("de",)))),
            last(llm.chat(chat, greedy(), **form)),
        )
    check_by_hand(scored.prompt_logprobs, PROMPT, 2)
    assert masked.outputs[0].text[:3] == "cda"
    assert continued.outputs[0].text.startswith("c")
