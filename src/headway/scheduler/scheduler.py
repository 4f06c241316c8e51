"""Scheduler: which tokens of which sequences run in the next step. Sequences come in from the engine, StepPlans go out.

There is no prefill and no decode: a sequence has tokens that are not computed yet, and each step brings it nearer to
having none; then the engine samples its next one. A prompt, a chunk of one, a prefix hit, a new output token and the
return of a preempted sequence are all that same case. A step is filled in this order:

1. Streams: running sequences that are one token behind get it. A long prompt can not starve them. Behind them come
   those that gained a few tokens at once, which were forced.
2. Catching up: running sequences that are further behind, first come first, with what is left of the tokens of a step,
   or with what the pace allows beside streams.
   Without chunked prefill a sequence catches up whole or not at all; the first to do so in a step may go over the
   limit (a prompt longer than the limit must run too), and no other then joins it.
3. Starting: waiting sequences in the order of the policy, of those that the batching lets start now, while there are
   rows, tokens and blocks for all they will need to catch up, beside what the running ones will want soon. None
   overtakes one that finds no blocks. None starts in a step in which somebody was preempted or found no block.
4. Padding: with static batching, rows whose sequences have ended and whose batch has not.

Where blocks are short, policy.choose_victim says who loses them; the victim waits again in its old place and computes
its tokens anew (from the prefix tree, as far as they are still there).
"""

from dataclasses import dataclass

from headway.cache.kv_cache import KVCache
from headway.core.sequence import Sequence, SequenceStatus
from headway.core.step import StepPlan
from headway.errors import InvalidConfig, InvariantBroken
from headway.scheduler.batching import Batching, Continuous
from headway.scheduler.budget import StepBudget
from headway.scheduler.ledger import Ledger
from headway.scheduler.pace import Pace
from headway.scheduler.padding import Padding
from headway.scheduler.policy import FirstCome, Policy, choose_victim
from headway.scheduler.queue import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """The numbers that bound a step. Raises InvalidConfig."""

    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool = True
    enable_kv_cache: bool = True
    """False: what a sequence computed counts only until it has its next token."""
    max_preemptions: int = 1000

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise InvalidConfig(f"max_num_seqs is {self.max_num_seqs}; it must be at least 1", param="max_num_seqs")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidConfig(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, under max_num_seqs {self.max_num_seqs}: "
                "each running sequence gets a token a step, so raise the first or lower the second",
                param="max_num_batched_tokens",
            )


MAX_GAINED_TOKENS = 32
"""So many tokens behind its prompt a sequence may compute in a step before others catch up."""


class Scheduler:
    """Owns the queues and the rows. Not thread-safe; the engine's loop is its only caller."""

    def __init__(
        self,
        limits: SchedulerLimits,
        kv_cache: KVCache,
        *,
        policy: Policy | None = None,
        batching: Batching | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Without a policy, a batching and a pace: first come, first served, continuous, as long as a step takes."""
        self.limits = limits
        self._policy = policy or FirstCome()
        self._batching = batching or Continuous()
        self._pace = pace or Pace(0.0)
        self._ledger = Ledger() if self._policy.is_by_tenant else None
        self.waiting = Queue()
        self.running = Queue()
        self.num_preemptions = 0
        self._kv_cache = kv_cache
        self._padding = Padding()
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Lets a new sequence wait for its turn."""
        self._batching.is_closed = False
        if self._ledger is not None:
            self._ledger.join(sequence)
        self._wait(sequence)

    def close(self) -> None:
        """Tells that nobody will be added before those who wait have started: a batch need not wait for more."""
        self._batching.is_closed = True

    def has_work(self) -> bool:
        """Whether schedule() would plan something."""
        if any(sequence.can_run for sequence in self.running):
            return True
        return any(sequence.can_start() for sequence in self._batching.boarding(self.waiting.items))

    def wait_s(self) -> float | None:
        """Seconds until has_work() may change with no message; None: it will not."""
        return None if self.has_work() else self._batching.wait_s(self.waiting.items)

    def schedule(self) -> StepPlan:
        """The next step. Starts and preempts sequences; the caller executes the plan and calls complete()."""
        plan = StepPlan()
        behind, has_blocks = self._plan_streams(plan)
        plan.num_streams = len(plan.sequences)
        if behind and self.limits.enable_chunked_prefill:
            behind, found = self._plan_gained(plan, behind)
            has_blocks &= found
        budget = self._make_budget(len(plan.sequences) + len(self._padding), plan.total_tokens + len(self._padding))
        if behind:
            has_blocks &= self._plan_catching_up(plan, behind, budget)
        if self.waiting.items and has_blocks and not plan.preempted:
            self._plan_starting(plan, budget)
        if self._padding:
            self._padding.join(plan)
        plan.table_changes = self._kv_cache.take_table_changes()
        return plan

    def complete(self, plan: StepPlan) -> None:
        """Counts a plan's tokens as computed and shares blocks that became whole. Skips sequences that ended."""
        block_size = self._kv_cache.block_size
        for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            num_computed = sequence.num_computed_tokens = sequence.num_computed_tokens + num_tokens
            if num_computed % block_size < num_tokens:
                self._kv_cache.insert(sequence)
            if sequence.fork is not None and num_computed >= sequence.num_prompt_tokens:
                sequence.fork.is_prompt_computed = True
                sequence.fork = None
        if self._ledger is not None:
            self._ledger.note(plan)
        if not self.limits.enable_kv_cache:
            _forget_computed(plan)

    def finish(self, sequence: Sequence, *, is_poisoned: bool = False, is_complete: bool = False) -> None:
        """Takes a sequence out, wherever it is.

        Args:
            is_poisoned: what it computed must not be used by another.
            is_complete: it has all that it wanted: a row that is padded, where batches are.
        """
        before, sequence.status = sequence.status, SequenceStatus.FINISHED
        if before is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        elif before is SequenceStatus.RUNNING and is_complete and self._is_padding(sequence):
            self.running.remove(sequence)
            self._padding.add(sequence)
        elif before is SequenceStatus.RUNNING:
            if is_poisoned:
                self._kv_cache.forget(sequence)
            self._stop_running(sequence)
        self._end(sequence)

    def check(self) -> None:
        """Raises InvariantBroken unless each sequence is in one place and each row has one owner."""
        self.waiting.check()
        self.running.check()
        rows = sorted([*self._free_rows, *(sequence.row for sequence in (*self.running, *self._padding))])
        if rows != list(range(self.limits.max_num_seqs)):
            raise InvariantBroken(f"free and used rows are {rows}, of {self.limits.max_num_seqs}")
        for sequence in self.running:
            if sequence.status is not SequenceStatus.RUNNING:
                raise InvariantBroken(f"request {sequence.request_id} runs and is {sequence.status.value}")
        for sequence in self.waiting:
            if sequence.status is not SequenceStatus.WAITING or sequence.row != -1 or sequence.num_computed_tokens:
                raise InvariantBroken(f"request {sequence.request_id} waits and has a row or computed tokens")
        self._kv_cache.check()

    def _make_budget(self, num_streams: int, num_tokens: int) -> StepBudget:
        """Of a step that has so many streams, which compute so many tokens."""
        num_left = self.limits.max_num_batched_tokens - num_tokens
        num_rows = self.limits.max_num_seqs - num_streams
        if not self.limits.enable_chunked_prefill:
            return StepBudget(num_left, num_rows, is_chunked=False)
        return StepBudget(self._pace.max_tokens(num_streams, num_left), num_rows, is_chunked=True)

    def _plan_streams(self, plan: StepPlan) -> tuple[list[Sequence], bool]:
        """Case 1. Returns the running sequences that are further behind, and whether each stream found its block."""
        behind, has_blocks = [], True
        for sequence in tuple(self.running.items):
            if not sequence.can_run or sequence.status is not SequenceStatus.RUNNING:
                continue
            num_tokens = len(sequence.token_ids)
            if num_tokens - sequence.num_computed_tokens > 1:
                behind.append(sequence)
            elif num_tokens <= sequence.num_slots or self._make_room(sequence, num_tokens, plan):
                plan.sequences.append(sequence)
                plan.num_tokens.append(1)
            else:
                has_blocks = False
        return behind, has_blocks

    def _plan_gained(self, plan: StepPlan, behind: list[Sequence]) -> tuple[list[Sequence], bool]:
        """The second half of case 1. Returns the others of `behind`, and whether each of these found its blocks."""
        gained = [sequence for sequence in behind if _has_gained(sequence)]
        others = [sequence for sequence in behind if not _has_gained(sequence)]
        num_left = self.limits.max_num_batched_tokens - len(plan.sequences) - len(gained)
        has_blocks = True
        for sequence in gained:
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            num_tokens = min(sequence.num_missing_tokens, 1 + max(0, num_left))
            if self._make_room(sequence, sequence.num_computed_tokens + num_tokens, plan):
                plan.add(sequence, num_tokens)
                num_left -= num_tokens - 1
            else:
                has_blocks = False
        return others, has_blocks

    def _plan_catching_up(self, plan: StepPlan, behind: list[Sequence], budget: StepBudget) -> bool:
        """Case 2. False if one of them found no block."""
        has_blocks = True
        for sequence in behind:
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            num_tokens = budget.grant(sequence)
            if num_tokens == 0:
                break
            if self._make_room(sequence, sequence.num_computed_tokens + num_tokens, plan):
                plan.add(sequence, num_tokens)
                budget.spend(sequence, num_tokens)
            else:
                has_blocks = False
        return has_blocks

    def _plan_starting(self, plan: StepPlan, budget: StepBudget) -> None:
        """Case 3."""
        if not self._free_rows and not any(sequence.is_held for sequence in self.running):
            return
        num_reserved = sum(self._num_promised_blocks(sequence) for sequence in self.running if not sequence.is_held)
        served = {} if self._ledger is None else self._ledger.served
        ordered = tuple(self._policy.starting(self.waiting.items, self.running.items, served))
        for sequence in self._batching.board(ordered):
            if budget.num_left == 0:
                break
            if not sequence.can_start():
                continue
            if not self._try_start(sequence, num_reserved, plan):
                break
            num_tokens = budget.grant(sequence)
            if num_tokens == 0:
                self._kv_cache.free(sequence)
                break
            self._start(sequence, num_tokens, plan)
            budget.spend(sequence, num_tokens)
            num_reserved += self._num_promised_blocks(sequence)

    def _num_promised_blocks(self, sequence: Sequence) -> int:
        """Blocks that a running sequence will want soon: to catch up, or its next one if it can still grow.

        Without the latter a sequence would start in the last blocks and lose them to the next stream that needs one.
        """
        return max(self._kv_cache.num_missing_blocks(sequence), int(sequence.max_total_tokens > sequence.num_slots))

    def _try_start(self, sequence: Sequence, num_reserved: int, plan: StepPlan) -> bool:
        """Finds a row and blocks for a waiting sequence; those that have ended or are held give theirs."""
        while not (self._free_rows and self._kv_cache.try_admit(sequence, num_reserved)):
            if self._padding:
                self._stop_padding(self._padding.last)
                continue
            held = next((s for s in reversed(self.running.items) if s.is_held), None)
            if held is None:
                return False
            self._preempt(held, plan)
        return True

    def _start(self, sequence: Sequence, num_tokens: int, plan: StepPlan) -> None:
        """From waiting to running, with its first tokens in the plan."""
        if not self._kv_cache.try_extend(sequence, sequence.num_computed_tokens + num_tokens):
            raise InvariantBroken(f"request {sequence.request_id} was admitted and finds no blocks")
        if not sequence.has_started:
            sequence.has_started = True
            self._kv_cache.count_hit(sequence)
        self.waiting.remove(sequence)
        sequence.row = self._free_rows.pop()
        sequence.status = SequenceStatus.RUNNING
        self.running.add(sequence)
        plan.started.append(sequence)
        plan.add(sequence, num_tokens)

    def _make_room(self, sequence: Sequence, num_tokens: int, plan: StepPlan) -> bool:
        """Blocks for `num_tokens` tokens, taken from others if need be. False: not in this step."""
        while not self._kv_cache.try_extend(sequence, num_tokens):
            if self._padding:
                self._stop_padding(self._padding.last)
                continue
            victim = choose_victim(self.running.items, plan.sequences, sequence)
            if victim is None:
                return False
            self._preempt(victim, plan)
        return True

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        """Takes row and blocks from a running sequence; it waits again, or is over its limit.

        One that is held loses nothing that it would use now: that does not count against it.
        """
        self._stop_running(sequence)
        sequence.num_preemptions += not sequence.is_held
        self.num_preemptions += 1
        plan.preempted.append(sequence)
        if sequence.num_preemptions > self.limits.max_preemptions:
            sequence.status = SequenceStatus.FINISHED
            plan.over_limit.append(sequence)
            self._end(sequence)
        else:
            sequence.status = SequenceStatus.WAITING
            self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        sequence.order = self._policy.place(sequence)
        self.waiting.add(sequence)

    def _end(self, sequence: Sequence) -> None:
        """It is in no queue any more. With the last of a batch its padding ends."""
        if self._ledger is not None:
            self._ledger.leave(sequence)
        if self._padding and not self._batching.is_underway():
            for padding in self._padding.sequences:
                self._stop_padding(padding)

    def _is_padding(self, sequence: Sequence) -> bool:
        """Whether one that has ended is computed on. Where nothing is cached it is not."""
        return self._batching.pads_finished and self._batching.is_underway() and _has_output(sequence)

    def _stop_padding(self, sequence: Sequence) -> None:
        self._padding.remove(sequence)
        self._leave_row(sequence)

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._leave_row(sequence)

    def _leave_row(self, sequence: Sequence) -> None:
        self._kv_cache.free(sequence)
        self._free_rows.append(sequence.row)
        sequence.row = -1


def _has_gained(sequence: Sequence) -> bool:
    """Whether all that it lacks is a few tokens behind its prompt. Not where their log-probabilities are told: then
    each takes a row of the step, as a prompt's do."""
    is_behind_prompt = sequence.num_computed_tokens >= sequence.num_prompt_tokens
    return is_behind_prompt and sequence.is_scored and sequence.num_missing_tokens <= MAX_GAINED_TOKENS


def _has_output(sequence: Sequence) -> bool:
    """Whether it has tokens behind those that are computed, and all of its prompt is."""
    return sequence.num_missing_tokens > 0 and sequence.num_computed_tokens >= sequence.num_prompt_tokens


def _forget_computed(plan: StepPlan) -> None:
    """Whoever gets its next token now computes all tokens again for the one after it."""
    for sequence in plan.sequences:
        if sequence.num_missing_tokens == 0:
            sequence.num_computed_tokens = 0
