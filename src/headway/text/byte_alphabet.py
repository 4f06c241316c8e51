"""GPT-2's byte alphabet: the 256 printable characters that byte-level vocabularies write bytes with.

Bytes that are printable Latin-1 characters stand for themselves; the others are U+0100, U+0101, ... in order
(openai/gpt-2, encoder.py: bytes_to_unicode).
"""

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def _make_alphabet() -> dict[str, int]:
    alphabet = {chr(byte): byte for byte in _PRINTABLE}
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    alphabet |= {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return alphabet


BYTE_OF_CHARACTER = _make_alphabet()
"""The byte that each of the 256 characters stands for."""

CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
"""The other way round."""


def alphabet_to_bytes(text: str) -> bytes:
    """The bytes that a byte-level token stands for; a character outside the alphabet stands for its own UTF-8."""
    try:
        return bytes(map(BYTE_OF_CHARACTER.__getitem__, text))
    except KeyError:
        pieces = (
            bytes((BYTE_OF_CHARACTER[character],)) if character in BYTE_OF_CHARACTER else character.encode()
            for character in text
        )
        return b"".join(pieces)
