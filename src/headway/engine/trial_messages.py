"""What a worker and the process that tries its callers' grammars say to each other, as frames."""

import socket
from collections.abc import Iterator

import msgspec

import headway_wire as wire
from headway_wire.framing import FrameReader, pack_frame

_READ_BYTES = 64 * 1024


class TrialVocabulary(msgspec.Struct, tag=True, frozen=True):
    """The first message; answered by a Verdict without an error, once grammars can come."""

    tokens: list[bytes]
    """What each adds to a text."""
    end_token_ids: list[int]
    special_token_ids: list[int]
    """Whose names a grammar may say."""


class TrialGrammar(msgspec.Struct, tag=True, frozen=True):
    """Answered by a Verdict."""

    text: str
    timeout_s: float


class Verdict(msgspec.Struct, tag=True, frozen=True):
    """What became of a grammar, or of the vocabulary."""

    error: wire.Error | None = None


ToTrial = TrialVocabulary | TrialGrammar
_TO_TRIAL = msgspec.msgpack.Decoder(ToTrial)
_VERDICT = msgspec.msgpack.Decoder(Verdict)


def pack(message: ToTrial | Verdict) -> bytes:
    """The frame of a message."""
    return pack_frame(msgspec.msgpack.encode(message))


def pack_verdict(verdict: Verdict) -> bytes:
    """Without a frame, for a pipe that has nothing else."""
    return msgspec.msgpack.encode(verdict)


def read_verdict(data: bytes) -> Verdict:
    """What pack_verdict() made. Raises msgspec.DecodeError."""
    return _VERDICT.decode(data)


def read_to_trial(connection: socket.socket) -> Iterator[ToTrial]:
    """Each message until the end of file. Raises OSError, FrameTooLarge, msgspec.DecodeError."""
    return map(_TO_TRIAL.decode, _read(connection))


def read_verdicts(connection: socket.socket) -> Iterator[Verdict]:
    """Each message until the end of file. Raises OSError, FrameTooLarge, msgspec.DecodeError."""
    return map(_VERDICT.decode, _read(connection))


def _read(connection: socket.socket) -> Iterator[bytes]:
    frames = FrameReader()
    while data := connection.recv(_READ_BYTES):
        yield from frames.feed(data)
