"""StepRecorder: stands before a Runner for some steps, and keeps what took how long in each.

    step ------------------------------------------------
         arrays | ops of the executor, one by one | collect

Times are time.monotonic_ns(), which the executors' clocks are too.
"""

import time
from typing import Protocol

import headway_wire as wire
from headway.core.step import StepPlan, StepResult
from headway.executor.base import Executor
from headway.executor.op_times import OpTime, TimedExecutor


class StepRunner(Protocol):
    """engine/runner.Runner, or what stands before it."""

    def run(self, plan: StepPlan) -> StepResult:
        """Computes a plan."""
        ...


class StepRecorder:
    """A StepRunner that records num_steps steps with sequences; close() it."""

    def __init__(self, runner: StepRunner, executor: Executor, num_steps: int) -> None:
        self.runner = runner
        """The one behind it."""
        self._timed = executor if isinstance(executor, TimedExecutor) else None
        self._num_left = num_steps
        self._steps: list[wire.ProfiledStep] = []
        if self._timed is not None:
            self._timed.time_ops(True)

    @property
    def is_done(self) -> bool:
        """Whether all were recorded."""
        return self._num_left <= 0

    def run(self, plan: StepPlan) -> StepResult:
        """As the runner behind it. A step that raises is not recorded."""
        begin_ns = time.monotonic_ns()
        result = self.runner.run(plan)
        if plan.sequences and not self.is_done:
            self._num_left -= 1
            self._steps.append(self._record(plan, begin_ns, time.monotonic_ns()))
        return result

    def take(self) -> list[wire.ProfiledStep]:
        """What was recorded since the last call."""
        taken, self._steps = self._steps, []
        return taken

    def close(self) -> StepRunner:
        """Records no more; the runner that was behind it."""
        if self._timed is not None:
            self._timed.time_ops(False)
        return self.runner

    def _record(self, plan: StepPlan, begin_ns: int, end_ns: int) -> wire.ProfiledStep:
        ops = self._timed.op_times() if self._timed is not None else []
        spans = [wire.Span(op.name, op.values, op.begin_ns, op.end_ns) for op in _parts(ops, begin_ns, end_ns)]
        return wire.ProfiledStep(
            begin_ns=begin_ns,
            end_ns=end_ns,
            num_sequences=len(plan.sequences),
            num_tokens=plan.total_tokens,
            spans=spans,
        )


class RecordedRunner:
    """A StepRunner whose next steps may be recorded."""

    def __init__(self, runner: StepRunner, executor: Executor) -> None:
        self._runner = runner
        self._executor = executor

    def run(self, plan: StepPlan) -> StepResult:
        """Computes a plan."""
        return self._runner.run(plan)

    def record(self, num_steps: int) -> None:
        """Records the next steps in place of what was asked for before; 0: none."""
        if isinstance(self._runner, StepRecorder):
            self._runner = self._runner.close()
        if num_steps:
            self._runner = StepRecorder(self._runner, self._executor, num_steps)

    def take(self) -> list[wire.ProfiledStep] | None:
        """What was recorded since the last call; None: nothing is asked for, or all was taken."""
        if not isinstance(self._runner, StepRecorder):
            return None
        taken = self._runner.take()
        if self._runner.is_done and not taken:
            self.record(0)
            return None
        return taken


def _parts(ops: list[OpTime], begin_ns: int, end_ns: int) -> list[OpTime]:
    """The ops with what comes before and after them; without ops the step is one part."""
    if not ops:
        return [OpTime("execute", "", begin_ns, end_ns)]
    before = OpTime("arrays", "", begin_ns, ops[0].begin_ns)
    return [before, *ops, OpTime("collect", "", ops[-1].end_ns, end_ns)]
