"""Tokenizer: a model's text <-> token ids. Made once a model; every method may be called from any thread.

A text is plain unless it is said to be otherwise: control tokens (BOS, turn marks, ...) that stand in it are encoded as
the characters that they are written with. They become control tokens in two ways: `parse_special=True`, and in a
RenderedPrompt outside the callers' own strings.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial

from headway import _native
from headway.errors import InternalError, InvalidRequest
from headway.text.byte_alphabet import alphabet_to_bytes
from headway.text.gguf_vocabulary import read_gguf_vocabulary
from headway.text.json_vocabulary import read_json_vocabulary
from headway.text.rendered import RenderedPrompt
from headway.text.source import GgufVocabulary, TextSource
from headway.text.vocabulary import ControlToken, Merger, Vocabulary, is_library_failure

_MAX_PART = 1 << 18
"""Characters that are given to the library at once; its regex engine gives up after ten million steps back."""
_PART_START = re.compile(r"(?<=\S) ")
"""Where every pattern of pretokenizers.py begins a new word: a space behind a word."""
_NO_CONTROL = re.compile(r"(?!)")


def check_encodable(text: str, param: str | None = None) -> None:
    """Raises InvalidRequest for a text with a lone surrogate, which has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise InvalidRequest(
            f"the text has a lone surrogate, U+{ord(text[problem.start]):04X}, at character {problem.start}: "
            "send well-formed Unicode",
            param=param,
        ) from None


class Tokenizer:
    """Ids and text of one model.

    Args:
        vocabulary: what its file was read into.
        vocab_size: width of the logits.
        end_token_ids: tokens that end an answer.
    """

    def __init__(self, vocabulary: Vocabulary, *, vocab_size: int, end_token_ids: frozenset[int]) -> None:
        self.vocab_size = vocab_size
        self.num_tokens = len(vocabulary.texts)
        """Ids below it may have a text; those from it to vocab_size have none."""
        self.bos_token_id = vocabulary.bos_token_id
        self.end_token_ids = end_token_ids
        self.special_token_ids = vocabulary.special_ids
        """What skip_special_tokens leaves out."""
        self.strips_leading_space = vocabulary.strips_leading_space
        self.prefix, self.suffix = vocabulary.prefix, vocabulary.suffix
        """The model's own ids around a text."""
        self.pair = vocabulary.pair
        """... and around two that are read as one."""
        self._vocabulary = vocabulary
        self._bytes: list[bytes | None] = [None] * self.num_tokens
        self.spelling = _native.TokenSpelling(
            self.num_tokens, partial(_spell, vocabulary), list(self.special_token_ids)
        )
        """token_bytes() for native code."""
        # The longest first, so that of two tokens that begin alike the longer is read.
        longest_first = sorted(vocabulary.control, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if longest_first else _NO_CONTROL

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Ids of a text.

        Args:
            text: plain text, or with parse_special also control tokens by their text.
            add_special_tokens: puts the model's own ids around it; BOS never twice.
            parse_special: reads control tokens from the text.

        Raises:
            InvalidRequest: the text has a lone surrogate.
        """
        check_encodable(text)
        ids = self._encode_marked(text, ()) if parse_special else self._encode_plain(text, is_first=True)
        if not add_special_tokens:
            return ids
        prefix, suffix = self._vocabulary.prefix, self._vocabulary.suffix
        if prefix and tuple(ids[: len(prefix)]) != prefix:
            ids = [*prefix, *ids]
        if suffix and (len(ids) < len(suffix) or tuple(ids[-len(suffix) :]) != suffix):
            ids.extend(suffix)
        return ids

    def encode_rendered(self, rendered: RenderedPrompt) -> list[int]:
        """Ids of a chat: control tokens are the template's, those in protected spans are text.

        The template alone decides on BOS; where its text begins with BOS twice, one is left out.
        """
        check_encodable(rendered.text, "messages")
        ids = self._encode_marked(rendered.text, rendered.protected)
        is_doubled = len(ids) > 1 and ids[0] == ids[1] == self.bos_token_id
        return ids[1:] if is_doubled else ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; empty for an id without a text."""
        if not 0 <= token_id < self.num_tokens:
            return b""
        found = self._bytes[token_id]
        if found is None:
            found = self._bytes[token_id] = _spell(self._vocabulary, token_id)
        return found

    def token_text(self, token_id: int) -> str:
        """A token decoded on its own: U+FFFD stands for what is no whole character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of ids as a whole: U+FFFD stands for bytes that are no character."""
        left_out = self.special_token_ids if skip_special_tokens else frozenset()
        text = b"".join(self.token_bytes(one) for one in token_ids if one not in left_out).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raises InvalidRequest that names the first id outside the vocabulary."""
        for place, token_id in enumerate(token_ids):
            if type(token_id) is not int or not 0 <= token_id < self.vocab_size:
                raise InvalidRequest(
                    f"{param}[{place}] is {token_id!r}; token ids are 0 to {self.vocab_size - 1}", param=param
                )

    def _encode_plain(self, text: str, *, is_first: bool) -> list[int]:
        """Ids of text without control tokens; is_first: it begins the prompt."""
        merger = self._vocabulary.merger if is_first else self._vocabulary.later_merger
        if len(text) <= _MAX_PART or not self._vocabulary.can_cut:
            return _merge(merger, text) if text else []
        return [token_id for part in _parts(text) for token_id in _merge(merger, part)]

    def _encode_marked(self, text: str, protected: Sequence[tuple[int, int]]) -> list[int]:
        """Ids of text whose control tokens count where they are not protected."""
        ids: list[int] = []
        start = 0
        for match, token in self._control_tokens(text, protected):
            plain = text[start : match.start()]
            if token.takes_space_before:
                plain = plain.rstrip()
            ids.extend(self._encode_plain(plain, is_first=not ids))
            ids.append(token.token_id)
            start = match.end()
            if token.takes_space_after:
                start = len(text) - len(text[start:].lstrip())
        ids.extend(self._encode_plain(text[start:], is_first=not ids))
        return ids

    def _control_tokens(
        self, text: str, protected: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[re.Match[str], ControlToken]]:
        gap_start = 0
        for start, end in (*protected, (len(text), len(text))):
            for match in self._control.finditer(text, gap_start, start):
                yield match, self._vocabulary.control[match[0]]
            gap_start = end


def _spell(vocabulary: Vocabulary, token_id: int) -> bytes:
    text = vocabulary.texts[token_id]
    if text is None:
        return b""
    if token_id in vocabulary.literal_ids:
        return text.encode()
    if vocabulary.spelling == "bytes":
        return alphabet_to_bytes(text)
    byte = vocabulary.byte_ids.get(token_id)
    return text.replace("▁", " ").encode() if byte is None else bytes((byte,))


def _merge(merger: Merger, text: str) -> list[int]:
    try:
        return merger.encode(text, add_special_tokens=False).ids
    except BaseException as problem:  # A panic (a pattern that gave up) would else end the thread that asked.
        if not is_library_failure(problem):
            raise
        raise InternalError(f"the tokenizer failed on a text of {len(text)} characters: {problem}") from problem


def _parts(text: str) -> Iterator[str]:
    """A long text in parts that are encoded as they would be together.

    A word of over _MAX_PART / 2 characters is cut all the same: the library's work on it would have no bound.
    """
    start = 0
    while len(text) - start > _MAX_PART:
        found = _PART_START.search(text, start + _MAX_PART // 2, start + _MAX_PART)
        end = found.start() if found else start + _MAX_PART
        yield text[start:end]
        start = end
    yield text[start:]


def make_tokenizer(source: TextSource) -> Tokenizer:
    """The tokenizer of a model.

    Raises UnsupportedModel for a kind that Headway does not have, CorruptCheckpoint for a file that contradicts itself.
    """
    if isinstance(source.vocabulary, GgufVocabulary):
        vocabulary = read_gguf_vocabulary(source.vocabulary, source.end_token_ids)
    else:
        vocabulary = read_json_vocabulary(source.vocabulary)
    return Tokenizer(vocabulary, vocab_size=source.vocab_size, end_token_ids=source.end_token_ids)
