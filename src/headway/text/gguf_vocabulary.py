"""A Vocabulary from tokenizer.ggml.* of a GGUF file: byte-level BPE (model gpt2), ids as llama.cpp's."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Stages

from headway.errors import CorruptCheckpoint, UnsupportedModel
from headway.text.pretokenizers import PreTokenizer, pre_tokenizer
from headway.text.source import GgufVocabulary
from headway.text.vocabulary import ControlToken, Vocabulary

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


def read_gguf_vocabulary(found: GgufVocabulary, end_token_ids: frozenset[int]) -> Vocabulary:
    """The vocabulary of a GGUF file; `end_token_ids` are control tokens even where the file calls them user defined.

    Raises UnsupportedModel for another tokenizer model or pre-tokenizer, CorruptCheckpoint for one that contradicts
    itself.
    """
    if found.model != "gpt2":
        raise UnsupportedModel(
            f"the GGUF file's tokenizer model is {found.model!r}; Headway reads gpt2 (byte-level BPE). "
            "Serve the model's Hugging Face folder, with its tokenizer.json, instead"
        )
    rules = pre_tokenizer(found.pre)
    types = _checked_types(found, end_token_ids)
    control = {
        text: ControlToken(token_id)
        for token_id, (text, kind) in enumerate(zip(found.tokens, types, strict=True))
        if kind in (_CONTROL, _UNKNOWN) and text
    }
    literal_ids = frozenset(token_id for token_id, kind in enumerate(types) if kind != _NORMAL)
    engine = _make_engine(found, types, control, rules)
    bos_token_id = found.bos_token_id if rules.has_bos else None
    adds_bos = rules.adds_bos if found.add_bos_token is None else found.add_bos_token
    return Vocabulary(
        merger=engine,
        later_merger=engine,
        can_cut=True,
        texts=found.tokens,
        spelling="bytes",
        literal_ids=literal_ids,
        control=control,
        special_ids=frozenset(token.token_id for token in control.values()),
        bos_token_id=bos_token_id,
        prefix=(bos_token_id,) if adds_bos and bos_token_id is not None else (),
        suffix=(found.eos_token_id,) if found.add_eos_token and found.eos_token_id is not None else (),
    )


def _checked_types(found: GgufVocabulary, end_token_ids: frozenset[int]) -> Sequence[int]:
    num_tokens, num_types = len(found.tokens), len(found.token_types)
    if num_types not in (0, num_tokens):
        raise CorruptCheckpoint(f"tokenizer.ggml.token_type has {num_types} entries for {num_tokens} tokens")
    for name, token_id in (
        ("bos_token_id", found.bos_token_id),
        ("eos_token_id", found.eos_token_id),
        ("unknown_token_id", found.unknown_token_id),
    ):
        if token_id is not None and not 0 <= token_id < num_tokens:
            raise CorruptCheckpoint(f"tokenizer.ggml.{name} is {token_id}, outside the {num_tokens} tokens")
    types = list(found.token_types) or [_NORMAL] * num_tokens
    for token_id in end_token_ids:
        # An end token that the file calls user defined would be read from any text.
        if 0 <= token_id < num_tokens and types[token_id] == _USER_DEFINED:
            types[token_id] = _CONTROL
    return types


def _make_engine(
    found: GgufVocabulary, types: Sequence[int], control: dict[str, ControlToken], rules: PreTokenizer
) -> Engine:
    """The library's tokenizer: it never sees control tokens, so no text can become one."""
    ids = {text: token_id for token_id, text in enumerate(found.tokens) if text and text not in control}
    if len(ids) + len(control) != len(found.tokens) - found.tokens.count(""):
        raise CorruptCheckpoint(f"tokenizer.ggml.tokens has the same token twice: {_first_double(found.tokens)!r}")
    engine = Engine(_make_merges(ids, _split_merges(found.merges), control, ignores_merges=rules.ignores_merges))
    stages = [Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    engine.pre_tokenizer = Stages([*stages, ByteLevel(add_prefix_space=False, use_regex=False)])
    engine.add_tokens(
        [
            AddedToken(text, normalized=False)
            for text, kind in zip(found.tokens, types, strict=True)
            if kind == _USER_DEFINED and text
        ]
    )
    return engine


def _make_merges(
    ids: dict[str, int], merges: list[tuple[str, str]], control: Mapping[str, ControlToken], *, ignores_merges: bool
) -> BPE:
    # What a merge makes must be checked here: the library does it by a panic, which ends more than the load.
    if {*map("".join, merges)} <= ids.keys():
        try:
            return BPE(ids, merges, ignore_merges=ignores_merges)
        except Exception:  # The library raises nothing narrower; which merge it is, is found below.
            pass
    for left, right in merges:
        # A merge that makes or takes a control token is left out; any other unknown one is a fault.
        if not {left, right, left + right} <= ids.keys() | control.keys():
            raise CorruptCheckpoint(f"tokenizer.ggml.merges joins {left!r} and {right!r}, which are not all tokens")
    usable = [pair for pair in merges if {*pair, "".join(pair)} <= ids.keys()]
    return BPE(ids, usable, ignore_merges=ignores_merges)


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


def _first_double(tokens: Sequence[str]) -> str | None:
    ordered = sorted(token for token in tokens if token)
    return next((one for one, other in zip_longest(ordered, ordered[1:]) if one == other), None)
