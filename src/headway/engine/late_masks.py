"""LateMasks: masks that take so long that no step may wait for them. Their sequences run when theirs is there.

    begin(sequence)   where its mask is slow, or those of the next step take too long together, it is late: the
                      scheduler leaves it out; its matcher is a side thread's
    side thread       writes the mask into an array of its own
    take()            it is late no more, and its next step only copies the mask; or why there is none

What a sequence chooses does not depend on the steps that it is in, so neither on this.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from headway.core.sequence import Sequence
from headway.engine.constrained import ConstrainedOutput, Mask
from headway.engine.constraint import PARAM
from headway.engine.side_threads import give_way
from headway.errors import HeadwayError, InternalError, InvalidRequest

logger = logging.getLogger(__name__)

MAX_MASK_S = 0.05
"""Of processor time: a mask that takes longer ends its sequence, since those of an ambiguous grammar grow with each
token, and a core is lost to the others meanwhile."""

STEP_MASKS_S = 0.04
"""Of processor time, as they took it last: what a step's masks may take together. 64 outputs of usual schemas need a
tenth of it; 64 whose masks are just not slow would hold a step for 0.6 s."""


class Filler(Protocol):
    """What writes masks (engine/masks)."""

    @property
    def num_words(self) -> int:
        """Of a mask."""

    def fill(self, sequence: Sequence, output: ConstrainedOutput, mask: Mask) -> None:
        """Writes one. Raises HeadwayError."""


class LateMasks:
    """Owned by the engine's loop.

    Args:
        filler: None: there are no outputs that are constrained.
    """

    def __init__(self, filler: Filler | None) -> None:
        self._filler = filler
        self._pool: ThreadPoolExecutor | None = None
        self._done: deque[tuple[Sequence, HeadwayError | None]] = deque()
        self._num_begun = 0
        self._step_masks_s = 0.0
        """Of the masks that the next step will wait for."""

    def __len__(self) -> int:
        """Sequences that are late."""
        return self._num_begun

    def begin(self, sequence: Sequence, output: ConstrainedOutput) -> None:
        """Begins the mask of a constrained sequence's next token, where the next step cannot wait for it."""
        if self._filler is None or not output.needs_mask:
            return
        together_s = self._step_masks_s + output.mask_s
        if not output.is_slow and together_s <= STEP_MASKS_S:
            self._step_masks_s = together_s
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "late-masks", initializer=give_way)
        sequence.is_late = True
        self._num_begun += 1
        self._pool.submit(self._make, self._filler, sequence, output)

    def has_news(self) -> bool:
        """Whether take() would give something."""
        return bool(self._done)

    def take(self) -> Iterator[tuple[Sequence, HeadwayError | None]]:
        """Those who are late no more, and what those end with who have no mask. Called before each step."""
        self._step_masks_s = 0.0
        while self._done:
            sequence, error = self._done.popleft()
            sequence.is_late = False
            self._num_begun -= 1
            yield sequence, error

    def close(self) -> None:
        """Ends the side thread, behind the mask that it makes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _make(self, filler: Filler, sequence: Sequence, output: ConstrainedOutput) -> None:
        """In the side thread."""
        error: HeadwayError | None = None
        begin_s = time.thread_time()
        try:
            words = np.empty(filler.num_words, np.int32)
            filler.fill(sequence, output, Mask(words, words.ctypes.data))
            mask_s = time.thread_time() - begin_s
            output.note_mask(mask_s, words)
            if mask_s > MAX_MASK_S:
                error = make_too_slow(mask_s)
        except HeadwayError as raised:
            error = raised
        except BaseException as raised:  # a panic of the library too: the others go on
            logger.exception("a mask could not be made")
            error = InternalError(f"what may come next could not be told: {type(raised).__name__}")
        self._done.append((sequence, error))


def make_too_slow(mask_s: float) -> InvalidRequest:
    """What a sequence ends with whose mask took so long."""
    return InvalidRequest(
        f"{PARAM} cannot be enforced any further: to tell what may come next took {mask_s * 1e3:.0f} ms of processor "
        f"time, and may take {MAX_MASK_S * 1e3:.0f}; make the grammar less ambiguous, or its repetitions shorter",
        param=PARAM,
    )
