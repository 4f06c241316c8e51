"""SentencePiece's precompiled_charsmap: which strings are replaced by which before a text is cut into pieces.

    length of the trie in bytes, u32 | the trie: a double array of u32 | the replacements, each with a zero byte behind

A unit of the trie has: bit 31 or the low byte its label, bit 8 whether a value hangs on it, bits 10 to 30 and bit 9 the
offset of its children (Yata et al. 2007; darts-clone, as sentencepiece's normalizer.cc uses it).
"""

import numpy as np

from headway.errors import CorruptCheckpoint

_LABEL = (1 << 31) | 0xFF
_VALUE = (1 << 31) - 1


class CharacterMap:
    """Replaces, from left to right, the longest string that has a replacement.

    Args:
        charsmap: as the file has it.

    Raises:
        CorruptCheckpoint: the bytes are no such map.
    """

    def __init__(self, charsmap: bytes) -> None:
        size = int.from_bytes(charsmap[:4], "little")
        if len(charsmap) < 8 or size % 4 or not 4 <= size <= len(charsmap) - 4 or charsmap[-1]:
            raise CorruptCheckpoint(f"precompiled_charsmap of {len(charsmap)} bytes is no trie with its replacements")
        self._units: list[int] = np.frombuffer(charsmap, "<u4", size // 4, 4).tolist()
        self._texts = charsmap[4 + size :]

    def normalise(self, text: str) -> str:
        """The text with all replacements made."""
        data = text.encode()
        pieces = []
        at = 0
        while at < len(data):
            length, value = self._longest(data, at)
            if length:
                end = self._texts.find(b"\0", value)
                pieces.append(self._texts[value:end])
            else:
                length = _num_bytes(data[at])
                pieces.append(data[at : at + length])
            at += length
        return b"".join(pieces).decode(errors="replace")

    def _longest(self, data: bytes, at: int) -> tuple[int, int]:
        """How many bytes from `at` on have a replacement, and where it is; 0 for none."""
        units = self._units
        length = value = 0
        try:
            node = _offset(units[0])
            for end in range(at, len(data)):
                byte = data[end]
                node ^= byte
                unit = units[node]
                if unit & _LABEL != byte or not byte:
                    break
                node ^= _offset(unit)
                if unit >> 8 & 1:
                    length, value = end - at + 1, units[node] & _VALUE
        except IndexError:
            raise CorruptCheckpoint("precompiled_charsmap leads out of its trie") from None
        return length, value


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)


def _num_bytes(first: int) -> int:
    """Of the UTF-8 character that begins so."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
