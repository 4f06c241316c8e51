"""The client's side of an encoder's worker: a request's texts succeed or fail together, and leave nothing open."""

import asyncio

import pytest
from tests.worker.conftest import ClientBench

import headway_wire as wire
from headway.errors import HeadwayError, InvalidRequest, NonFiniteLogits, ShuttingDown, WorkerDied
from headway.worker.embed_prompt import PreparedText

TEXTS = [PreparedText((1, 2)), PreparedText((3, 4, 5), second_start=2)]


async def start(bench: ClientBench) -> "asyncio.Task[list[bytes]]":
    task = asyncio.create_task(bench.client.embed("e", TEXTS, bench.settled.append, priority=3))
    await asyncio.sleep(0)
    return task


def accept(bench: ClientBench) -> None:
    bench.say(wire.Accepted(request_id="e-0"), wire.Accepted(request_id="e-1"))


async def test_each_text_is_submitted_and_the_vectors_come_in_the_order_of_the_texts(bench: ClientBench) -> None:
    task = await start(bench)
    submits = bench.channel.of(wire.Submit)
    assert [(each.request_id, each.prompt_token_ids, each.second_start, each.priority) for each in submits] == [
        ("e-0", [1, 2], None, 3),
        ("e-1", [3, 4, 5], 2, 3),
    ]
    accept(bench)
    assert bench.client.num_open == 2
    bench.say(wire.Step(), wire.Embedding(request_id="e-1", data=b"second"))
    assert not task.done()
    bench.say(wire.Step(), wire.Embedding(request_id="e-0", data=b"first"))
    assert await task == [b"first", b"second"]
    assert bench.settled == [True]
    assert bench.client.num_open == 0
    assert bench.channel.of(wire.Abort) == []


async def test_a_refusal_fails_all_and_aborts_the_others(bench: ClientBench) -> None:
    task = await start(bench)
    error = InvalidRequest("no", param="input").to_wire()
    bench.say(wire.Refused(request_id="e-0", error=error), wire.Accepted(request_id="e-1"))
    with pytest.raises(InvalidRequest, match="no"):
        await task
    assert [abort.request_id for abort in bench.channel.of(wire.Abort)] == ["e-1"]
    assert bench.settled == []
    bench.tell(wire.TokenEvent("e-1", 0, finish_reason="abort"))
    assert bench.settled == [True]
    assert bench.client.num_open == 0


async def test_a_vector_that_is_not_finite_fails_the_request(bench: ClientBench) -> None:
    task = await start(bench)
    accept(bench)
    error = NonFiniteLogits("NaN").to_wire()
    bench.tell(wire.TokenEvent("e-1", 0, finish_reason="error", error=error))
    with pytest.raises(NonFiniteLogits):
        await task
    bench.say(wire.Embedding(request_id="e-0", data=b"late"))
    assert bench.settled == [True]


async def test_a_caller_that_leaves_aborts_every_text(bench: ClientBench) -> None:
    task = await start(bench)
    accept(bench)
    bench.say(wire.Embedding(request_id="e-0", data=b"first"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [abort.request_id for abort in bench.channel.of(wire.Abort)] == ["e-1"]
    bench.tell(wire.TokenEvent("e-1", 0, finish_reason="abort"))
    assert bench.settled == [False]
    assert bench.client.num_open == 0


async def test_the_workers_death_fails_it_before_and_during_the_request(bench: ClientBench) -> None:
    task = await start(bench)
    bench.die()
    with pytest.raises(WorkerDied):
        await task
    assert bench.settled == [False]
    with pytest.raises(HeadwayError):
        await bench.client.embed("f", TEXTS, bench.settled.append)
    assert bench.settled == [False, False]


async def test_the_servers_end_fails_it_as_something_to_try_again(bench: ClientBench) -> None:
    task = await start(bench)
    accept(bench)
    bench.client.shut_down_requests()
    with pytest.raises(ShuttingDown):
        await task


async def test_a_worker_that_makes_no_progress_is_killed(bench: ClientBench) -> None:
    task = await start(bench)
    accept(bench)
    bench.clock.advance(121.0)
    assert len(bench.channel.kills) == 1
    bench.die("was killed")
    with pytest.raises(HeadwayError):
        await task
