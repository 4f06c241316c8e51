"""The offline door, over the tiny model whose every answer is worked by hand."""

import asyncio
import itertools
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headway import LLM, AsyncLLM, RequestOutput, SamplingParams
from headway.errors import ContextLengthExceeded, HeadwayError, InvalidConfig, InvalidRequest, TensorMismatch
from headway.testing.tiny_model import MAX_POSITION, greedy_by_hand, tensors, write_safetensors, write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=60)
FLAGS = {"dtype": "float32", "threads": 1, "kv_cache_memory": 2**26}
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("llm") / "tiny")


@pytest.fixture(scope="module")
def shared_llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **FLAGS) as llm:
        yield llm


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    yield shared_llm
    stats = shared_llm.stats()
    assert stats["num_requests"] == stats["num_used_blocks"] == 0
    assert stats["num_free_blocks"] + stats["num_cached_blocks"] == stats["num_blocks"]


def by_hand(prompt: str) -> str:
    return bytes(token for token in greedy_by_hand(list(prompt.encode()), 60) if token < 256).decode()


def test_answers_come_in_the_order_of_the_prompts_whatever_their_form(llm: LLM) -> None:
    prompts = ["hello w", {"prompt": "x"}, {"prompt_token_ids": list(b"zebra")}, list(b"!")]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.outputs[0].text for output in outputs] == [by_hand(text) for text in ("hello w", "x", "zebra", "!")]
    assert [output.prompt for output in outputs] == ["hello w", "x", None, None]
    assert all(isinstance(output, RequestOutput) and output.finished for output in outputs)
    assert outputs[1].outputs[0].token_ids == greedy_by_hand(list(b"x"), 60)
    assert outputs[1].outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("batching", ["dynamic", "static"])
def test_a_batch_does_not_wait_for_prompts_that_cannot_come(folder: Path, batching: str) -> None:
    with LLM(str(folder), **FLAGS, batching=batching, max_queue_delay_ms=3.6e6, max_num_seqs=2) as llm:  # type: ignore[arg-type]
        outputs = llm.generate(["hello w", "x", "zebra"], GREEDY)
    assert [output.outputs[0].text for output in outputs] == [by_hand(text) for text in ("hello w", "x", "zebra")]


@pytest.mark.parametrize("prompt", ["ab", {"prompt": "ab"}, {"prompt_token_ids": [97, 98]}, [97, 98]])
def test_one_prompt_need_not_be_a_list(llm: LLM, prompt: object) -> None:
    (output,) = llm.generate(prompt, GREEDY)  # type: ignore[arg-type]
    assert output.outputs[0].text == ALPHABET[2:]


def test_a_conversation_goes_through_the_template_and_may_use_the_rest_of_the_context(llm: LLM) -> None:
    message = {"role": "user", "content": "hi"}
    one = llm.chat([message], SamplingParams(temperature=0.0))
    many = llm.chat([[message], [message, {"role": "assistant", "content": "a"}, message]], GREEDY)
    assert [output.outputs[0].text for output in one + many] == [ALPHABET] * 3


def test_generate_gives_sixteen_tokens_where_nobody_says_how_many(llm: LLM) -> None:
    (output,) = llm.generate("a", SamplingParams(temperature=0.0, ignore_eos=True))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (16, "length")


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=2), SamplingParams(temperature=0.0, max_tokens=3)]
    assert [output.outputs[0].text for output in llm.generate(["a", "k"], params)] == ["bc", "lmn"]
    with pytest.raises(InvalidRequest, match="2 prompts and 1"):
        llm.generate(["a", "k"], params[:1])


def test_stop_strings_choices_logprobs_and_a_time_limit_work_as_over_http(llm: LLM) -> None:
    stopped = SamplingParams(temperature=0.0, max_tokens=60, stop=("fg",), logprobs=2)
    (output,) = llm.generate("a", stopped)
    choice = output.outputs[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("bcde", "stop", "fg")
    assert choice.logprobs is not None
    assert [entry.chosen.token for entry in choice.logprobs] == ["b", "c", "d", "e", "f", "g"]
    (output,) = llm.generate("a", SamplingParams(n=3, seed=5, temperature=5.0, max_tokens=12))
    again = llm.generate("a", SamplingParams(n=3, seed=5, temperature=5.0, max_tokens=12))[0]
    texts = [choice.text for choice in output.outputs]
    assert texts == [choice.text for choice in again.outputs]
    assert len(set(texts)) == 3
    (output,) = llm.generate("a", SamplingParams(max_tokens=400, ignore_eos=True, timeout_s=0.001))
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("abort", "timeout")


@pytest.mark.parametrize(
    ("prompts", "params", "error", "words"),
    [
        (["ok", ""], GREEDY, InvalidRequest, "empty"),
        ([{"text": "a"}], GREEDY, InvalidRequest, "prompt_token_ids"),
        ([[1, 10**6]], GREEDY, InvalidRequest, "1000000"),
        (3, GREEDY, InvalidRequest, "a prompt is text.*this is 3"),
        ([None], GREEDY, InvalidRequest, "this is None"),
        ([["a"]], GREEDY, InvalidRequest, "a prompt is text"),
        ([{"prompt_token_ids": [1.5]}], GREEDY, InvalidRequest, "prompt_token_ids"),
        (["a"], SamplingParams(logit_bias={5000: 1.0}), InvalidRequest, "5000"),
        (["a" * 600], GREEDY, ContextLengthExceeded, "600.*512"),
        (["a"], SamplingParams(max_tokens=4000), ContextLengthExceeded, "4000.*512"),
    ],
)
def test_what_can_not_be_is_said_before_anything_runs(
    llm: LLM, prompts: object, params: SamplingParams, error: type[HeadwayError], words: str
) -> None:
    steps = llm.stats()["steps_total"]
    with pytest.raises(error, match=words):
        llm.generate(prompts, params)  # type: ignore[arg-type]
    assert llm.stats()["steps_total"] == steps


def test_threads_take_turns_and_each_gets_its_own_answers(llm: LLM) -> None:
    answers: dict[str, str] = {}

    def ask(prompt: str) -> None:
        answers[prompt] = llm.generate(prompt, GREEDY)[0].outputs[0].text

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in ("a", "m", "x")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {prompt: by_hand(prompt) for prompt in ("a", "m", "x")}


def test_an_interrupt_in_the_middle_leaves_the_engine_empty(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = llm._predictor
    step, calls = predictor.step, []

    def interrupted() -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(predictor, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], GREEDY)
    monkeypatch.undo()
    assert llm.generate("a", GREEDY)[0].outputs[0].text == ALPHABET[1:]


def test_an_unknown_flag_and_a_closed_model_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size"):
        LLM(str(folder), tensor_parallel_size=2)  # type: ignore[call-arg]
    llm = LLM(str(folder), **FLAGS, max_model_len=64)
    assert llm.info["max_model_len"] == 64 < MAX_POSITION
    llm.close()
    llm.close()
    with pytest.raises(InvalidConfig, match="closed"):
        llm.generate("a", GREEDY)


async def test_async_answers_grow_and_can_be_aborted(folder: Path) -> None:
    async with asyncio.timeout(120), AsyncLLM(str(folder), **FLAGS) as llm:
        texts = [output.outputs[0].text async for output in llm.generate("ab", GREEDY)]
        assert texts[-1] == ALPHABET[2:]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
        outputs = []
        endless = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
        async for output in llm.generate("a", endless, request_id="endless"):
            outputs.append(output)
            if len(outputs) == 2:
                with pytest.raises(InvalidRequest, match="endless"):
                    await anext(llm.generate("a", endless, request_id="endless"))
                await llm.abort("endless")
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"
        await llm.abort("nobody")
        chat = [output async for output in llm.chat([{"role": "user", "content": "hi"}], GREEDY)]
        assert chat[-1].outputs[0].text == ALPHABET


async def test_an_abort_while_the_model_still_loads_ends_the_request_and_nothing_else(folder: Path) -> None:
    async def texts(llm: AsyncLLM, request_id: str) -> list[str]:
        return [output.outputs[0].text async for output in llm.generate("ab", GREEDY, request_id=request_id)]

    async with asyncio.timeout(120), AsyncLLM(str(folder), **FLAGS) as llm:
        tasks = [asyncio.create_task(texts(llm, name)) for name in ("first", "second")]
        await asyncio.sleep(0)
        await llm.abort("first")
        answers = await asyncio.gather(*tasks)
        assert answers[0] == []
        assert answers[1][-1] == ALPHABET[2:]
        # The name is free again.
        assert (await texts(llm, "first"))[-1] == ALPHABET[2:]


def test_without_strictness_what_does_not_match_is_named_and_the_rest_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    arrays = {**tensors(), "extra.weight": np.ones((2, 2), np.float32)}
    write_safetensors(folder / "model.safetensors", arrays)
    lines = ["unexpected: extra.weight [2, 2]"]
    with pytest.raises(TensorMismatch, match=re.escape(lines[0])):
        LLM(str(folder), **FLAGS)
    caplog.set_level(logging.WARNING, logger="headway.engine.load_weights")  # whatever level another test has set up
    with LLM(str(folder), **FLAGS, strict=False) as llm:
        assert llm.info["unmatched_tensors"] == lines
        assert llm.generate("ab", GREEDY)[0].outputs[0].text == ALPHABET[2:]
    assert [record.getMessage() for record in caplog.records] == [f"loaded without strictness: {lines[0]}"]
