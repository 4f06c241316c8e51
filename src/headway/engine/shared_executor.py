"""SharedExecutor: rank 0's executor, and the other ranks behind it: each step is told to them and computed by all."""

from collections.abc import Callable

from msgspec import structs

from headway.engine.rank_messages import RankLoad, pack_step
from headway.engine.ranks import Ranks
from headway.errors import HeadwayError
from headway.executor.base import Executor, Float32, StepArrays
from headway.executor.meeting import Meeting
from headway.executor.op_times import OpTime, TimedExecutor


class SharedExecutor:
    """An Executor over a group of ranks. What fails on any of them ends the group: WorkerDied says why."""

    def __init__(self, own: Executor, ranks: Ranks) -> None:
        self.vocab_size = own.vocab_size
        self._own, self._ranks = own, ranks

    def execute(self, step: StepArrays) -> Float32:
        """Runs the step on all ranks. Logits [num_logit_rows, vocab_size], valid until the next call."""
        self._ranks.send(pack_step(step))
        try:
            logits = self._own.execute(step)
        except Exception as error:  # the others are inside the step, and what they wait for does not come
            raise self._ranks.explain(error) from error
        self._ranks.forget_meeting()
        return logits

    def check(self) -> None:
        """Raises WorkerDied if a rank has ended, which else shows only at the next step."""
        self._ranks.check()

    def time_ops(self, is_on: bool) -> None:
        """See TimedExecutor; of rank 0."""
        if isinstance(self._own, TimedExecutor):
            self._own.time_ops(is_on)

    def op_times(self) -> list[OpTime]:
        """Of rank 0's last step."""
        return self._own.op_times() if isinstance(self._own, TimedExecutor) else []

    def close(self) -> None:
        """Ends the other ranks."""
        self._ranks.close()


def start_shared(make_own: Callable[[Meeting], Executor], load: RankLoad) -> SharedExecutor:
    """Starts the other ranks and loads all parts at once; blocks.

    Args:
        make_own: joins the group and loads rank 0's part.
        load: what the others are told, but for rank and meeting.

    Raises:
        HeadwayError: what a rank fails with.
    """
    ranks = Ranks(load.size)
    path = ranks.folder / "meeting"
    try:
        ranks.load(lambda rank: structs.replace(load, rank=rank, meeting=str(path)))
        own = _make_own(make_own, Meeting(path, 0, ranks.size), ranks)
        ranks.wait_ready()
    except BaseException:
        ranks.close()
        raise
    return SharedExecutor(own, ranks)


def _make_own(make_own: Callable[[Meeting], Executor], meeting: Meeting, ranks: Ranks) -> Executor:
    try:
        return make_own(meeting)
    except HeadwayError:
        raise
    except RuntimeError as error:  # torch.distributed's: the others did not come
        raise ranks.explain(error) from error
