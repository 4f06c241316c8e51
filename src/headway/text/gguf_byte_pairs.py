"""Vocabularies with merges by rank: byte-level BPE (model gpt2), and BPE that spells a space ▁ (model gemma4)."""

import re
from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Stages

from headway.errors import CorruptCheckpoint
from headway.text.gguf_tokens import NORMAL, GgufTokens
from headway.text.piece_merger import SPACE, PieceMerger
from headway.text.pretokenizers import PreTokenizer, pre_tokenizer
from headway.text.vocabulary import ControlToken, Vocabulary

_LINES = re.compile(r"\n+|[^\n]+")


def read_byte_pairs(tokens: GgufTokens) -> Vocabulary:
    """Byte-level BPE. Raises UnsupportedModel for a pre-tokenizer that Headway does not have."""
    found = tokens.found
    rules = pre_tokenizer(found.pre)
    engine = _make_byte_level(tokens, rules)
    prefix, suffix = tokens.prefix(adds_bos=rules.adds_bos) if rules.has_bos else (), tokens.suffix()
    return Vocabulary(
        merger=engine,
        later_merger=engine,
        can_cut=True,
        texts=found.tokens,
        spelling="bytes",
        literal_ids=frozenset(token_id for token_id, kind in enumerate(tokens.types) if kind != NORMAL),
        control=tokens.control,
        special_ids=tokens.special_ids,
        bos_token_id=found.bos_token_id if rules.has_bos else None,
        prefix=prefix,
        suffix=suffix,
        pair=tokens.pair(prefix, suffix),
    )


def read_spaced_pairs(tokens: GgufTokens) -> Vocabulary:
    """Gemma 4's: merges over whole lines in which a space is ▁, bytes for what is no token, always a BOS."""
    found = tokens.found
    ids = tokens.plain
    model = _make_merges(ids, _split_merges(found.merges), tokens.control, ignores_merges=False, byte_fallback=True)
    engine = Engine(model)

    def merge(text: str) -> list[int]:
        merged: list[int] = []
        for line in _LINES.findall(text.replace(" ", SPACE)):
            # A run of line ends may be a token that no merges make.
            merged += [ids[line]] if line[0] == "\n" and line in ids else engine.encode(line).ids
        return merged

    return tokens.vocabulary(
        PieceMerger(tokens.user_defined, merge),
        can_cut=True,
        prefix=() if found.bos_token_id is None else (found.bos_token_id,),
        suffix=tokens.suffix(),
        byte_ids=tokens.byte_ids,
    )


def _make_byte_level(tokens: GgufTokens, rules: PreTokenizer) -> Engine:
    """The library's tokenizer: it never sees control tokens, so no text can become one."""
    merges = _split_merges(tokens.found.merges)
    engine = Engine(_make_merges(tokens.plain, merges, tokens.control, ignores_merges=rules.ignores_merges))
    stages = [Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    engine.pre_tokenizer = Stages([*stages, ByteLevel(add_prefix_space=False, use_regex=False)])
    engine.add_tokens([AddedToken(text, normalized=False) for text in tokens.user_defined])
    return engine


def _make_merges(
    ids: dict[str, int],
    merges: list[tuple[str, str]],
    control: Mapping[str, ControlToken],
    *,
    ignores_merges: bool,
    byte_fallback: bool = False,
) -> BPE:
    # What a merge makes must be checked here: the library does it by a panic, which ends more than the load.
    if {*map("".join, merges)} <= ids.keys():
        try:
            return BPE(ids, merges, ignore_merges=ignores_merges, byte_fallback=byte_fallback)
        except Exception:  # The library raises nothing narrower; which merge it is, is found below.
            pass
    for left, right in merges:
        # A merge that makes or takes a control token is left out; any other unknown one is a fault.
        if not {left, right, left + right} <= ids.keys() | control.keys():
            raise CorruptCheckpoint(f"tokenizer.ggml.merges joins {left!r} and {right!r}, which are not all tokens")
    usable = [pair for pair in merges if {*pair, "".join(pair)} <= ids.keys()]
    return BPE(ids, usable, ignore_merges=ignores_merges, byte_fallback=byte_fallback)


def _split_merges(merges: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs in order of rank, each once: of a pair that stands twice the first rank counts."""
    pairs = []
    for merge in dict.fromkeys(merges):
        left, space, right = merge.partition(" ")
        if not left:  # The first character may itself be a space.
            left, space, right = merge[1:].partition(" ")
            left = merge[0] + left if merge else ""
        if not space:
            raise CorruptCheckpoint(f"tokenizer.ggml.merges has {merge!r}, which is no pair")
        pairs.append((left, right))
    return pairs
