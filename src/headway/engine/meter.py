"""EngineMeter: how long each choice queued, computed its prompt and made its output, as histograms for Stats.

Times are the engine's, of one clock: from the end of a Submit to the last token. A choice that was preempted is not
started twice: what it waits then belongs to its prompt or its output. A choice that ends before its first token is
counted as far as it came.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import headway_wire as wire
from headway.core.sequence import Sequence
from headway.observe import number_histogram as histogram
from headway.observe.number_histogram import NumberHistogram


@dataclass(slots=True)
class _Times:
    started_s: float
    first_token_s: float | None = None


class EngineMeter:
    """Told by the engine of starts, tokens and ends. Costs nothing for a step in which nobody starts or ends."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: seconds, the clock of Sequence.arrival_s."""
        self._now = now
        self.clear()

    def clear(self) -> None:
        """Forgets all."""
        self._times: dict[Sequence, _Times] = {}
        self._unbegun: set[Sequence] = set()
        self._histograms = {spec.key: NumberHistogram(spec) for spec in histogram.ENGINE_HISTOGRAMS}

    @property
    def awaits_tokens(self) -> bool:
        """Whether tokens() may change anything."""
        return bool(self._unbegun)

    def submit(self, sampling: wire.Sampling) -> None:
        """A request was accepted."""
        self._observe(histogram.PARAMS_N, sampling.n)
        if sampling.max_tokens is not None:
            self._observe(histogram.PARAMS_MAX_TOKENS, sampling.max_tokens)

    def start(self, sequences: Iterable[Sequence]) -> None:
        """They take part in the next step; those that did before are known."""
        now = self._now()
        for sequence in sequences:
            if sequence not in self._times:
                self._times[sequence] = _Times(now)
                self._unbegun.add(sequence)
                self._observe(histogram.QUEUE_TIME, now - sequence.arrival_s)

    def step(self, num_tokens: int) -> None:
        """A step computed so many tokens."""
        if num_tokens:
            self._observe(histogram.STEP_SIZE, num_tokens)

    def tokens(self, sequences: Iterable[Sequence]) -> None:
        """Each of them gained a token."""
        begun = self._unbegun.intersection(sequences)
        now = self._now() if begun else 0.0
        for sequence in begun:
            times = self._times[sequence]
            times.first_token_s = now
            self._observe(histogram.PREFILL_TIME, now - times.started_s)
            self._observe(histogram.PREFILL_COMPUTED, sequence.num_prompt_tokens - sequence.num_cached_tokens)
        self._unbegun -= begun

    def end(self, sequence: Sequence) -> None:
        """It had its terminal event; once for each."""
        self._observe(histogram.PREEMPTIONS, sequence.num_preemptions)
        self._unbegun.discard(sequence)
        times = self._times.pop(sequence, None)
        if times is not None and times.first_token_s is not None:
            now = self._now()
            self._observe(histogram.DECODE_TIME, now - times.first_token_s)
            self._observe(histogram.INFERENCE_TIME, now - times.started_s)

    def values(self) -> dict[str, float]:
        """Of all histograms, for Stats."""
        return {key: value for each in self._histograms.values() for key, value in each.values().items()}

    def _observe(self, spec: histogram.HistogramSpec, value: float) -> None:
        self._histograms[spec.key].observe(value)
