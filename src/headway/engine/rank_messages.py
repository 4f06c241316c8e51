"""What rank 0 and another rank say to each other, in frames of headway_wire over the socket pair that joins them.

    rank 0   RankLoad                      RankStep ...   end of file: the other ends
    other            RankHello  RankReady                 or RankFailed in the place of one of its two

Arrays are bytes of a fixed type: nothing is unpickled. Values of a step do not travel here but in the group itself.
"""

import socket
from collections.abc import Iterator

import msgspec
import numpy as np

import headway_wire as wire
from headway.config import EngineConfig
from headway.executor.base import StepArrays
from headway_wire.framing import FrameReader, pack_frame

_READ_BYTES = 256 * 1024


class RankLoad(msgspec.Struct, frozen=True, tag=True):
    """The first message: which part of which model."""

    source: str
    config: EngineConfig
    """Of one rank."""
    rank: int
    size: int
    meeting: str
    """The path of executor/meeting.Meeting."""
    num_blocks: int
    block_size: int
    kv_dtype: str


class RankStep(msgspec.Struct, frozen=True, tag=True):
    """StepArrays, as bytes; block_tables have a row for each of context_lens."""

    token_ids: bytes
    positions: bytes
    query_starts: bytes
    context_lens: bytes
    block_tables: bytes
    slots: bytes
    logit_rows: bytes


class RankHello(msgspec.Struct, frozen=True, tag=True):
    """It has the model's files open and is about to join the group."""


class RankReady(msgspec.Struct, frozen=True, tag=True):
    """It has loaded."""


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """It can not load, and ends when its socket does."""

    error: wire.Error


ToRank = RankLoad | RankStep
FromRank = RankHello | RankReady | RankFailed
_TO_RANK = msgspec.msgpack.Decoder(ToRank)
_FROM_RANK = msgspec.msgpack.Decoder(FromRank)


def pack(message: ToRank | FromRank) -> bytes:
    """The frame of a message."""
    return pack_frame(msgspec.msgpack.encode(message))


def read_to_rank(connection: socket.socket) -> Iterator[ToRank]:
    """Each message until the end of file. Raises OSError, FrameTooLarge, msgspec.DecodeError."""
    return map(_TO_RANK.decode, _read(connection))


def read_from_rank(connection: socket.socket) -> Iterator[FromRank]:
    """Each message until the end of file. Raises OSError, FrameTooLarge, msgspec.DecodeError."""
    return map(_FROM_RANK.decode, _read(connection))


def _read(connection: socket.socket) -> Iterator[bytes]:
    frames = FrameReader()
    while data := connection.recv(_READ_BYTES):
        yield from frames.feed(data)


def pack_step(step: StepArrays) -> bytes:
    """The frame of a step."""
    return pack(
        RankStep(
            token_ids=step.token_ids.astype(np.int32).tobytes(),
            positions=step.positions.astype(np.int32).tobytes(),
            query_starts=step.query_starts.astype(np.int32).tobytes(),
            context_lens=step.context_lens.astype(np.int32).tobytes(),
            block_tables=step.block_tables.astype(np.int32).tobytes(),
            slots=step.slots.astype(np.int64).tobytes(),
            logit_rows=step.logit_rows.astype(np.int32).tobytes(),
        )
    )


def unpack_step(message: RankStep) -> StepArrays:
    """The arrays again, read-only views of the message."""
    context_lens = np.frombuffer(message.context_lens, np.int32)
    return StepArrays(
        token_ids=np.frombuffer(message.token_ids, np.int32),
        positions=np.frombuffer(message.positions, np.int32),
        query_starts=np.frombuffer(message.query_starts, np.int32),
        context_lens=context_lens,
        block_tables=_table(np.frombuffer(message.block_tables, np.int32), len(context_lens)),
        slots=np.frombuffer(message.slots, np.int64),
        logit_rows=np.frombuffer(message.logit_rows, np.int32),
    )


def _table(flat: np.typing.NDArray[np.int32], num_rows: int) -> np.typing.NDArray[np.int32]:
    return flat.reshape(num_rows, -1) if num_rows else flat.reshape(0, 0)
