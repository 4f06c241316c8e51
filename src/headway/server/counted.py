"""Work whose end is counted, however it ends: for the doors of encoders and of inferences."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headway.errors import ModelNotFound
from headway.observe.encoder_metrics import Outcome

T = TypeVar("T")


async def run_counted(work: Coroutine[Any, Any, T], count: Callable[[Outcome, T | None], None]) -> T:
    """What `work` returns or raises; `count` is told how it ended, and what it returned.

    A model that is not there is not counted: its name is the caller's.
    """
    outcome: Outcome | None = "abort"
    made: T | None = None
    try:
        made = await work
        outcome = "success"
        return made
    except ModelNotFound:
        outcome = None
        raise
    except Exception:
        outcome = "error"
        raise
    finally:
        if outcome is not None:
            count(outcome, made)
