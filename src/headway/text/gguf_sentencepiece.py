"""SentencePiece's vocabularies: BPE by score (model llama) and Unigram (model t5), ids as llama.cpp's.

A text that begins, or goes on behind a token that is not plain text, gets a space in front where add_space_prefix says.
"""

import re
from collections.abc import Callable

from tokenizers import Tokenizer as Engine
from tokenizers.models import Unigram

from headway.errors import CorruptCheckpoint
from headway.text.character_map import CharacterMap
from headway.text.gguf_tokens import NORMAL, UNUSED, USER_DEFINED, GgufTokens
from headway.text.piece_merger import SPACE, PieceMerger, ScoreMerger
from headway.text.vocabulary import ControlToken, Vocabulary

_RUN = re.compile(" {2,}")
_TAKE_NO_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Of Phi-3's control tokens those that leave the white space behind them."""
_TAKES_SPACE_BEFORE = "<mask>"
_HIDDEN = "\uffff"
"""No character."""


def read_scored_pairs(tokens: GgufTokens) -> Vocabulary:
    """Model llama."""
    found = tokens.found
    _check_scores(tokens)
    pieces = {
        text: (score, token_id)
        for token_id, (text, kind, score) in enumerate(zip(found.tokens, tokens.types, found.scores, strict=True))
        if kind in (NORMAL, USER_DEFINED, UNUSED) and text
    }
    byte_ids = {byte: token_id for token_id, byte in tokens.byte_ids.items()}
    merger = ScoreMerger(pieces, byte_ids, found.unknown_token_id)
    return _vocabulary(tokens, merger.merge, adds_space=found.add_space_prefix is not False, adds_bos=True)


def read_unigram(tokens: GgufTokens) -> Vocabulary:
    """Model t5."""
    found = tokens.found
    _check_scores(tokens)
    if found.unknown_token_id is None:
        raise CorruptCheckpoint("a Unigram vocabulary has no unknown_token_id")
    # The library finds whatever has a text; what is no plain token gets one that no text has.
    pieces = [
        (text, score) if kind == NORMAL and text else (f"{_HIDDEN}{token_id}", 0.0)
        for token_id, (text, kind, score) in enumerate(zip(found.tokens, tokens.types, found.scores, strict=True))
    ]
    engine = Engine(Unigram(pieces, unk_id=found.unknown_token_id, byte_fallback=False))

    def merge(text: str) -> list[int]:
        ids: list[int] = engine.encode(text.replace(_HIDDEN, "\ufffd")).ids if text else []
        return ids

    return _vocabulary(tokens, merge, adds_space=bool(found.add_space_prefix), adds_bos=False, adds_eos=True)


def _vocabulary(
    tokens: GgufTokens,
    merge: Callable[[str], list[int]],
    *,
    adds_space: bool,
    adds_bos: bool,
    adds_eos: bool = False,
) -> Vocabulary:
    normalise = _normaliser(tokens, adds_space=adds_space)
    prefix, suffix = tokens.prefix(adds_bos=adds_bos), tokens.suffix(adds_eos=adds_eos)
    return tokens.vocabulary(
        PieceMerger(tokens.user_defined, lambda text: merge(normalise(text))),
        can_cut=False,
        control={text: _with_space(text, token, tokens) for text, token in tokens.control.items()},
        prefix=prefix,
        suffix=suffix,
        pair=tokens.pair(prefix, suffix),
        strips_leading_space=adds_space,
        byte_ids=tokens.byte_ids,
    )


def _normaliser(tokens: GgufTokens, *, adds_space: bool) -> Callable[[str], str]:
    """Text as its pieces spell it."""
    charsmap = tokens.found.precompiled_charsmap
    rules = CharacterMap(charsmap) if charsmap else None
    removes_spaces = tokens.found.remove_extra_whitespaces

    def normalise(text: str) -> str:
        if rules is not None:
            text = rules.normalise(text)
        if removes_spaces:
            text = _RUN.sub(" ", text).strip(" ")
        if adds_space and text:
            text = f" {text}"
        return text.replace(" ", SPACE)

    return normalise


def _check_scores(tokens: GgufTokens) -> None:
    num_scores, num_tokens = len(tokens.found.scores), len(tokens.found.tokens)
    if num_scores != num_tokens:
        raise CorruptCheckpoint(f"tokenizer.ggml.scores has {num_scores} entries for {num_tokens} tokens")


def _with_space(text: str, token: ControlToken, tokens: GgufTokens) -> ControlToken:
    return ControlToken(
        token.token_id,
        takes_space_before=text == _TAKES_SPACE_BEFORE,
        takes_space_after=tokens.found.takes_space_after_control and text not in _TAKE_NO_SPACE,
    )
