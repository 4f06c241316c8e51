"""The times of choices, worked by hand on a clock that a test moves."""

from dataclasses import dataclass

import headway_wire as wire
from headway.core.sequence import Sequence
from headway.engine.meter import EngineMeter


@dataclass
class Bench:
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.meter = EngineMeter(lambda: self.now_s)

    def at(self, now_s: float) -> EngineMeter:
        self.now_s = now_s
        return self.meter

    def sum(self, key: str) -> float:
        return self.meter.values().get(f"{key}_sum_total", 0.0)

    def count(self, key: str) -> float:
        return sum(value for name, value in self.meter.values().items() if name.startswith(f"{key}_bucket_"))


def sequence(arrival_s: float = 0.0, num_cached_tokens: int = 0) -> Sequence:
    return Sequence(
        request_id="r",
        choice=0,
        arrival=0,
        arrival_s=arrival_s,
        token_ids=[1, 2, 3, 4, 5],
        num_prompt_tokens=5,
        max_total_tokens=9,
        num_cached_tokens=num_cached_tokens,
    )


def test_a_choice_queues_computes_its_prompt_and_makes_its_output() -> None:
    bench, one, other = Bench(), sequence(1.0, num_cached_tokens=2), sequence(1.0)
    bench.at(3.0).start([one])
    bench.at(3.5).tokens([])  # a chunk of the prompt
    bench.at(4.0).tokens([one, other])  # the other one has not started: a row that pads
    bench.at(6.0).tokens([one])
    bench.at(7.0).end(one)
    sums = [bench.sum(key) for key in ("queue_time", "prefill_time", "decode_time", "inference_time")]
    assert sums == [2.0, 1.0, 3.0, 4.0]
    assert bench.sum("prefill_computed") == 3
    assert not bench.meter.awaits_tokens


def test_one_that_is_started_again_queued_once() -> None:
    bench, one = Bench(), sequence()
    bench.at(1.0).start([one])
    bench.at(2.0).tokens([one])
    one.num_preemptions = 2
    bench.at(5.0).start([one])
    bench.at(6.0).tokens([one])
    bench.at(8.0).end(one)
    assert (bench.sum("queue_time"), bench.count("queue_time")) == (1.0, 1)
    assert (bench.sum("decode_time"), bench.count("prefill_time")) == (6.0, 1)
    assert bench.sum("request_preemptions") == 2


def test_what_ends_early_is_counted_as_far_as_it_came() -> None:
    bench, queued, started = Bench(), sequence(), sequence()
    bench.at(1.0).start([started])
    bench.at(2.0).end(queued)
    bench.meter.end(started)
    assert [bench.count(key) for key in ("queue_time", "prefill_time", "inference_time")] == [1, 0, 0]
    assert bench.count("request_preemptions") == 2
    assert not bench.meter.awaits_tokens


def test_what_is_asked_for_and_what_steps_compute() -> None:
    bench = Bench()
    bench.meter.submit(wire.Sampling(n=3))
    bench.meter.submit(wire.Sampling(max_tokens=40))
    bench.meter.step(7)
    bench.meter.step(0)
    assert (bench.sum("params_n"), bench.count("params_n")) == (4, 2)
    assert (bench.sum("params_max_tokens"), bench.count("params_max_tokens")) == (40, 1)
    assert (bench.sum("step_size"), bench.count("step_size")) == (7, 1)
    bench.meter.clear()
    assert bench.meter.values() == {}
