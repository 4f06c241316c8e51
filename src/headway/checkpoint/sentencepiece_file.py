"""A SentencePiece model file (tokenizer.model): its pieces, and how it normalises. Nothing else of it is read.

The file is a protobuf message, ModelProto of sentencepiece_model.proto; the numbers below are fields of it. Types of
pieces have the numbers that GGUF files took over.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headway.checkpoint.fields import read_file
from headway.errors import CorruptCheckpoint, UnsupportedModel

MAX_BYTES = 64 * 1024 * 1024
_PIECE, _TRAINER, _NORMALISER = 1, 2, 3
_KINDS = {1: "Unigram", 2: "BPE", 3: "words", 4: "characters"}
_MAX_VARINT_BYTES = 10
_BYTE = 6


@dataclass(slots=True)
class SentencePieceFile:
    """What the file says; what it leaves out has the format's default."""

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    is_unigram: bool = True
    ids: dict[str, int] = field(default_factory=lambda: {"unk": 0, "bos": 1, "eos": 2, "pad": -1})
    """-1: none."""
    charsmap: bytes = b""
    adds_space: bool = True
    removes_spaces: bool = True


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """Raises CorruptCheckpoint for a file that is none, UnsupportedModel for a kind that is not read."""
    found = SentencePieceFile()
    data = read_file(path, max_bytes=MAX_BYTES)
    try:
        for number, value in _fields(data):
            if isinstance(value, bytes):
                _take(found, number, value, path)
    except (ValueError, struct.error) as error:
        raise CorruptCheckpoint(f"{path} is no SentencePiece model: {error}") from error
    if not found.pieces:
        raise CorruptCheckpoint(f"{path} is no SentencePiece model: it has no pieces")
    if found.is_unigram and _BYTE in found.types:
        raise UnsupportedModel(f"{path} is a Unigram model with bytes, which is not read: save it with transformers")
    return found


def _take(found: SentencePieceFile, number: int, value: bytes, path: Path) -> None:
    if number == _PIECE:
        _take_piece(found, value)
    elif number == _TRAINER:
        _take_trainer(found, value, path)
    elif number == _NORMALISER:
        _take_normaliser(found, value, path)


def _take_piece(found: SentencePieceFile, data: bytes) -> None:
    text, score, kind = "", 0.0, 1
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            text = value.decode()
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    found.pieces.append(text)
    found.scores.append(score)
    found.types.append(kind)


def _take_trainer(found: SentencePieceFile, data: bytes, path: Path) -> None:
    numbers = {number: value for number, value in _fields(data) if isinstance(value, int)}
    kind = numbers.get(3, 1)
    if kind not in (1, 2):
        raise UnsupportedModel(f"{path} has the model type {_KINDS.get(kind, kind)}; BPE and Unigram are read")
    if numbers.get(24):
        raise UnsupportedModel(f"{path} writes spaces behind words, which is not read: save it with transformers")
    found.is_unigram = kind == 1
    for name, number in (("unk", 40), ("bos", 41), ("eos", 42), ("pad", 43)):
        found.ids[name] = _signed(numbers[number]) if number in numbers else found.ids[name]


def _take_normaliser(found: SentencePieceFile, data: bytes, path: Path) -> None:
    content = dict(_fields(data))
    charsmap = content.get(2, b"")
    found.charsmap = charsmap if isinstance(charsmap, bytes) else b""
    found.adds_space, found.removes_spaces = bool(content.get(3, 1)), bool(content.get(4, 1))
    if not content.get(5, 1):
        raise UnsupportedModel(f"{path} leaves spaces as they are, which is not read: save it with transformers")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of a message; a fixed-size value is its bytes. Raises ValueError where it ends too early."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"byte {at} begins a field of the kind {kind}")
        if at + length > len(data):
            raise ValueError(f"the field at byte {at} has {length} bytes, over the end")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        if at >= len(data):
            raise ValueError("a number is cut off at the end")
        value |= (data[at] & 0x7F) << (7 * place)
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError(f"the number before byte {at} is too long")
