"""The fast path: a plain token goes from the worker's message to the client's connection in one call of native code.

    worker's bytes -> take_plain() -> FastStreams: id -> text -> event -> WriteQueue -> socket      what is plain
                             `-> what is left -> decode -> WorkerClient -> RequestStream -> ...      all else

Plain is a token of a stream of one choice that has nothing to look for in its text and nothing to tell of its tokens
(ChoiceAssembler.is_plain), as long as its reader sleeps, wants more, and puts each piece of text into the same event.
It is counted and written as on the usual way, byte for byte. Whatever happens else to a stream (an end, an error, a
reader who is behind or gone) makes it leave, and is dealt with as if there were no fast path.
"""

from headway._native import FastStream, FastStreams, TextEvents
from headway.core.sampling import SamplingParams
from headway.text.tokenizer import Tokenizer
from headway.worker.assembler import ChoiceAssembler


class FastPath:
    """One stream's. Counts what it took; the text that is not whole goes with the stream as it enters and leaves."""

    __slots__ = ("_choice", "_stream", "_streams", "_wire_id")

    def __init__(
        self,
        streams: FastStreams,
        wire_id: str,
        choice: ChoiceAssembler,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
    ) -> None:
        """
        Args:
            streams: of the worker that the stream is of.
            choice: the stream's one; it must be plain.
        """
        self._streams = streams
        self._wire_id = wire_id
        self._choice = choice
        self._stream = FastStream(tokenizer.spelling, skips_special=sampling.skip_special_tokens)

    def enter(self, events: TextEvents) -> None:
        """From now on plain tokens of the stream go into `events`; must be followed by leave()."""
        if not self._stream.is_open:
            self._stream.open(events, self._choice.held)
            self._streams.add(self._wire_id, self._stream)

    def leave(self) -> None:
        """The stream's tokens go the usual way from now on; not entered: nothing."""
        if self._stream.is_open:
            self._streams.remove(self._wire_id)
            self._choice.held = self._stream.close()

    @property
    def num_tokens(self) -> int:
        """Tokens that were taken."""
        return self._stream.num_tokens

    @property
    def num_forced(self) -> int:
        """Of these: those that were not sampled."""
        return self._stream.num_forced
