"""The parent's side of a worker, with the worker played by hand and the clock in the test's hand."""

import asyncio
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.worker.conftest import ClientBench, join, read_all, text_event

import headway_wire as wire
from headway.errors import (
    CallerError,
    ContextLengthExceeded,
    HeadwayError,
    InternalError,
    InvalidRequest,
    NonFiniteLogits,
    PayloadTooLarge,
    QueueFull,
    ShuttingDown,
    WorkerDied,
    WorkerStalled,
)
from headway.testing.script import END_TOKEN_ID
from headway.text.tokenizer import Tokenizer
from headway.worker.stream import RequestStream


async def start(bench: ClientBench, **sampling: Any) -> "asyncio.Task[Any]":
    """A submit that the worker has not answered yet."""
    task = asyncio.create_task(bench.submit(**sampling))
    await asyncio.sleep(0)
    return task


class TestSubmit:
    async def test_it_returns_once_accepted_and_the_text_follows(self, bench: ClientBench) -> None:
        task = await start(bench)
        assert not task.done()
        bench.say(wire.Accepted(request_id="r"))
        stream = await task
        bench.tell(text_event("yes", num_cached_tokens=1))
        bench.tell(wire.TokenEvent("r", 0, [END_TOKEN_ID], None, "stop", END_TOKEN_ID))
        deltas = await read_all(stream)
        assert join(deltas) == "yes"
        assert (stream.usage.num_prompt_tokens, stream.usage.num_output_tokens, stream.usage.num_cached_tokens) == (
            2,
            4,
            1,
        )
        assert bench.settled == [True]
        assert await read_all(stream) == []

    async def test_max_tokens_is_the_rest_of_the_context_where_none_is_given(self, bench: ClientBench) -> None:
        await bench.open()
        assert bench.channel.of(wire.Submit)[0].sampling.max_tokens == 64 - 2

    async def test_what_only_the_text_needs_is_not_sent(self, bench: ClientBench) -> None:
        await bench.open(stop=("x",), timeout_s=3.0, n=2, seed=7)
        assert bench.channel.of(wire.Submit)[0].sampling == wire.Sampling(n=2, seed=7, max_tokens=62)

    @pytest.mark.parametrize(
        ("prompt", "max_tokens", "numbers", "param"),
        [("x" * 64, None, ("64", "64"), "prompt"), ("x" * 60, 5, ("60", "5", "65", "64", "4"), "max_tokens")],
    )
    async def test_a_context_overflow_names_both_numbers_and_sends_nothing(
        self, bench: ClientBench, prompt: str, max_tokens: int | None, numbers: tuple[str, ...], param: str
    ) -> None:
        request = bench.request(prompt=prompt, max_tokens=max_tokens)
        with pytest.raises(ContextLengthExceeded) as caught:
            await bench.client.submit(request, bench.settled.append)
        assert all(number in caught.value.message for number in numbers)
        assert caught.value.param == param
        assert bench.channel.sent == []
        assert bench.settled == [False]

    async def test_a_prompt_and_max_tokens_that_just_fit_are_sent(self, bench: ClientBench) -> None:
        await bench.open(max_tokens=62)
        assert bench.channel.of(wire.Submit)[0].sampling.max_tokens == 62

    async def test_a_refusal_is_raised_with_its_class(self, bench: ClientBench) -> None:
        task = await start(bench)
        bench.say(wire.Refused(request_id="r", error=QueueFull("no room", param="n").to_wire()))
        with pytest.raises(QueueFull, match="no room"):
            await task
        assert bench.channel.of(wire.Abort) == []
        assert bench.client.num_open == 0

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            (wire.FrameTooLarge("too long"), PayloadTooLarge),
            (OverflowError("too big"), PayloadTooLarge),
            (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), InvalidRequest),
            (TypeError("Encoding objects of type complex is unsupported"), InvalidRequest),
        ],
    )
    async def test_what_cannot_be_sent_is_refused_and_leaves_nothing_open(
        self, bench: ClientBench, monkeypatch: pytest.MonkeyPatch, fault: Exception, kind: type[HeadwayError]
    ) -> None:
        def fail(message: wire.Down) -> None:
            raise fault

        monkeypatch.setattr(bench.channel, "send", fail)
        with pytest.raises(kind, match=re.escape(str(fault))):
            await bench.submit(timeout_s=5.0)
        assert bench.settled == [False]
        assert (bench.client.num_open, bench.clock.num_timers) == (0, 0)

    async def test_two_requests_of_one_id_have_their_own_answers(self, bench: ClientBench) -> None:
        first = await bench.open("r")
        task = asyncio.create_task(bench.client.submit(bench.request("r"), bench.settled.append))
        await asyncio.sleep(0)
        wire_id = bench.channel.of(wire.Submit)[1].request_id
        assert wire_id != "r"
        bench.say(wire.Accepted(request_id=wire_id))
        second = await task
        bench.tell(text_event("one", finish_reason="length"))
        bench.tell(text_event("two", request_id=wire_id, finish_reason="length"))
        assert join(await read_all(first)) == "one"
        assert join(await read_all(second)) == "two"


class TestEnd:
    async def test_a_stop_string_sends_one_abort_that_says_stop(self, bench: ClientBench) -> None:
        stream = await bench.open(stop=("lo",), n=2)
        bench.tell(text_event("hello!", choice=1))
        assert bench.channel.of(wire.Abort) == [wire.Abort(request_id="r", choice=1, finish_reason="stop")]
        bench.tell(text_event("??", choice=1), text_event("by", choice=0))
        bench.tell(text_event("", choice=1, finish_reason="stop"), text_event("e", finish_reason="length"))
        deltas = await read_all(stream)
        assert (join(deltas, 0), join(deltas, 1)) == ("bye", "hel")
        assert [(d.choice, d.finish_reason) for d in deltas if d.finish_reason] == [(1, "stop"), (0, "length")]
        assert stream.usage.num_output_tokens == 3 + 5
        stats = bench.client.stats()
        assert (stats["client_output_tokens_total"], stats["client_overshoot_tokens_total"]) == (8.0, 3.0)
        assert stats["client_aborts_total"] == 0.0

    async def test_the_model_is_in_use_until_the_worker_owes_nothing_more(self, bench: ClientBench) -> None:
        stream = await bench.open(stop=("a",))
        bench.tell(text_event("a"))
        assert join(await read_all(stream)) == ""
        assert bench.settled == []
        bench.tell(text_event("", finish_reason="stop"))
        assert bench.settled == [True]

    async def test_a_time_out_ends_with_the_partial_text(self, bench: ClientBench) -> None:
        stream = await bench.open(timeout_s=5.0, n=2, stop=("xx",))
        bench.tell(text_event("abx"))
        bench.clock.advance(4.9)
        assert bench.channel.of(wire.Abort) == []
        bench.clock.advance(0.1)
        deltas = await read_all(stream)
        assert join(deltas) == "abx"
        assert [(d.choice, d.finish_reason, d.stop_reason) for d in deltas if d.finish_reason] == [
            (0, "abort", "timeout"),
            (1, "abort", "timeout"),
        ]
        assert bench.channel.of(wire.Abort) == [wire.Abort(request_id="r", reason="timeout")]
        await stream.aclose()
        assert len(bench.channel.of(wire.Abort)) == 1

    async def test_a_time_out_before_the_worker_answered_gives_an_ended_stream(self, bench: ClientBench) -> None:
        task = await start(bench, timeout_s=5.0)
        bench.clock.advance(5.0)
        stream = await task
        assert [delta.finish_reason for delta in await read_all(stream)] == ["abort"]
        bench.say(wire.Accepted(request_id="r"))
        bench.tell(text_event("", finish_reason="abort"))
        assert bench.settled == [True]

    async def test_no_timer_is_left_behind(self, bench: ClientBench) -> None:
        await bench.open(timeout_s=5.0)
        bench.tell(text_event("a", finish_reason="length"))
        assert bench.clock.num_timers == 0

    async def test_an_error_event_of_one_choice_ends_the_request_and_aborts_the_rest(self, bench: ClientBench) -> None:
        stream = await bench.open(n=2)
        error = NonFiniteLogits("NaN").to_wire()
        bench.tell(text_event("a"), text_event("", choice=1, finish_reason="error", error=error))
        assert (await anext(stream)).text == "a"
        with pytest.raises(NonFiniteLogits, match="NaN"):
            await anext(stream)
        assert await read_all(stream) == []
        assert bench.channel.of(wire.Abort) == [wire.Abort(request_id="r", reason="error")]
        bench.tell(text_event("", finish_reason="abort"))
        assert bench.settled == [True]

    async def test_a_fault_in_one_requests_text_fails_that_request_alone(
        self, bench: ClientBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = await bench.open("r"), await bench.open("s")

        apply = RequestStream.apply

        def raise_fault(stream: RequestStream, event: wire.TokenEvent) -> None:
            if stream is first:
                raise ZeroDivisionError("injected")
            apply(stream, event)

        monkeypatch.setattr(RequestStream, "apply", raise_fault)
        bench.tell(text_event("a"), text_event("b", request_id="s", finish_reason="length"))
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await read_all(first)
        assert join(await read_all(second)) == "b"
        assert bench.channel.of(wire.Abort) == [wire.Abort(request_id="r", reason="error")]
        assert bench.client.stats()["client_internal_errors_total"] == 1.0


class TestClose:
    async def test_closing_early_sends_exactly_one_abort(self, bench: ClientBench) -> None:
        stream = await bench.open(n=3)
        bench.tell(text_event("a"))
        await stream.aclose()
        await stream.aclose()
        assert bench.channel.of(wire.Abort) == [wire.Abort(request_id="r", reason="disconnect")]
        assert await read_all(stream) == []
        bench.tell(*[text_event("zz", choice=i, finish_reason="abort") for i in range(3)])
        assert bench.settled == [True]
        assert bench.client.stats()["client_overshoot_tokens_total"] == 6.0

    async def test_closing_after_the_end_sends_none(self, bench: ClientBench) -> None:
        async with await bench.open() as stream:
            bench.tell(text_event("a", finish_reason="length"))
        async with await bench.open("s", stop=("a",)) as stream:
            bench.tell(text_event("a", request_id="s"))
            assert join(await read_all(stream)) == ""
        assert [abort.finish_reason for abort in bench.channel.of(wire.Abort)] == ["stop"]

    async def test_closing_after_an_error_sends_none(self, bench: ClientBench) -> None:
        stream = await bench.open()
        bench.tell(text_event("", finish_reason="error", error=InternalError("x").to_wire()))
        with pytest.raises(InternalError):
            await read_all(stream)
        await stream.aclose()
        assert bench.channel.of(wire.Abort) == []

    async def test_a_caller_that_goes_before_the_answer_aborts_what_it_asked_for(self, bench: ClientBench) -> None:
        task = await start(bench)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bench.channel.of(wire.Abort) == [wire.Abort(request_id="r", reason="disconnect")]
        bench.say(wire.Accepted(request_id="r"))
        bench.tell(text_event("", finish_reason="abort"))
        assert bench.settled == [True]

    async def test_a_reader_that_waits_is_woken_by_the_close(self, bench: ClientBench) -> None:
        stream = await bench.open()
        reader = asyncio.create_task(read_all(stream))
        await asyncio.sleep(0)
        await stream.aclose()
        assert await reader == []

    async def test_closing_the_client_ends_open_streams_after_their_text(self, bench: ClientBench) -> None:
        stream = await bench.open()
        bench.tell(text_event("par"))
        await bench.client.close()
        assert (await anext(stream)).text == "par"
        with pytest.raises(ShuttingDown, match="before the answer was whole"):
            await anext(stream)
        assert [type(message) for message in bench.channel.sent[-2:]] == [wire.Abort, wire.Shutdown]


class TestSlowReader:
    """The limit is 100 bytes: a delta of 40 one-byte tokens weighs 40 + 40 * 8 = 360."""

    async def test_too_much_unread_holds_the_request_and_reading_frees_it(self, bench: ClientBench) -> None:
        stream = await bench.open()
        bench.tell(text_event("abcdefgh"))  # 8 + 64 = 72
        assert bench.channel.of(wire.Hold) == []
        bench.tell(text_event("ijkl"))  # + 36 = 108
        assert bench.channel.of(wire.Hold) == [wire.Hold(request_id="r", is_held=True)]
        bench.tell(text_event("m"))  # already under way when it was held: + 9 = 117
        assert len(bench.channel.of(wire.Hold)) == 1
        await anext(stream)  # 45, below half
        assert bench.channel.of(wire.Hold)[1:] == [wire.Hold(request_id="r", is_held=False)]

    async def test_a_reader_that_stands_still_gets_an_error_and_its_request_is_aborted(
        self, bench: ClientBench
    ) -> None:
        stream = await bench.open()
        for _ in range(3):
            bench.tell(text_event("abcdefgh"))
        bench.clock.advance(29.0)
        await anext(stream)  # 144 left: still held, but it moves
        bench.clock.advance(29.0)
        assert bench.channel.of(wire.Abort) == []
        bench.clock.advance(1.0)
        assert bench.channel.of(wire.Abort) == [wire.Abort(request_id="r", reason="slow_reader")]
        with pytest.raises(CallerError, match="30 s while 144 bytes"):
            await anext(stream)
        assert bench.channel.of(wire.Hold) == [wire.Hold(request_id="r", is_held=True)]

    async def test_an_answer_that_is_complete_may_lie_as_long_as_it_wants(self, bench: ClientBench) -> None:
        stream = await bench.open()
        bench.tell(text_event("x" * 40, finish_reason="length"))
        bench.clock.advance(3600.0)
        assert bench.channel.of(wire.Hold) == []
        assert join(await read_all(stream)) == "x" * 40

    async def test_an_answer_that_ends_while_held_is_not_aborted(self, bench: ClientBench) -> None:
        stream = await bench.open()
        bench.tell(text_event("x" * 40))
        bench.tell(text_event("y", finish_reason="length"))
        bench.clock.advance(3600.0)
        assert join(await read_all(stream)) == "x" * 40 + "y"
        assert bench.channel.of(wire.Hold) == [wire.Hold(request_id="r", is_held=True)]


class TestWorkerGone:
    async def test_death_fails_every_open_request_and_nothing_else(self, bench: ClientBench) -> None:
        done = await bench.open("done")
        bench.tell(text_event("whole", request_id="done", finish_reason="length"))
        running = await bench.open("r")
        bench.tell(text_event("part"))
        waiting = asyncio.create_task(bench.client.submit(bench.request("w"), bench.settled.append))
        await asyncio.sleep(0)
        bench.die()
        assert join(await read_all(done)) == "whole"
        assert (await anext(running)).text == "part"
        with pytest.raises(WorkerDied, match="SIGKILL"):
            await anext(running)
        with pytest.raises(WorkerDied):
            await waiting
        with pytest.raises(WorkerDied):
            await bench.client.submit(bench.request("late"), bench.settled.append)
        assert bench.settled == [True, False, False, False]
        assert bench.client.num_open == 0
        assert bench.clock.num_timers == 0

    async def test_a_worker_that_failed_gives_its_words(self, bench: ClientBench) -> None:
        stream = await bench.open()
        bench.say(wire.Failed(error=InternalError("KeyError: 7").to_wire()))
        bench.die("ended with exit code 1")
        with pytest.raises(WorkerDied, match="KeyError: 7"):
            await read_all(stream)

    async def test_no_progress_with_work_is_a_stall(self, bench: ClientBench) -> None:
        stream = await bench.open()
        bench.clock.advance(119.0)
        bench.tell()  # a step without events is progress
        bench.clock.advance(119.9)
        assert bench.channel.kills == []
        bench.clock.advance(0.1)
        assert bench.channel.kills == ["made no progress for 120 s and was killed"]
        bench.die(bench.channel.kills[0])
        with pytest.raises(WorkerStalled, match="120 s"):
            await read_all(stream)

    async def test_a_step_that_is_known_to_take_long_is_no_stall_and_one_that_never_ends_is(
        self, bench: ClientBench
    ) -> None:
        bench.say(wire.Stats(values={"step_token_s": 2.0, "step_max_tokens": 2048.0}))
        stream = await bench.open(prompt="x" * 40)
        bench.clock.advance(799.0)  # 40 tokens of 2 s take 80 s, of which ten times is waited
        assert bench.channel.kills == []
        bench.tell()
        bench.clock.advance(799.0)
        assert bench.channel.kills == []
        bench.clock.advance(1.0)
        assert bench.channel.kills == ["made no progress for 800 s and was killed"]
        bench.die(bench.channel.kills[0])
        with pytest.raises(WorkerStalled, match="800 s"):
            await read_all(stream)

    async def test_tokens_behind_a_long_context_take_longer(self, bench: ClientBench) -> None:
        bench.say(wire.Stats(values={"step_token_s": 0.5, "step_position_cost": 0.1, "step_max_tokens": 8.0}))
        await bench.open(prompt="x" * 40)
        bench.clock.advance(199.9)  # 8 tokens of 0.5 s behind 40 positions, each a tenth of a token: 20 s, ten times
        assert bench.channel.kills == []
        bench.clock.advance(0.1)
        assert bench.channel.kills == ["made no progress for 200 s and was killed"]

    async def test_no_step_is_larger_than_the_workers_limit_and_short_ones_have_the_time_out(
        self, bench: ClientBench
    ) -> None:
        bench.say(wire.Stats(values={"step_token_s": 2.0, "step_max_tokens": 7.0}))
        await bench.open(prompt="x" * 40)
        bench.clock.advance(139.9)
        assert bench.channel.kills == []
        bench.say(wire.Stats(values={"step_token_s": 0.001, "step_max_tokens": 7.0}))
        bench.clock.advance(140.0)
        assert bench.channel.kills == ["made no progress for 120 s and was killed"]

    async def test_requests_that_keep_coming_do_not_hide_a_stall(self, bench: ClientBench) -> None:
        for number in range(5):
            asyncio.create_task(
                bench.client.submit(bench.request(f"r{number}"), bench.settled.append)
            ).add_done_callback(lambda task: task.exception())
            await asyncio.sleep(0)
            bench.clock.advance(30.0)
        assert len(bench.channel.kills) == 1
        bench.die()
        await asyncio.sleep(0)

    async def test_an_idle_worker_and_a_held_request_are_no_stall(self, tokenizer: Tokenizer) -> None:
        bench = ClientBench(tokenizer, slow_reader_timeout_s=1e6)
        bench.clock.advance(1000.0)
        stream = await bench.open()
        bench.tell(text_event("x" * 40))
        bench.clock.advance(1000.0)
        await anext(stream)
        assert [hold.is_held for hold in bench.channel.of(wire.Hold)] == [True, False]
        bench.clock.advance(119.9)
        assert bench.channel.kills == []
        bench.clock.advance(0.2)
        assert len(bench.channel.kills) == 1

    async def test_a_parent_that_was_stopped_itself_does_not_blame_the_worker(self, bench: ClientBench) -> None:
        await bench.open()
        bench.clock._now += 1000.0  # the machine slept: the timer comes late
        bench.clock.advance(0.0)
        assert bench.channel.kills == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    n=st.integers(1, 3),
    stop=st.sampled_from([(), ("ab",), ("b",)]),
    timeout_s=st.sampled_from([None, 5.0]),
)
def test_each_choice_ends_exactly_once(
    tokenizer: Tokenizer, data: st.DataObject, n: int, stop: tuple[str, ...], timeout_s: float | None
) -> None:
    """Whatever comes in whatever order: one terminal delta a choice, or one error; never both, never none."""

    async def run() -> None:
        bench = ClientBench(tokenizer)
        stream = await bench.open(n=n, stop=stop, timeout_s=timeout_s)
        owed = set(range(n))
        computed = 0
        for _ in range(data.draw(st.integers(0, 12))):
            act = data.draw(st.sampled_from(["text", "end", "error", "time", "read", "shutdown"]))
            if act in ("text", "end", "error") and owed:
                choice = data.draw(st.sampled_from(sorted(owed)))
                text = data.draw(st.text(st.sampled_from("abc"), max_size=4)) if act != "error" else ""
                reason = {"text": None, "end": "length", "error": "error"}[act]
                computed += len(text)
                bench.tell(text_event(text, choice=choice, finish_reason=reason))
                owed -= {choice} if reason else set()
            elif act == "time":
                bench.clock.advance(3.0)
            elif act == "shutdown":
                bench.client.shut_down_requests()
        if data.draw(st.booleans()):
            bench.die()
        else:
            # A worker answers every choice in the end, aborted or not.
            bench.tell(*[text_event("", choice=choice, finish_reason="length") for choice in sorted(owed)])
        ends: list[int] = []
        has_error = False
        try:
            async for delta in stream:
                ends += [delta.choice] if delta.finish_reason else []
        except Exception:
            has_error = True
        assert len(ends) == len(set(ends))
        assert has_error or sorted(ends) == list(range(n))
        assert len(bench.settled) == 1
        assert bench.clock.num_timers == 0
        stats = bench.client.stats()
        assert stats["client_output_tokens_total"] + stats["client_overshoot_tokens_total"] == computed
        unasked = [abort for abort in bench.channel.of(wire.Abort) if abort.finish_reason == "abort"]
        assert len(unasked) <= 1

    asyncio.run(run())
