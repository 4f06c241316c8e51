"""A client whose worker is the test itself: what it sends is a list, what the worker says is said by hand."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import headway_wire as wire
from headway.core.output import TextDelta
from headway.core.sampling import SamplingParams
from headway.testing.fake_clock import FakeClock
from headway.testing.script import Script
from headway.testing.scripted_text import make_text
from headway.text.tokenizer import Tokenizer
from headway.worker.channel import WorkerEnd
from headway.worker.client import WorkerClient
from headway.worker.prompt import PreparedRequest
from headway.worker.stream import RequestStream, StreamLimits

WORDS = [b",b", b",cd", b"\xf0\x9f", b"\x91\x8b", b"stop here", b"abc"]
SCRIPT = Script(words=WORDS)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Ids 0 to 255 are bytes, 256 is the end token, 261 and on are WORDS."""
    return make_text(SCRIPT).tokenizer


class FakeChannel:
    pid = None

    def __init__(self) -> None:
        self.sent: list[wire.Down] = []
        self.kills: list[str] = []

    def send(self, message: wire.Down) -> None:
        self.sent.append(wire.decode_down(wire.encode(message)))

    def kill(self, how: str) -> None:
        self.kills.append(how)

    async def close(self, grace_s: float) -> None:
        self.sent.append(wire.Shutdown())

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


@dataclass
class ClientBench:
    tokenizer: Tokenizer
    slow_reader_timeout_s: float = 30.0
    clock: FakeClock = field(default_factory=FakeClock)
    channel: FakeChannel = field(default_factory=FakeChannel)
    settled: list[bool] = field(default_factory=list)
    client: WorkerClient = field(init=False)

    def __post_init__(self) -> None:
        limits = StreamLimits(100, self.slow_reader_timeout_s)
        self.client = WorkerClient("tiny", limits=limits, stall_timeout_s=120.0, clock=self.clock)
        self.client.attach(self.channel)
        self.say(wire.Ready(info={"max_model_len": 64}))

    def say(self, *messages: wire.Up) -> None:
        self.client.on_messages([wire.decode_up(wire.encode(message)) for message in messages])

    def tell(self, *events: wire.TokenEvent) -> None:
        self.say(wire.Step(events=list(events)))

    def die(self, how: str = "was ended by SIGKILL") -> None:
        self.client.on_end(WorkerEnd(how))

    def request(self, request_id: str = "r", prompt: str = "hi", **sampling: Any) -> PreparedRequest:
        return PreparedRequest(request_id, "tiny", tuple(prompt.encode()), SamplingParams(**sampling), self.tokenizer)

    async def submit(self, request_id: str = "r", **sampling: Any) -> RequestStream:
        timeout_s = sampling.get("timeout_s")
        deadline = None if timeout_s is None else self.clock.now() + timeout_s
        request = self.request(request_id, **sampling)
        return await self.client.submit(request, self.settled.append, deadline=deadline)

    async def open(self, request_id: str = "r", **sampling: Any) -> RequestStream:
        """A stream whose request was accepted."""
        task = asyncio.create_task(self.submit(request_id, **sampling))
        await asyncio.sleep(0)
        self.say(wire.Accepted(request_id=request_id))
        return await task


@pytest.fixture
async def bench(tokenizer: Tokenizer) -> ClientBench:
    return ClientBench(tokenizer)


def text_event(text: str | bytes, choice: int = 0, request_id: str = "r", **fields: Any) -> wire.TokenEvent:
    """An event with a token for each byte."""
    token_ids = list(text.encode() if isinstance(text, str) else text)
    event = wire.TokenEvent(request_id, choice, token_ids)
    return wire.TokenEvent(**{name: fields.get(name, getattr(event, name)) for name in event.__struct_fields__})


async def read_all(stream: RequestStream) -> list[TextDelta]:
    return [delta async for delta in stream]


def join(deltas: Sequence[TextDelta], choice: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.choice == choice)
