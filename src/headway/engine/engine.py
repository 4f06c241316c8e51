"""Engine: one loaded LLM. Messages in, one Step of events a step out; it calls nobody back.

The life of a request:
 1. submit() checks it (admission.py). What cannot run is Refused, and nothing of it remains. Where its output has to
    match a grammar that is not compiled yet, it waits (waiting_room.py) and is answered later: see take_answers().
 2. Accepted: it becomes n sequences, each with its seed key and its end tokens, and waits. Where they share a prompt
    worth sharing, the first computes it and the others start from the prefix tree.
 3. step() asks the scheduler for a plan: running sequences get their tokens, waiting ones take a row and blocks.
 4. The runner turns the plan into arrays, calls the executor once and samples once.
 5. The scheduler counts the tokens as computed and shares the blocks that became whole. Log-probabilities of prompts
    leave as they are made, chunk by chunk: see take_prompt_logprobs().
 6. Each sampled token is appended and becomes an event, and the choice ends if it is an end token (stop) or the last
    that fits (length), or its constraint says so (constrained.py). Go to 3 until it ends.
 7. A preempted sequence waits again in its old place and computes its tokens anew; its reader sees nothing of it.
    Too often, and it ends with PreemptionLimit.
 8. abort() ends it wherever it is; hold() keeps it from being scheduled while its reader is slow.
 9. What fails in its own part fails it alone; what fails the whole step fails the sequences of that step. Either way
    its row and blocks are free again before the event is out.
Each choice of an accepted request has exactly one terminal event: stop, length, abort or error.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import headway_wire as wire
from headway.cache.kv_cache import KVCache
from headway.config import EngineConfig
from headway.core.output import FinishReason
from headway.core.sequence import Sequence, SequenceStatus
from headway.core.step import StepPlan, StepResult, TokenScores
from headway.engine.admission import ModelLimits, check_submit
from headway.engine.arrivals import Arrivals
from headway.engine.compiled_grammar import CompiledGrammar
from headway.engine.compute import TokenSampler
from headway.engine.constrained import ConstrainedOutput
from headway.engine.constraint import is_constraining
from headway.engine.endings import ending_of_token, make_preemption_limit
from headway.engine.gauges import COUNTERS, read_gauges, read_grammars
from headway.engine.grammars import Grammars
from headway.engine.late_masks import LateMasks
from headway.engine.masks import MaskFiller
from headway.engine.meter import EngineMeter
from headway.engine.profile import RecordedRunner
from headway.engine.runner import Runner, to_event_error
from headway.engine.sampler import Sampler
from headway.engine.scheduling import make_scheduler, max_step_tokens
from headway.engine.shared_executor import SharedExecutor
from headway.engine.step_time import StepTime
from headway.engine.waiting_room import POLL_S, Guest, WaitingRoom
from headway.errors import (
    HeadwayError,
    InvalidRequest,
    InvariantBroken,
    NonFiniteLogits,
    OutOfMemory,
    UnsupportedFeature,
    WorkerDied,
    from_wire,
)
from headway.executor.base import Executor
from headway.scheduler.pace import Pace
from headway.text.grammar_compiler import error_of_field


class Engine:
    """The loop's state and its one step. Not thread-safe: one owner calls everything.

    Args:
        sampler: its token matrix has a row for each of config.max_num_seqs, at least max_model_len wide.
        end_token_ids: the model's own; they end a choice unless it ignores them.
        grammars: compiles those of constraints; None: constrained requests are refused.
        now: seconds, for the pace, ageing, and batches that wait.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        sampler: TokenSampler,
        kv_cache: KVCache,
        config: EngineConfig,
        max_model_len: int,
        end_token_ids: frozenset[int],
        grammars: Grammars | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limits = ModelLimits(
            vocab_size=executor.vocab_size,
            max_model_len=max_model_len,
            num_pool_tokens=kv_cache.num_blocks * kv_cache.block_size,
            scheduling_policy=config.scheduling_policy,
        )
        self.step_time = StepTime(max_step_tokens(config, max_model_len))
        """How long steps take; whoever loads the engine tells of the first one."""
        self._shared = executor if isinstance(executor, SharedExecutor) else None
        """Where other processes compute parts of the model."""
        # Of open sequences that are constrained.
        self._outputs: dict[Sequence, ConstrainedOutput] = {}
        masks = MaskFiller(sampler, self._outputs, end_token_ids) if isinstance(sampler, Sampler) else None
        self._late_masks = LateMasks(masks)
        self._bare_runner = Runner(executor, sampler, block_size=kv_cache.block_size, masks=masks)
        self._runner = RecordedRunner(self._bare_runner, executor)
        self._grammars = grammars if masks is not None else None
        self._waiting_room = WaitingRoom(now)
        self._is_queue_closed = False
        self._kv_cache = kv_cache
        self._pace = Pace(config.step_target_s)
        self._scheduler = make_scheduler(config, kv_cache, self._pace, now)
        self._now = now
        self._arrivals = Arrivals(
            seed=config.seed, end_token_ids=end_token_ids, now=now, forces_tokens=config.force_tokens
        )
        # Open requests: the sequences of each that have no terminal event yet.
        self._requests: dict[str, list[Sequence]] = {}
        # Made between steps, sent with the next one.
        self._events: list[wire.TokenEvent] = []
        self._answers: list[wire.Accepted | wire.Refused] = []
        self._prompt_logprobs: list[wire.PromptLogprobs] = []
        self._counts: Counter[str] = Counter()
        self._meter = EngineMeter(now)

    def submit(self, submit: wire.Submit) -> wire.Accepted | wire.Refused | None:
        """Takes a request, or says why not. None: that is told later, by take_answers(). Raises nothing for what a
        caller can do."""
        self._is_queue_closed = False
        try:
            if submit.request_id in self._requests or submit.request_id in self._waiting_room:
                raise InvalidRequest(f"request id {submit.request_id!r} is in use by an open request: choose another")
            max_total_tokens = check_submit(submit, self.limits)
            grammar = self._ask_grammar(submit.sampling.constraint)
            if grammar is not None and not grammar.is_done:
                self._waiting_room.add(Guest(submit, max_total_tokens, grammar, self._now()))
                return None
            return self._accept(submit, max_total_tokens, grammar)
        except HeadwayError as error:
            return self._refuse(submit.request_id, error, submit.sampling.constraint)

    def take_answers(self) -> list[wire.Accepted | wire.Refused]:
        """To requests that waited for their grammars, since the last call; to be told before the Step with which they
        come."""
        answers, self._answers = self._answers, []
        return answers

    def _ask_grammar(self, constraint: wire.Constraint | None) -> CompiledGrammar | None:
        """What a request waits for; None: nothing. Raises UnsupportedFeature."""
        if constraint is None or not is_constraining(constraint):
            return None
        if self._grammars is None:
            raise UnsupportedFeature("this model is run without a vocabulary: its answers cannot be constrained")
        return self._grammars.ask(constraint.grammar)

    def _refuse(self, request_id: str, error: HeadwayError, constraint: wire.Constraint | None = None) -> wire.Refused:
        self._counts["refused_total"] += 1
        told = error if constraint is None else error_of_field(error, constraint.param)
        return wire.Refused(request_id=request_id, error=told.to_wire())

    def _accept(self, submit: wire.Submit, max_total_tokens: int, grammar: CompiledGrammar | None) -> wire.Accepted:
        """Raises HeadwayError where the grammar failed."""
        if grammar is not None and grammar.error is not None:
            raise grammar.error
        sequences = self._arrivals.make_sequences(submit, max_total_tokens, self._kv_cache)
        if grammar is not None:
            for sequence, output in self._arrivals.constrain(sequences, grammar).items():
                self._outputs[sequence] = output
                self._late_masks.begin(sequence, output)
        self._requests[submit.request_id] = sequences
        for sequence in sequences:
            self._scheduler.add(sequence)
        self._counts["accepted_total"] += 1
        self._meter.submit(submit.sampling)
        self._counts["prompt_tokens_total"] += len(submit.prompt_token_ids)
        return wire.Accepted(request_id=submit.request_id)

    def _admit(self) -> None:
        """Who waited for a grammar that is there now, or will not be in time."""
        for guest, error in self._waiting_room.take():
            try:
                if error is not None:
                    raise error
                self._answers.append(self._accept(guest.submit, guest.max_total_tokens, guest.grammar))
            except HeadwayError as refusal:
                self._answers.append(self._refuse(guest.submit.request_id, refusal, guest.submit.sampling.constraint))
        if self._is_queue_closed and not self._waiting_room:
            self._scheduler.close()

    def close_queue(self) -> None:
        """Tells that nothing will be submitted before what waits has started: a batch need not wait to be full."""
        self._is_queue_closed = True
        if not self._waiting_room:
            self._scheduler.close()

    def abort(self, abort: wire.Abort) -> None:
        """Ends a request or one choice of it now; the terminal events come with the next step. One that waits for its
        grammar is refused, see take_answers(). Else ignored."""
        if self._waiting_room.remove(abort.request_id):
            why = f"the request was ended while its grammar was compiled: {abort.reason or abort.finish_reason}"
            self._answers.append(self._refuse(abort.request_id, InvalidRequest(why)))
        reason: FinishReason = "stop" if abort.finish_reason == "stop" else "abort"
        for sequence in tuple(self._requests.get(abort.request_id, ())):
            if abort.choice is None or abort.choice == sequence.choice:
                self._events.append(self._end(sequence, reason, stop_reason=abort.reason or None))

    def abort_all(self, reason: str) -> None:
        """Ends every open request."""
        for request_id in (*self._requests, *self._waiting_room):
            self.abort(wire.Abort(request_id=request_id, reason=reason))

    def hold(self, hold: wire.Hold) -> None:
        """Stops scheduling a request, or goes on with it. Unknown and finished ones are ignored."""
        for sequence in self._requests.get(hold.request_id, ()):
            sequence.is_held = hold.is_held

    def has_work(self) -> bool:
        """Whether step() would compute or tell something. False while all that is open is held.

        Raises WorkerDied where a process that computes a part of the model is gone.
        """
        if self._shared is not None:
            self._shared.check()
        if self._events or self._answers or self._waiting_room.has_news() or self._late_masks.has_news():
            return True
        return self._scheduler.has_work()

    def wait_s(self) -> float | None:
        """Seconds after which has_work() may be True without a message; None: only a message changes it."""
        if self._events or self._answers:
            return 0.0
        waits = [
            self._scheduler.wait_s(),
            WATCH_INTERVAL_S if self._shared is not None else None,
            POLL_S if self._waiting_room or self._late_masks else None,
        ]
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def step(self) -> wire.Step:
        """One step. Raises only what this engine cannot live on with (InvariantBroken, WorkerDied)."""
        if self._waiting_room:
            self._admit()
        for sequence, error in self._late_masks.take():
            if error is not None and _is_open(sequence):
                self._events.append(self._fail(sequence, error))
        plan = self._scheduler.schedule()
        for sequence in plan.started:
            if not sequence.num_preemptions:
                sequence.token_ids = list(sequence.token_ids)  # until now that of all choices: many may wait for long
        if plan.started:
            self._meter.start(plan.started)
        events, self._events = self._events, []
        for sequence in plan.over_limit:
            events.append(self._end(sequence, "error", error=make_preemption_limit(sequence)))
        # A plan without sequences too: it may tell of blocks of one that is held.
        made, num_tokens = self._run(plan)
        events += made
        self._counts["steps_total"] += 1
        self._counts["computed_tokens_total"] += num_tokens
        self._meter.step(num_tokens)
        return wire.Step(
            events=events,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_tokens=num_tokens,
            num_preemptions=len(plan.preempted),
            num_free_blocks=self._kv_cache.num_free_blocks,
            num_cached_blocks=self._kv_cache.num_cached_blocks,
        )

    def take_prompt_logprobs(self) -> list[wire.PromptLogprobs]:
        """What steps made of prompts since the last call; to be told before the Step that they came with."""
        taken, self._prompt_logprobs = self._prompt_logprobs, []
        return taken

    def pin_prefixes(self, prefixes: list[list[int]]) -> int:
        """Computes prefixes and keeps their whole blocks for good; returns how many blocks these are together.

        Blocks until they are computed; called before the first request, which then finds less of the cache to have.

        Raises:
            InvalidRequest: one that this model can not compute.
            HeadwayError: computing failed.
        """
        for number, prefix in enumerate(prefixes):
            self._compute(wire.Submit(request_id=f"warm-prefix-{number}", prompt_token_ids=prefix, sampling=_ONE_TOKEN))
            self._kv_cache.pin(prefix)
        self._counts.clear()
        self._meter.clear()
        self._kv_cache.num_prefix_queries = self._kv_cache.num_prefix_hits = 0
        num_pinned = self._kv_cache.num_pinned_blocks
        num_left = (self._kv_cache.num_blocks - num_pinned) * self._kv_cache.block_size
        self.limits = replace(self.limits, num_pool_tokens=num_left)
        return num_pinned

    def stats(self) -> wire.Stats:
        """Gauges, and counters (`*_total`) since the start."""
        gauges = read_gauges(len(self._requests), self._scheduler, self._kv_cache)
        counters = {name: self._counts[name] for name in COUNTERS}
        grammars = read_grammars(self._grammars, len(self._waiting_room))
        numbers = gauges | counters | grammars | self._meter.values() | self.step_time.values()
        return wire.Stats(values={name: float(value) for name, value in numbers.items()})

    def profile(self, num_steps: int) -> None:
        """Records the next steps in place of what was asked for before; 0: none."""
        self._runner.record(num_steps)

    def take_profile(self) -> list[wire.ProfiledStep] | None:
        """What was recorded since the last call; None: nothing is asked for, or all was taken."""
        return self._runner.take()

    def close(self) -> None:
        """Ends the side threads, and the other processes that compute the model, if there are any."""
        self._bare_runner.close()
        self._late_masks.close()
        if self._grammars is not None:
            self._grammars.close()
        if self._shared is not None:
            self._shared.close()

    def check(self) -> None:
        """Raises InvariantBroken unless every open sequence is in a queue, and queues, rows and blocks are sound."""
        self._scheduler.check()
        queued = {*self._scheduler.waiting, *self._scheduler.running}
        sequences = [sequence for request in self._requests.values() for sequence in request]
        if queued != set(sequences) or len(sequences) != len(queued) or not all(self._requests.values()):
            raise InvariantBroken(f"{len(sequences)} open sequences, but {len(queued)} are in the scheduler's queues")

    def _compute(self, submit: wire.Submit) -> None:
        """One request, alone, to its end. Raises what it is refused for or fails with."""
        answer = self.submit(submit)
        if isinstance(answer, wire.Refused):
            raise from_wire(answer.error)
        self.close_queue()
        while self.has_work():
            for event in self.step().events:
                if event.error is not None:
                    raise from_wire(event.error)

    def _run(self, plan: StepPlan) -> tuple[list[wire.TokenEvent], int]:
        """Executes a plan and applies its result. Returns the events, and how many tokens were computed."""
        started_at = self._now()
        try:
            result = self._runner.run(plan)
        except (InvariantBroken, WorkerDied):
            raise
        except MemoryError:
            error: HeadwayError = OutOfMemory("there was not enough memory to compute this step; try again later")
        except Exception as raised:  # the engine outlives what one step raises; each of its sequences is told
            error = to_event_error(raised, "computing a step")
        else:
            num_tokens = plan.total_tokens
            seconds = self._now() - started_at
            self._pace.note(plan.num_streams, num_tokens - plan.num_streams, seconds)
            self.step_time.note_plan(plan, seconds)
            return self._apply(plan, result), num_tokens
        self._counts["failed_steps_total"] += 1
        return [self._end(sequence, "error", error=error) for sequence in plan.sequences if _is_open(sequence)], 0

    def _apply(self, plan: StepPlan, result: StepResult) -> list[wire.TokenEvent]:
        """The failures first: what they computed must not be shared. Then tokens become events."""
        events = [self._fail(*failure) for failure in result.failures if _is_open(failure[0])]
        self._scheduler.complete(plan)
        for scores in result.scores:
            self._tell_scores(scores)
        if self._meter.awaits_tokens:
            self._meter.tokens(result.sequences)
        for sequence, token_id, logprobs in zip(result.sequences, result.token_ids, result.logprobs, strict=True):
            if not _is_open(sequence):
                continue  # padding
            if sequence in self._outputs:
                events += self._grow(sequence, token_id, logprobs)
                continue
            token_ids = sequence.token_ids
            if len(token_ids) >= sequence.max_total_tokens:  # only the prompt was wanted
                events.append(self._end(sequence, "length"))
                continue
            token_ids.append(token_id)
            if token_id in sequence.end_token_ids or len(token_ids) >= sequence.max_total_tokens:
                reason, stop_token = ending_of_token(sequence, token_id)
                events.append(
                    self._end(sequence, reason, token_ids=[token_id], logprobs=logprobs, stop_reason=stop_token)
                )
            else:
                cached = sequence.num_cached_tokens
                events.append(
                    wire.TokenEvent(
                        sequence.request_id, sequence.choice, [token_id], logprobs, num_cached_tokens=cached
                    )
                )
        self._counts["sampled_tokens_total"] += len(result.sequences) - len(plan.padding)
        self._counts["padding_tokens_total"] += len(plan.padding)
        return events

    def _grow(
        self, sequence: Sequence, token_id: int, logprobs: list[wire.TokenLogprobs] | None
    ) -> list[wire.TokenEvent]:
        """What a constrained sequence's sampled token makes of it."""
        output = self._outputs[sequence]
        try:
            growth = output.grow(sequence, token_id, logprobs)
        except Exception as raised:  # one request's grammar must not end the others
            return [self._fail(sequence, to_event_error(raised, "following the grammar of this request"))]
        self._counts["sampled_tokens_total"] -= not growth.is_used
        self._counts["forced_tokens_total"] += growth.num_forced
        ending = growth.ending
        if ending is not None:
            end = self._end(
                sequence,
                ending.reason,
                token_ids=growth.token_ids,
                logprobs=growth.logprobs,
                stop_reason=ending.stop_token,
                num_forced_tokens=growth.num_forced,
            )
            return [end]
        if growth.rewritten is not None:
            self._bare_runner.rewrite(sequence, growth.rewritten)
        self._late_masks.begin(sequence, output)
        if not growth.token_ids:
            return []
        event = wire.TokenEvent(
            sequence.request_id,
            sequence.choice,
            growth.token_ids,
            growth.logprobs,
            num_cached_tokens=sequence.num_cached_tokens,
            num_forced_tokens=growth.num_forced,
        )
        return [event]

    def _fail(self, sequence: Sequence, error: HeadwayError) -> wire.TokenEvent:
        """Ends a sequence that failed alone. One whose grammar is complete, so that no token was left to it, stops."""
        output = self._outputs.get(sequence)
        if output is not None and output.is_at_end and isinstance(error, NonFiniteLogits):
            return self._end(sequence, "stop")
        if output is not None and self._grammars is not None and isinstance(error, InvalidRequest):
            self._grammars.forget(output.constraint.compiled)
        if sequence.sampling.constraint is not None:
            error = error_of_field(error, sequence.sampling.constraint.param)
        return self._end(sequence, "error", error=error)

    def _tell_scores(self, scores: TokenScores) -> None:
        sequence, start, logprobs = scores
        if not _is_open(sequence):
            return
        if start < sequence.num_prompt_tokens:
            told = wire.PromptLogprobs(request_id=sequence.request_id, start=start, logprobs=logprobs)
            self._prompt_logprobs.append(told)
        else:
            self._outputs[sequence].score(logprobs)
        sequence.num_scored_tokens = start + len(logprobs)
        sequence.is_scored = sequence.num_scored_tokens >= sequence.num_to_score

    def _end(
        self,
        sequence: Sequence,
        finish_reason: FinishReason,
        *,
        token_ids: list[int] | None = None,
        logprobs: list[wire.TokenLogprobs] | None = None,
        stop_reason: int | str | None = None,
        error: HeadwayError | None = None,
        num_forced_tokens: int = 0,
    ) -> wire.TokenEvent:
        """Takes an open sequence out of everything; returns its terminal event."""
        if sequence.status is not SequenceStatus.FINISHED:
            self._scheduler.finish(
                sequence,
                is_poisoned=isinstance(error, NonFiniteLogits),
                is_complete=finish_reason in ("stop", "length"),
            )
        remaining = self._requests[sequence.request_id]
        remaining.remove(sequence)
        if not remaining:
            del self._requests[sequence.request_id]
        self._counts[f"finished_{finish_reason}_total"] += 1
        self._meter.end(sequence)
        self._outputs.pop(sequence, None)
        return wire.TokenEvent(
            sequence.request_id,
            sequence.choice,
            token_ids or [],
            logprobs,
            finish_reason,
            stop_reason,
            sequence.num_cached_tokens,
            None if error is None else error.to_wire(),
            num_forced_tokens,
        )


def _is_open(sequence: Sequence) -> bool:
    """Whether it still runs: a row that only pads its batch has had its terminal event."""
    return sequence.status is not SequenceStatus.FINISHED


_ONE_TOKEN = wire.Sampling(max_tokens=1, temperature=0.0)

WATCH_INTERVAL_S = 1.0
"""How long an idle engine may take to see that a rank is gone."""
