"""The native door under everything at once: odd clients, and models that die, go and change. Nothing may be lost."""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.server.conftest import until
from tests.server.native_door_rig import Served, Wire, infer_body, post, serving

from headway.config import InferConfig

NUM_CLIENTS = 12
NUM_ROUNDS = 25


@dataclass
class Sent:
    """A request, and what may come back."""

    data: bytes
    request_id: str
    statuses: frozenset[int]
    number: int | None = None
    """Its answer has twice that."""


@dataclass
class Client:
    """One of many; it says what it got."""

    server: Served
    dice: random.Random
    name: str
    num_sent: int = 0
    got: Counter[int] = field(default_factory=Counter)

    async def run(self) -> None:
        for _ in range(NUM_ROUNDS):
            acts: tuple[Callable[[], Coroutine[Any, Any, None]], ...]
            acts = (self._ask, self._ask, self._ask_in_pieces, self._pipeline, self._leave, self._leave_cut)
            await self.dice.choice(acts)()

    async def _ask(self) -> None:
        async with await self.server.connect() as wire:
            for _ in range(self.dice.randint(1, 6)):
                sent = self._make()
                self._check(sent, await wire.ask(sent.data))

    async def _ask_in_pieces(self) -> None:
        sent = self._make()
        async with await self.server.connect() as wire:
            await self._write_in_pieces(wire, sent.data)
            self._check(sent, await wire.answer())

    async def _pipeline(self) -> None:
        several = [self._make() for _ in range(self.dice.randint(2, 6))]
        async with await self.server.connect() as wire:
            await self._write_in_pieces(wire, b"".join(sent.data for sent in several))
            for sent in several:
                self._check(sent, await wire.answer())

    async def _leave(self) -> None:
        async with await self.server.connect() as wire:
            wire.writer.write(self._make().data * self.dice.randint(1, 3))
            await self._turns()

    async def _leave_cut(self) -> None:
        async with await self.server.connect() as wire:
            data = self._make().data
            wire.writer.write(data[: self.dice.randrange(1, len(data))])
            await self._turns()

    async def _write_in_pieces(self, wire: Wire, data: bytes) -> None:
        places = sorted(self.dice.sample(range(1, len(data)), self.dice.randint(0, 4)))
        for start, end in zip([0, *places], [*places, len(data)], strict=True):
            wire.writer.write(data[start:end])
            await self._turns()

    async def _turns(self) -> None:
        for _ in range(self.dice.randint(0, 8)):
            await asyncio.sleep(0)

    def _make(self) -> Sent:
        self.num_sent += 1
        request_id = f"{self.name}-{self.num_sent}"
        header = f"X-Request-Id: {request_id}"
        # 503: its process was killed.
        kind = self.dice.choice(("plain",) * 6 + ("refused", "nan", "odd", "no such model"))
        if kind == "plain":
            number = self.dice.randint(1000, 1_000_000)
            body = infer_body([number, 1, 2, 3], id=request_id)
            return Sent(post(body, header), request_id, frozenset({200, 503}), number)
        if kind == "refused":
            return Sent(post(infer_body([666, 1, 2, 3]), header), request_id, frozenset({400, 500, 503}))
        if kind == "nan":
            return Sent(post(infer_body([777, 1, 2, 3]), header), request_id, frozenset({400, 500, 503}))
        if kind == "odd":
            return Sent(post(infer_body(inputz=1), header), request_id, frozenset({400}))
        return Sent(post(infer_body(), header, path="/v2/models/nobody/infer"), request_id, frozenset({404}))

    def _check(self, sent: Sent, answer: bytes) -> None:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 "), (sent, answer)
        status = int(head.split(b" ")[1])
        assert status in sent.statuses, (sent, answer)
        assert f"\r\nx-request-id: {sent.request_id}\r\n".encode() in head + b"\r\n", (sent, answer)
        if status == 200:
            told = json.loads(body)
            assert told["id"] == sent.request_id
            assert told["outputs"][0]["data"] == [2 * cast(int, sent.number), 2, 4, 6]
        self.got[status] += 1


def check_counts(server: Served) -> None:
    """No number is less than nothing."""
    for model in server.service.roster.models:
        client = cast(Any, model.client)
        if client is not None:
            plain = client.plain
            assert min(plain.num_at_work, plain.num_in_flight, plain.num_open_bytes, plain.num_waiting) >= 0
            assert plain.num_at_work >= plain.num_in_flight
            assert all(instance.num_open >= 0 for instance in client._instances)
    assert cast(Any, server.door)._door.num_open >= 0
    assert cast(Any, server.door)._state.metrics.num_http_open >= 0
    server.service._residents.pool.check()


async def change_things(server: Served, dice: random.Random, clients: list[Client]) -> None:
    """Kills, unloads, swaps and renames, some requests after each other."""
    roster, version = server.service.roster, 1
    while True:
        wanted = sum(client.num_sent for client in clients) + 30
        while sum(client.num_sent for client in clients) < wanted:
            check_counts(server)
            await asyncio.sleep(0)
        (model,) = roster.models
        act = dice.choice(("kill", "unload", "swap", "change"))
        if act == "kill" and model.client is not None:
            instance = cast(Any, model.client)._instances[0]
            if instance.channel is not None:
                instance.channel.kill("was killed by the test")
        elif act == "unload":
            await server.service.unload("m")
        elif act == "swap":
            version += 1
            new = roster.prepare(replace(model.config, version=str(version)))
            await roster.load(new)
            roster.swap(model, new)
        else:
            roster.change(model, replace(model.config, served_names=("m", f"alias-{dice.random()}")))


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_request_has_one_answer_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    alone = InferConfig(max_batch_size=1)  # one that is refused would take others along
    async with serving(tmp_path, infer=alone) as server:
        await server.ask(post(infer_body()))
        clients = [Client(server, random.Random(f"{seed} {index}"), f"c{index}") for index in range(NUM_CLIENTS)]
        changing = asyncio.ensure_future(change_things(server, dice, clients))
        async with asyncio.timeout(60):
            await asyncio.gather(*(client.run() for client in clients))
        assert not changing.done(), changing.exception()
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        (last,) = await server.ask(post(infer_body()))
        assert last.startswith(b"HTTP/1.1 200")
        await check_all_ended(server)
        got = sum((client.got for client in clients), Counter[int]())
        assert got[200] > 100
        assert await server.num_native() > 50
        await check_metrics(server, got)


async def check_all_ended(server: Served) -> None:
    door, metrics = cast(Any, server.door)._door, cast(Any, server.door)._state.metrics
    await until(lambda: not server.http._uvicorn.server_state.connections)
    await until(lambda: server.service._residents.pool.num_leases == 0)
    assert (door.num_open, door.num_held_bytes, metrics.num_http_open) == (0, 0, 0)
    assert server.num_open() == (0, 0, 0)
    check_counts(server)


async def check_metrics(server: Served, got: Counter[int]) -> None:
    """Each answer was counted; more are of clients that left."""
    text = await server.metrics()
    counted: Counter[int] = Counter()
    for status, value in re.findall(
        r'headway_http_requests_total\{handler="/v2/models/\{model:path\}/infer",method="POST",status="(\d+)"\} (.*)',
        text,
    ):
        counted[int(status)] += int(float(value))
    assert all(counted[status] >= number for status, number in got.items())
    timed = re.search(
        r'headway_http_request_duration_seconds_count\{handler="/v2/models/\{model:path\}/infer"\} (.*)', text
    )
    assert timed is not None
    assert float(timed[1]) == sum(counted.values())
