from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headway.cache.kv_cache import KVCache
from headway.core.sequence import Sequence, SequenceStatus
from headway.core.step import StepPlan
from headway.scheduler.batching import Batching, make_batching
from headway.scheduler.pace import Pace
from headway.scheduler.policy import Policy
from headway.scheduler.scheduler import Scheduler, SchedulerLimits
from headway.testing.fake_clock import FakeClock


@dataclass
class Line:
    """A scheduler whose steps are executed by appending one token to whoever caught up."""

    scheduler: Scheduler
    kv_cache: KVCache
    clock: FakeClock
    num_arrived: int = 0
    sequences: dict[str, Sequence] = field(default_factory=dict)

    def add(
        self, name: str, num_prompt: int, num_output: int, *, tokens: list[int] | None = None, **fields
    ) -> Sequence:
        """A sequence that arrives now; its tokens are like no other's unless they are given."""
        token_ids = tokens or [1000 * (self.num_arrived + 1) + index for index in range(num_prompt)]
        sequence = Sequence(
            request_id=name,
            choice=0,
            arrival=self.num_arrived,
            arrival_s=self.clock.now(),
            token_ids=list(token_ids),
            num_prompt_tokens=len(token_ids),
            max_total_tokens=len(token_ids) + num_output,
            **fields,
        )
        self.num_arrived += 1
        self.sequences[name] = sequence
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        """One step; returns who computed how many tokens, in the plan's order."""
        plan = self.scheduler.schedule()
        self.scheduler.check()
        self.apply(plan)
        self.scheduler.check()
        return {sequence.request_id: num_tokens for sequence, num_tokens in plan.scheduled}

    def apply(self, plan: StepPlan) -> None:
        """What the engine does with an executed plan."""
        self.scheduler.complete(plan)
        for sequence in plan.sequences:
            has_caught_up = sequence.num_computed_tokens in (0, len(sequence.token_ids))  # 0: without a KV cache
            if has_caught_up and sequence.status is SequenceStatus.RUNNING:
                sequence.token_ids.append(7)
                if len(sequence.token_ids) == sequence.max_total_tokens:
                    self.scheduler.finish(sequence, is_complete=True)

    def run(self) -> list[dict[str, int]]:
        """Until nothing is left to do."""
        steps = []
        while self.scheduler.has_work():
            steps.append(self.step())
            assert len(steps) < 1000
        return steps


@pytest.fixture(scope="session")
def make_line() -> Callable[..., Line]:
    """Makes a line; keywords are SchedulerLimits', with num_blocks, block_size, enable_prefix_caching, pace, policy,
    and batching by name with max_delay_s on the line's clock."""

    def make(
        num_blocks: int = 100,
        block_size: int = 4,
        enable_prefix_caching: bool = True,
        pace: Pace | None = None,
        policy: Policy | None = None,
        batching: str = "continuous",
        max_delay_s: float = 0.0,
        **limits,
    ) -> Line:
        settings = {"max_num_seqs": 4, "max_num_batched_tokens": 16, **limits}
        kv_cache = KVCache(num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=enable_prefix_caching)
        clock = FakeClock()
        modes: Batching = make_batching(
            batching, capacity=settings["max_num_seqs"], max_delay_s=max_delay_s, now=clock.now
        )
        scheduler = Scheduler(SchedulerLimits(**settings), kv_cache, policy=policy, batching=modes, pace=pace)
        return Line(scheduler, kv_cache, clock)

    return make
