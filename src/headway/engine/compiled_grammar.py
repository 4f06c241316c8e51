"""CompiledGrammar: a grammar that is asked for: on its way at first, some time later done, or refused."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import llguidance

from headway.engine.constraint_tokens import ConstraintTokens
from headway.errors import CapacityError, HeadwayError, InternalError, InvalidRequest, QueueFull


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited, in seconds by the clock."""

    wait_s: float
    """For a grammar, from the Submit on; whoever waits longer is refused."""
    trial_s: float
    """For a grammar that is tried."""


ALONE = Patience(wait_s=60.0, trial_s=10.0)
"""Of a program with its own model, which asks for many grammars at once, and for which nothing is prepared."""
SERVED = Patience(wait_s=1.8, trial_s=1.2)
"""Of many who are served: all are answered within two seconds."""
MAX_COMPILE_CPU_S = 0.9
"""Of processor time. What takes more, and SERVED's time, is too large; what took less had no turn, and may be asked for
again."""

SLOW_MASK_S = 0.01
"""What a slow mask takes, of processor time. Those of schemas and of programming languages take 1 to 3 ms at most."""


class CompiledGrammar:
    """A grammar, or a vocabulary alone where its text is empty. Written by a side thread, `is_done` last.

    Args:
        asked_s: when it was asked for.
    """

    def __init__(self, text: str, asked_s: float, patience: Patience = ALONE) -> None:
        self.text = text
        self.num_bytes = len(text.encode())
        self.asked_s = asked_s
        """The last time; written by the engine's loop."""
        self.patience = patience
        self.tokens: ConstraintTokens | None = None
        self.matcher: llguidance.LLMatcher | None = None
        """At its beginning; only ever copied. None where the text is empty."""
        self.mask_s = 0.0
        """Processor time of its first masks together."""
        self.error: HeadwayError | None = None
        self.is_done = False
        self._compiling_s: Callable[[], float] | None = None

    @property
    def is_kept(self) -> bool:
        """Whoever asks again gets what there is; not where it failed for a reason that is not its own."""
        return not isinstance(self.error, InternalError | CapacityError)

    def begin_compiling(self) -> None:
        """Called by the thread that compiles it, as it begins."""
        self._compiling_s = _stopwatch()

    def refusal(self, waited_s: float) -> HeadwayError | None:
        """Why who waited so long cannot have it; None: it is there, or may still come."""
        if self.is_done:
            return self.error
        if waited_s <= SERVED.wait_s:
            return None
        if self._compiling_s is not None and self._compiling_s() > MAX_COMPILE_CPU_S:
            return InvalidRequest(
                f"the grammar of {len(self.text)} characters took over {MAX_COMPILE_CPU_S:g} s of processor time to "
                "compile: make the schema, the expression or the grammar smaller",
                param="structured_outputs",
            )
        return make_late(self) if waited_s > self.patience.wait_s else None


def make_late(grammar: CompiledGrammar) -> QueueFull:
    """The error of a grammar that had too little of the processor, for no fault of its own that is known."""
    return QueueFull(
        f"the grammar of {len(grammar.text)} characters could not be compiled within {grammar.patience.wait_s:g} s: "
        "others were before it, or the machine is busy; send the request again",
        retry_after_s=1.0,
    )


def _stopwatch() -> Callable[[], float]:
    """Tells any thread the processor time of this one from now on; where a system cannot, the time by the clock."""
    now = time.perf_counter
    if sys.platform == "linux":
        clock = time.pthread_getcpuclockid(threading.get_ident())
        now = lambda: time.clock_gettime(clock)  # noqa: E731
    begin_s = now()
    return lambda: now() - begin_s
