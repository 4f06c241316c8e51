"""A seeded corpus of damaged models, loaded one after another in a process of its own: python mutants.py ORIGINAL ...

Each mutant is loaded as a worker loads it: opened, matched, planned, packed, warmed up. What comes of it is counted by
class; whatever is no HeadwayError is an uncaught exception of this process, and what kills it is its death.
"""

import json
import os
import random
import resource
import signal
import struct
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from headway.config import EngineConfig
from headway.engine.loading import load_engine
from headway.errors import HeadwayError

SPECIAL = (0, 1, 2, 3, 7, 8, 31, 32, 33, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**33, 2**62, 2**63, 2**64 - 1)
MUTANT_LIMIT_S = 60
"""Of the clock: what is stuck ends here. What is slow is measured in processor time, whatever else the machine does."""
EXTRA_MEMORY = 512 * 1024 * 1024
CONFIG = EngineConfig(executor="native", threads=1, kv_cache_memory=1 << 20, max_num_batched_tokens=32, max_num_seqs=2)


def gguf_fields(data: bytes) -> Iterator[tuple[int, int]]:
    """(place, width) of each count, length, type, dimension and offset of a GGUF file, and of each number in it."""
    widths = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at = 24
    num_tensors, num_entries = struct.unpack_from("<QQ", data, 8)
    yield from ((4, 4), (8, 8), (16, 8))

    def text(at: int) -> int:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]

    for _ in range(num_entries):
        yield at, 8
        at = text(at)
        yield at, 4
        kind = struct.unpack_from("<I", data, at)[0]
        at += 4
        if kind == 9:
            yield from ((at, 4), (at + 4, 8))
            kind, count = struct.unpack_from("<IQ", data, at)
            at += 12
        else:
            count = 1
        for _ in range(count):
            yield at, widths.get(kind, 8)
            at = text(at) if kind == 8 else at + widths[kind]
    for _ in range(num_tensors):
        yield at, 8
        at = text(at)
        num_dims = struct.unpack_from("<I", data, at)[0]
        yield at, 4
        yield from ((at + 4 + 8 * dim, 8) for dim in range(num_dims))
        at += 4 + 8 * num_dims
        yield from ((at, 4), (at + 4, 8))
        at += 12


def mutate_gguf(data: bytes, fields: list[tuple[int, int]], seeded: random.Random) -> bytes:
    """One to three changes of a file."""
    changed = bytearray(data)
    header_bytes = fields[-1][0] + fields[-1][1]
    for _ in range(seeded.choice((1, 1, 1, 2, 3))):
        place, width = seeded.choice(fields)
        match seeded.randrange(7):
            case 0:  # a length, count, type or number
                changed[place : place + width] = (seeded.choice(SPECIAL) % 256**width).to_bytes(width, "little")
            case 1:  # the same, by a little
                value = int.from_bytes(changed[place : place + width], "little") + seeded.choice(
                    (-32, -2, -1, 1, 2, 32)
                )
                changed[place : place + width] = (value % 256**width).to_bytes(width, "little")
            case 2:  # a field of another: types swap, tensors overlap
                other, other_width = seeded.choice([field for field in fields if field[1] == width])
                changed[place : place + width] = data[other : other + other_width]
            case 3:
                _flip(changed, seeded.randrange(header_bytes), seeded)
            case 4:
                _flip(changed, seeded.randrange(len(changed)), seeded)
            case 5:  # a run of noise in the data: absurd scales, NaN and infinities
                at = seeded.randrange(header_bytes, len(changed))
                noise = seeded.choice((b"\xff", b"\x7c", b"\x00\x7e", seeded.randbytes(9)))
                changed[at : at + len(noise) * 8] = (noise * 8)[: len(changed) - at]
            case 6:
                del changed[seeded.randrange(len(changed)) :]
                return bytes(changed)
    return bytes(changed)


def mutate_safetensors(data: bytes, seeded: random.Random) -> bytes:
    """One change of the header's JSON, or of the bytes."""
    length = int.from_bytes(data[:8], "little")
    match seeded.randrange(5):
        case 0:
            changed = bytearray(data)
            for _ in range(seeded.randrange(1, 4)):
                _flip(changed, seeded.choice((seeded.randrange(8 + length), seeded.randrange(len(data)))), seeded)
            return bytes(changed)
        case 1:
            return data[: seeded.randrange(len(data))] + seeded.randbytes(seeded.choice((0, 0, 5)))
        case 2:
            return (seeded.choice((*SPECIAL, length - 1, length + 1)) % 2**64).to_bytes(8, "little") + data[8:]
        case _:
            header = json.loads(data[8 : 8 + length])
            _mutate_header(header, seeded)
            text = json.dumps(header).encode()
            return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _mutate_header(header: dict, seeded: random.Random) -> None:
    names = sorted(header.keys() - {"__metadata__"})
    name, other = seeded.choice(names), seeded.choice(names)
    entry = header[name]
    odd = (None, True, -1, 0.5, "x", [], {}, [[]], 10**30, *SPECIAL)
    match seeded.randrange(6):
        case 0:
            entry["dtype"] = seeded.choice(("F32", "F16", "BF16", "I8", "BOOL", "F4", "F64", "Q4_0", 7, None))
        case 1:
            entry["data_offsets"] = header[other]["data_offsets"]
        case 2:
            entry["data_offsets"][seeded.randrange(2)] = seeded.choice(odd)
        case 3:
            entry["shape"] = seeded.choice(
                ([], [0], [2**40, 2**40], list(reversed(entry["shape"])), seeded.choice(odd))
            )
        case 4:
            header[name.replace("0", "1", 1) if seeded.random() < 0.5 else "x" * 100_000] = header.pop(name)
        case 5:
            header[seeded.choice((name, "__metadata__"))] = seeded.choice(odd)


def _flip(data: bytearray, at: int, seeded: random.Random) -> None:
    data[at] ^= 1 << seeded.randrange(8)


def load(path: Path) -> str:
    """What comes of it: ok, or the class of the error."""
    try:
        load_engine(path, CONFIG, lambda message: None)
    except HeadwayError as error:
        if not error.message:
            raise AssertionError("an error without words") from error
        return type(error).__name__
    return "ok"


def mutants(original: Path, count: int) -> Iterator[tuple[int, Path]]:
    """(seed, model) one after another, each in the place of the one before."""
    work = original.parent
    file = original if original.is_file() else original / "model.safetensors"
    data = file.read_bytes()
    fields = list(gguf_fields(data)) if original.is_file() else []
    for seed in range(count):
        seeded = random.Random(f"{original.suffix} {seed}")
        made = mutate_gguf(data, fields, seeded) if fields else mutate_safetensors(data, seeded)
        part = work / "part"
        part.write_bytes(made)
        target = work / "mutant.gguf" if fields else file
        part.rename(target)  # a new file: one that is mapped still is left alone
        yield seed, target if fields else original


def main(originals: list[str]) -> None:
    """ORIGINAL COUNT ...: prints what came of each, as JSON."""
    warnings.simplefilter("error")
    found: dict[str, dict[str, object]] = {}
    for original, count in zip(map(Path, originals[::2]), map(int, originals[1::2]), strict=True):
        assert load(original) == "ok", "the original does not load"
        _limit_memory()
        outcomes: Counter[str] = Counter()
        slowest = 0.0
        for seed, path in mutants(original, count):
            print(original.name, seed, file=sys.stderr, flush=True)  # the last one told is the one that killed it
            signal.alarm(MUTANT_LIMIT_S)
            begun = time.process_time()
            outcomes[load(path)] += 1
            slowest = max(slowest, time.process_time() - begun)
        signal.alarm(0)
        found[original.name] = {"outcomes": outcomes, "slowest_s": slowest}
    print(json.dumps(found))


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_MEMORY, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(sys.argv[1:])
