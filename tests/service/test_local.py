"""The whole house behind the door over scripted models: in threads to be exact, in real children to die."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway.config import ModelConfig, PoolConfig, ServerConfig
from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokensPrompt
from headway.core.sampling import SamplingParams
from headway.errors import (
    ContextLengthExceeded,
    CorruptCheckpoint,
    DownloadFailed,
    InternalError,
    InvalidConfig,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    QueueFull,
    ShuttingDown,
    WorkerDied,
    WorkerStalled,
)
from headway.service.local import LocalService
from headway.service.names import default_name
from headway.testing.fake_clock import FakeClock
from headway.testing.script import END_TOKEN_ID, Reply, Script, say
from headway.testing.scripted_service import ScriptedLoader, ScriptedService
from headway.worker.process import WorkerProcess
from headway.worker.stream import RequestStream

WAIT_S = 30.0
ENDLESS = say("abcd", is_endless=True, delay_s=0.001)


@pytest.fixture
async def make() -> AsyncIterator[Any]:
    """Starts services, and sees to it that no process is left of them."""
    made: list[ScriptedService] = []
    before = set(psutil.Process().children())

    async def make_service(script: Script | None = None, *, is_ready: bool = True, **options: Any) -> ScriptedService:
        service = ScriptedService(script, **options)
        made.append(service)
        await service.start()
        if is_ready:
            await service.until_ready()
        return service

    yield make_service
    for service in made:
        await service.aclose()
    left = set(psutil.Process().children()) - before
    assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]


def request(
    text: str | Prompt = "hi", *, model: str = "scripted", request_id: str = "r", **sampling: Any
) -> GenerateRequest:
    prompt = TextPrompt(text) if isinstance(text, str) else text
    return GenerateRequest(request_id, model, prompt, SamplingParams(**sampling))


async def until(is_there: Callable[[], object]) -> None:
    """Looks again and again: for what is seen from outside only."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if is_there():
                return
            await asyncio.sleep(0.002)


async def ask(service: LocalService, *args: Any, **fields: Any) -> str:
    async with await service.generate(request(*args, **fields)) as stream:
        return "".join([delta.text async for delta in stream])


async def rest(stream: RequestStream) -> list[Any]:
    return [delta async for delta in stream]


class TestAnswers:
    async def test_text_comes_back_with_its_usage(self, make: Any) -> None:
        service = await make(Script(reply=say("Grüße 👋", num_cached_tokens=1)))
        async with await service.generate(request("hey")) as stream:
            deltas = await rest(stream)
        assert "".join(delta.text for delta in deltas) == "Grüße 👋"
        assert all("�" not in delta.text for delta in deltas)
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", END_TOKEN_ID)
        usage = stream.usage
        assert (usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens) == (3, 13, 1)
        await service.until_idle()

    @pytest.mark.parametrize(
        ("prompt", "ids"),
        [
            (TextPrompt("hé"), [104, 0xC3, 0xA9]),
            (TokensPrompt([256, 104]), [256, 104]),
            (ChatPrompt([{"role": "user", "content": "hi"}]), [258, 104, 105, 256, 259]),
            # A control token in a caller's string is text: seven bytes, no end token.
            (ChatPrompt([{"role": "user", "content": "<|end|>"}]), [258, *b"<|end|>", 256, 259]),
            # In a raw prompt it is one, unless the caller says otherwise.
            (TextPrompt("<|end|>"), [256]),
            (TextPrompt("<|end|>", parse_special=False), list(b"<|end|>")),
        ],
    )
    async def test_a_prompt_in_each_form(self, make: Any, prompt: Prompt, ids: list[int]) -> None:
        service = await make()
        assert await service.tokenize("scripted", prompt) == ids
        async with await service.generate(request(prompt)) as stream:
            assert list(stream.prompt_token_ids) == ids
        await service.until_idle()

    async def test_a_long_prompt_is_tokenised_in_a_thread_to_the_same_ids(self, make: Any) -> None:
        service = await make(Script(max_model_len=200_000))
        text = "word " * 20_000
        assert await service.tokenize("scripted", TextPrompt(text)) == list(text.encode())
        assert await ask(service, text) == "Hello!"

    async def test_many_requests_at_once_get_their_own_answers(self, make: Any) -> None:
        replies = {f"<{number}>": say(f"answer {number}") for number in range(60)}
        service = await make(Script(replies=replies, max_num_seqs=8), is_in_process=False)
        answers = await asyncio.gather(*(ask(service, f"<{number}>", request_id="same") for number in range(60)))
        assert answers == [f"answer {number}" for number in range(60)]
        await service.until_idle()

    async def test_choices_have_their_own_texts_and_ends(self, make: Any) -> None:
        reply = Reply(tokens=[b"a"] * 3, by_choice={1: [b"b", b"x", b"c"], 2: [b"c"] * 9})
        service = await make(Script(reply=reply))
        async with await service.generate(request(n=3, stop=("x",), max_tokens=5)) as stream:
            deltas = await rest(stream)
        texts = ["".join(d.text for d in deltas if d.choice == choice) for choice in range(3)]
        assert texts == ["aaa", "b", "ccccc"]
        assert sorted((d.choice, d.finish_reason) for d in deltas if d.finish_reason) == [
            (0, "stop"),
            (1, "stop"),
            (2, "length"),
        ]
        assert stream.usage.num_output_tokens == 4 + 2 + 5
        await service.until_idle()
        stats = service.stats()["models"]["scripted"]
        computed = stats["client_output_tokens_total"] + stats["client_overshoot_tokens_total"]
        assert computed == service.predictor().num_computed

    async def test_a_time_out_ends_the_answer_with_what_there_is(self, make: Any) -> None:
        clock = FakeClock()
        service = await make(Script(reply=say("abc", gates={2: "never"})), clock=clock)
        async with await service.generate(request(timeout_s=2.5)) as stream:
            assert [(await anext(stream)).text for _ in range(2)] == ["a", "b"]
            clock.advance(2.5)
            deltas = await rest(stream)
        assert [(delta.finish_reason, delta.stop_reason) for delta in deltas] == [("abort", "timeout")]
        await service.until_idle()
        assert [abort.reason for abort in service.predictor().aborts] == ["timeout"]

    @pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
    async def test_a_template_argument_that_has_a_field_of_its_own_is_refused(self, make: Any, name: str) -> None:
        service = await make()
        prompt = ChatPrompt([{"role": "user", "content": "x"}], template_kwargs={name: []})
        with pytest.raises(InvalidRequest, match=name):
            await service.tokenize("scripted", prompt)

    async def test_ids_and_texts_both_ways(self, make: Any) -> None:
        service = await make(Script(words=[b"\xf0\x9f"], generation_defaults={"top_k": 5}))
        assert await service.detokenize("scripted", [104, 256, 261]) == "h<|end|>�"
        assert await service.token_texts("scripted", [104, 261]) == ["h", "�"]
        assert await service.detokenize("scripted", []) == ""
        assert await service.generation_defaults("scripted") == {"top_k": 5}
        for bad in ([-1], [262], [2**40]):
            with pytest.raises(InvalidRequest, match="261"):
                await service.detokenize("scripted", bad)


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "sampling", "error", "words"),
        [
            (TextPrompt(""), {}, InvalidRequest, "empty"),
            (TokensPrompt([]), {}, InvalidRequest, "empty"),
            (TokensPrompt([104, 261]), {}, InvalidRequest, "261"),
            (TokensPrompt([-1]), {}, InvalidRequest, "-1"),
            (TextPrompt("hi"), {"logit_bias": {261: 1.0}}, InvalidRequest, "logit_bias"),
            (TextPrompt("hi"), {"stop_token_ids": [999]}, InvalidRequest, "stop_token_ids"),
            (TextPrompt("hi"), {"max_tokens": 9999}, ContextLengthExceeded, "9999"),
            (TextPrompt("x" * 4096), {}, ContextLengthExceeded, "4096"),
            (TextPrompt("refuse me"), {}, QueueFull, "full up"),
        ],
    )
    async def test_what_is_refused_leaves_nothing_behind(
        self, make: Any, prompt: Prompt, sampling: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        service = await make(Script(replies={"refuse": Reply(refusal=QueueFull("full up").to_wire())}))
        with pytest.raises(error, match=words):
            await service.generate(request(prompt, **sampling))
        await service.until_idle()
        assert await ask(service) == "Hello!"

    async def test_an_unknown_model_is_not_found_by_every_door(self, make: Any) -> None:
        service = await make()
        for call in (
            service.generate(request(model="other")),
            service.tokenize("other", TextPrompt("x")),
            service.detokenize("other", [1]),
            service.token_texts("other", [1]),
            service.generation_defaults("other"),
        ):
            with pytest.raises(ModelNotFound, match=r"'other'.*scripted"):
                await call

    async def test_an_error_event_fails_that_request_alone(self, make: Any) -> None:
        service = await make(Script(replies={"bad": say("abc", error_at=2)}))
        bad, good = await service.generate(request("bad")), await service.generate(request("good"))
        with pytest.raises(InternalError, match="fail at 2"):
            await rest(bad)
        assert "".join(delta.text for delta in await rest(good)) == "Hello!"
        await service.until_idle()


class TestQueue:
    async def test_what_would_wait_beyond_the_limit_is_refused_at_once(self, make: Any) -> None:
        script = Script(reply=say("ab", gates={0: "go"}), max_num_seqs=1)
        service = await make(script, pool=PoolConfig(max_queued_requests=2))
        results = await asyncio.gather(*(service.generate(request()) for _ in range(10)), return_exceptions=True)
        streams = [result for result in results if isinstance(result, RequestStream)]
        refused = [result for result in results if isinstance(result, QueueFull)]
        assert (len(streams), len(refused)) == (3, 7)
        assert all("3 would wait" in error.message and "at most 2" in error.message for error in refused)
        assert all(error.retry_after_s for error in refused)
        service.open_gate("go")
        texts = ["".join(delta.text for delta in await rest(stream)) for stream in streams]
        assert texts == ["ab"] * 3
        await service.until_idle()
        assert await ask(service) == "ab"

    async def test_each_choice_counts_and_who_comes_alone_is_taken(self, make: Any) -> None:
        service = await make(
            Script(reply=say("a", gates={0: "go"}), max_num_seqs=1), pool=PoolConfig(max_queued_requests=2)
        )
        stream = await service.generate(request(n=2))
        with pytest.raises(QueueFull, match="3 would wait"):
            await service.generate(request(n=2))
        other = await service.generate(request())
        service.open_gate("go")
        await asyncio.gather(rest(stream), rest(other))
        await rest(await service.generate(request(n=5)))


class TestAborts:
    @pytest.mark.parametrize("stage", ["queued", "gated", "running", "held"])
    async def test_a_closed_stream_frees_its_sequences_at_each_stage(self, make: Any, stage: str) -> None:
        script = Script(
            reply=ENDLESS, replies={"gated": say("x", gates={0: "g"})}, max_num_seqs=2 if stage == "queued" else 8
        )
        service = await make(script, server=ServerConfig(max_unsent_bytes=64))
        others = [await service.generate(request("gated")) for _ in range(2 if stage == "queued" else 0)]
        stream = await service.generate(request("gated" if stage == "gated" else "run", n=2))
        if stage == "running":
            await anext(stream)
        if stage == "held":
            await until(lambda: service.predictor().holds)
        await stream.aclose()
        for other in others:
            await other.aclose()
        await service.until_idle()
        reasons = [abort.reason for abort in service.predictor().aborts]
        assert reasons == ["disconnect"] * (1 + len(others))
        assert await ask(service, max_tokens=2) == "ab"

    async def test_a_slow_reader_is_held_and_loses_nothing(self, make: Any) -> None:
        service = await make(Script(reply=say("abcd" * 50)), server=ServerConfig(max_unsent_bytes=64))
        async with await service.generate(request()) as stream:
            await until(lambda: service.predictor().holds)
            text = "".join([delta.text async for delta in stream])
        assert text == "abcd" * 50
        holds = [hold.is_held for hold in service.predictor().holds]
        assert holds[:2] == [True, False]
        await service.until_idle()

    async def test_a_caller_that_goes_while_the_model_loads_leaves_no_trace(self, make: Any, tmp_path: Path) -> None:
        service = await make(Script(load_waits_for=str(tmp_path / "go")), is_ready=False)
        task = asyncio.create_task(service.generate(request()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (tmp_path / "go").touch()
        await service.until_ready()
        await service.until_idle()
        assert await ask(service) == "Hello!"


class TestLoading:
    async def test_requests_wait_for_a_slow_load_and_its_phases_are_told(self, make: Any, tmp_path: Path) -> None:
        script = Script(load_waits_for=str(tmp_path / "go"))
        service = await make(script, is_ready=False, is_in_process=False, pool=PoolConfig(max_queued_requests=2))
        waiting = [asyncio.create_task(ask(service)) for _ in range(2)]
        await until(lambda: "warm" in dict(service.models()[0].phases))
        assert service.models()[0].state == "loading"
        is_ready, why = service.is_ready()
        assert not is_ready
        assert "loading: warm 67%" in why
        with pytest.raises(QueueFull, match="2 requests wait"):
            await service.generate(request())
        # The text is there before the weights are.
        assert await service.tokenize("scripted", TextPrompt("a")) == [97]
        (tmp_path / "go").touch()
        assert await asyncio.gather(*waiting) == ["Hello!"] * 2
        card = service.models()[0]
        assert (card.state, card.max_model_len, card.info["vocab_size"]) == ("ready", 4096, 261)
        assert [phase for phase, _ in card.phases] == ["fetch", "start", "read", "build", "warm"]

    async def test_a_request_waits_for_a_load_no_longer_than_its_timeout(self, make: Any, tmp_path: Path) -> None:
        clock = FakeClock()
        service = await make(Script(load_waits_for=str(tmp_path / "go")), is_ready=False, clock=clock)
        waiting = asyncio.create_task(ask(service, timeout_s=5.0))
        await asyncio.sleep(0)
        clock.advance(5.0)
        with pytest.raises(ModelNotReady, match="timeout_s"):
            await waiting
        assert service.stats()["pool"]["pool"]["waiting_requests"] == 0.0
        (tmp_path / "go").touch()
        await service.until_ready()
        assert await ask(service, timeout_s=5.0) == "Hello!"

    @pytest.mark.parametrize("is_in_process", [True, False], ids=["thread", "process"])
    async def test_a_load_that_fails_keeps_its_reason_and_backs_off(self, make: Any, is_in_process: bool) -> None:
        script = Script(load_error=CorruptCheckpoint("the file is cut at byte 7").to_wire())
        pool = PoolConfig(reload_delays_s=(3600.0,))
        service = await make(script, is_ready=False, pool=pool, is_in_process=is_in_process)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(CorruptCheckpoint, match="cut at byte 7"):
                await service.generate(request())
        card = service.models()[0]
        assert (card.state, str(card.error)) == ("failed", "the file is cut at byte 7")
        assert service.is_ready() == (False, "model scripted is failed: the file is cut at byte 7")
        with pytest.raises(ModelNotReady, match="cut at byte 7") as caught:
            await service.generate(request())
        assert 3500 < (caught.value.retry_after_s or 0) <= 3600

    async def test_text_that_cannot_be_opened_fails_the_load(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        async def fail(self: ScriptedLoader, model: ModelConfig, path: Path) -> None:
            raise CorruptCheckpoint("no tokenizer in it")

        monkeypatch.setattr(ScriptedLoader, "open", fail)
        service = await make(is_ready=False, pool=PoolConfig(reload_delays_s=(3600.0,)))
        with pytest.raises(CorruptCheckpoint, match="no tokenizer"):
            await service.generate(request())
        with pytest.raises(CorruptCheckpoint, match="no tokenizer"):
            await service.tokenize("scripted", TextPrompt("a"))

    async def test_a_worker_that_cannot_be_started_is_a_failure_with_a_reason(
        self, make: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fail(self: ScriptedLoader, *args: Any) -> None:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(ScriptedLoader, "connect", fail)
        service = await make(is_ready=False, pool=PoolConfig(reload_delays_s=(3600.0,)))
        with pytest.raises(InternalError, match="Cannot allocate memory"):
            await service.generate(request())

    async def test_closing_during_a_load_leaves_no_process(self, make: Any, tmp_path: Path) -> None:
        service = await make(Script(load_waits_for=str(tmp_path / "never")), is_ready=False, is_in_process=False)
        waiting = asyncio.create_task(ask(service))
        await until(lambda: "read" in dict(service.models()[0].phases))
        await service.aclose()
        with pytest.raises(ShuttingDown):
            await waiting

    async def test_closing_before_anything_started_works(self) -> None:
        service = ScriptedService()
        await service.aclose()
        await service.aclose()


class TestDeath:
    async def test_kill_9_fails_open_requests_within_a_second_and_the_next_one_works(self, make: Any) -> None:
        service = await make(Script(replies={"run": ENDLESS}), is_in_process=False)
        streams = [await service.generate(request("run")) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        worker = service.worker()
        assert isinstance(worker, WorkerProcess)
        os.kill(worker.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        results = await asyncio.gather(*map(rest, streams), return_exceptions=True)
        assert time.monotonic() - killed_at < 1.0
        assert [type(result) for result in results] == [WorkerDied] * 3
        assert "SIGKILL" in str(results[0])
        assert not service.is_ready()[0]
        assert await ask(service) == "Hello!"
        assert service.is_ready()[0]
        await service.until_idle()
        assert service.stats()["pool"]["pool"]["worker_starts_total"] == 2.0
        # Three unfinished answers of at least a token each, and seven tokens: counters outlive a worker.
        assert service.stats()["models"]["scripted"]["client_output_tokens_total"] >= 3 + 7

    async def test_a_restart_does_not_ask_again_where_the_model_is(
        self, make: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service = await make()

        async def fail(self: ScriptedLoader, model: ModelConfig) -> Path:
            raise DownloadFailed("the hub is out of reach")

        monkeypatch.setattr(ScriptedLoader, "resolve", fail)
        service.worker().kill("was ended by SIGKILL")
        assert await ask(service) == "Hello!"

    async def test_an_exception_that_escapes_the_predictor_is_a_death_with_its_words(self, make: Any) -> None:
        service = await make(Script(replies={"bad": say("ab", raise_at=1)}), is_in_process=False)
        stream = await service.generate(request("bad"))
        with pytest.raises(WorkerDied, match="scripted to raise at 1"):
            await rest(stream)
        assert await ask(service) == "Hello!"

    async def test_a_model_that_dies_of_every_request_backs_off(self, make: Any) -> None:
        pool = PoolConfig(restart_delays_s=(0.0, 3600.0))
        service = await make(Script(reply=say("ab", exit_at=1)), is_in_process=False, pool=pool)
        for _ in range(2):
            with pytest.raises(WorkerDied):
                await ask(service)
        with pytest.raises(ModelNotReady, match="exit code 9"):
            await ask(service)

    async def test_a_stalled_child_is_killed_and_told(self, make: Any) -> None:
        clock = FakeClock()
        script = Script(replies={"hang": say("ab", hang_at=1)})
        service = await make(script, is_in_process=False, pool=PoolConfig(stall_timeout_s=60.0), clock=clock)
        stream = await service.generate(request("hang"))
        await anext(stream)
        clock.advance(60.0)
        with pytest.raises(WorkerStalled, match="60 s"):
            await rest(stream)
        assert await ask(service) == "Hello!"

    async def test_a_long_load_and_a_long_step_are_no_stall(self, make: Any, tmp_path: Path) -> None:
        clock = FakeClock()
        script = Script(load_waits_for=str(tmp_path / "go"), replies={"slow": say("ab", gates={1: "step"})})
        pool = PoolConfig(stall_timeout_s=60.0, load_timeout_s=600.0)
        service = await make(script, is_ready=False, is_in_process=False, pool=pool, clock=clock)
        waiting = asyncio.create_task(ask(service))
        await until(lambda: "read" in dict(service.models()[0].phases))
        clock.advance(599.0)
        (tmp_path / "go").touch()
        assert await waiting == "Hello!"
        stream = await service.generate(request("slow"))
        await anext(stream)
        for _ in range(3):
            clock.advance(19.9)
        service.open_gate("step")
        assert "".join(delta.text for delta in await rest(stream)) == "b"
        assert service.stats()["pool"]["pool"]["worker_failures_total"] == 0

    async def test_a_step_that_is_known_to_take_long_is_waited_for_and_one_that_hangs_is_not(self, make: Any) -> None:
        clock = FakeClock()
        slow, hang = say("ab", gates={1: "step"}), say("ab", hang_at=1)
        script = Script(step_token_s=3.0, replies={"slow": slow, "hang": hang})
        service = await make(script, is_in_process=False, pool=PoolConfig(stall_timeout_s=60.0), clock=clock)
        stream = await service.generate(request("slow"))
        await anext(stream)
        clock.advance(100.0)
        service.open_gate("step")
        assert "".join(delta.text for delta in await rest(stream)) == "b"
        assert service.stats()["pool"]["pool"]["worker_failures_total"] == 0
        stream = await service.generate(request("hang"))
        await anext(stream)
        clock.advance(1000.0)
        with pytest.raises(WorkerStalled, match=r"made no progress for [0-9]+ s"):
            await rest(stream)
        assert await ask(service) == "Hello!"

    async def test_a_time_out_of_the_load_kills_the_child(self, make: Any, tmp_path: Path) -> None:
        clock = FakeClock()
        pool = PoolConfig(load_timeout_s=20.0, restart_delays_s=(5.0,))
        script = Script(load_waits_for=str(tmp_path / "go"))
        service = await make(script, is_ready=False, is_in_process=False, pool=pool, clock=clock)
        waiting = asyncio.create_task(ask(service))
        async with asyncio.timeout(WAIT_S):
            await until(lambda: "read" in dict(service.models()[0].phases))
            clock.advance(20.0)
            with pytest.raises(ModelNotReady, match="20 s"):
                await waiting
            (tmp_path / "go").touch()
            await until(lambda: service.models()[0].state == "failed")
        clock.advance(5.0)
        assert await ask(service) == "Hello!"


class TestDrain:
    async def test_what_runs_may_end_and_nothing_new_is_taken(self, make: Any) -> None:
        service = await make(Script(reply=say("abc", gates={1: "go"})))
        stream = await service.generate(request())
        draining = asyncio.create_task(service.drain(3600.0))
        await asyncio.sleep(0)
        assert service.is_ready() == (False, "shutting down")
        with pytest.raises(ShuttingDown):
            await service.generate(request())
        assert not draining.done()
        service.open_gate("go")
        assert "".join(delta.text for delta in await rest(stream)) == "abc"
        await draining

    async def test_what_does_not_end_in_time_ends_with_an_error(self, make: Any) -> None:
        clock = FakeClock()
        service = await make(Script(reply=say("abc", gates={1: "never"})), clock=clock)
        stream = await service.generate(request())
        assert (await anext(stream)).text == "a"
        draining = asyncio.create_task(service.drain(10.0))
        await asyncio.sleep(0)
        clock.advance(10.0)
        await draining
        with pytest.raises(ShuttingDown, match="before the answer was whole"):
            await rest(stream)
        await service.until_idle()
        assert [abort.reason for abort in service.predictor().aborts] == ["shutdown"]

    async def test_a_drain_of_an_idle_service_returns_at_once(self, make: Any) -> None:
        service = await make()
        await service.drain(3600.0)


async def test_two_models_take_turns_in_the_one_place(make: Any) -> None:
    service = await make(models={"a": Script(reply=say("I am a")), "b": Script(reply=say("I am b"))})
    assert [card.state for card in service.models()] == ["ready", "cold"]
    answers = await asyncio.gather(*(ask(service, model=model, request_id=f"r{i}") for i, model in enumerate("abab")))
    assert answers == ["I am a", "I am b"] * 2
    await service.until_idle()


async def test_every_alias_answers_and_has_a_card() -> None:
    loader = ScriptedLoader({"src": Script()})
    config = ModelConfig(source="src", served_names=("first", "second"))
    service = LocalService([config], PoolConfig(), ServerConfig(), None, loader=loader)  # type: ignore[arg-type]
    try:
        await service.start()
        assert [card.id for card in service.models()] == ["first", "second"]
        stream = await service.generate(request(model="second"))
        assert stream.model == "second"
        assert "".join([delta.text async for delta in stream]) == "Hello!"
    finally:
        await service.aclose()


@pytest.mark.parametrize(
    "models",
    [
        [ModelConfig(source="x"), ModelConfig(source="x")],
        [ModelConfig(source="x", served_names=("a", "b")), ModelConfig(source="y", served_names=("b",))],
        [ModelConfig(source="x", served_names=("a", "a"))],
    ],
)
async def test_models_without_a_name_of_their_own_are_refused(models: list[ModelConfig]) -> None:
    with pytest.raises(InvalidConfig):
        LocalService(models, PoolConfig(), ServerConfig(), None, loader=ScriptedLoader({}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("demo", "demo"),
        ("org/name", "org/name"),
        ("/models/tiny-Q4.gguf", "tiny-Q4"),
        ("tiny.gguf", "tiny"),
        ("/models/llama/", "llama"),
        ("../llama", "llama"),
        ("./llama", "llama"),
        ("a/b/c", "c"),
    ],
)
def test_a_name_is_made_from_the_source(source: str, name: str) -> None:
    assert default_name(source) == name


async def test_a_model_whose_files_could_not_be_opened_is_opened_again_for_who_asks_next(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await make(models={"a": Script(), "b": Script(reply=say("mended"))})
    open_files = service.loader.open

    async def fail(*_: Any) -> Any:
        raise CorruptCheckpoint("not there yet")

    monkeypatch.setattr(service.loader, "open", fail)
    for _ in range(2):
        with pytest.raises(CorruptCheckpoint, match="not there yet"):
            await service.generation_defaults("b")
    monkeypatch.setattr(service.loader, "open", open_files)
    assert await service.generation_defaults("b") == {}
    async with await service.generate(request(model="b")) as stream:
        assert "".join([delta.text async for delta in stream]) == "mended"
    await service.until_idle()
