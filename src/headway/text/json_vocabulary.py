"""A Vocabulary from a Hugging Face folder's tokenizer.json.

Read are byte-level BPE, BPE and Unigram that spell a space ▁ (Llama 2; T5, XLM-R), and WordPiece (BERT).
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Engine

from headway.errors import CorruptCheckpoint, UnsupportedModel
from headway.text.source import TokenizerFiles
from headway.text.vocabulary import ControlToken, PairFrame, Spelling, Vocabulary, is_library_failure

_CONTROL_LOOK = re.compile(r"<\|.*\|>|<｜.*｜>", re.DOTALL)
MAX_TOKENS = 1 << 24
"""The largest vocabularies have a quarter of a million."""
_MAX_DEPTH = 32
_PARTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_MODELS = ("BPE", "Unigram", "WordPiece")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def read_json_vocabulary(files: TokenizerFiles) -> Vocabulary:
    """The vocabulary of a tokenizer.json.

    Raises CorruptCheckpoint for a file that is not one, UnsupportedModel for a model or decoder that is not read.
    """
    tree = _read_tree(files)
    spelling, strips_leading_space = _decoder(tree)
    engine = _make_engine(files, tree)
    later = _without_first_space(tree)
    texts = _texts(engine)
    added = [token for token in tree.get("added_tokens") or () if token.get("content")]
    literal_ids = frozenset(int(token["id"]) for token in added)
    if is_word_pieces := tree["model"].get("type") == "WordPiece":
        texts = _as_spaces(texts, literal_ids, str(tree["model"].get("continuing_subword_prefix") or "##"))
    bos_token_id = _config_token_id(engine, files.config, "bos_token")
    prefix, suffix = _around(engine)
    prefix = _wanted(prefix, bos_token_id, files.config.get("add_bos_token"))
    suffix = _wanted(suffix, _config_token_id(engine, files.config, "eos_token"), files.config.get("add_eos_token"))
    return Vocabulary(
        merger=engine,
        later_merger=engine if later is None else _make_engine(files, later),
        can_cut=spelling == "bytes" or is_word_pieces,
        texts=texts,
        spelling=spelling,
        literal_ids=literal_ids,
        control={
            token["content"]: ControlToken(int(token["id"]), bool(token.get("lstrip")), bool(token.get("rstrip")))
            for token in added
            if _is_control(token)
        },
        special_ids=frozenset(int(token["id"]) for token in added if token.get("special")),
        bos_token_id=bos_token_id if bos_token_id is not None or not prefix else prefix[0],
        prefix=prefix,
        suffix=suffix,
        pair=_pair_frame(engine),
        strips_leading_space=strips_leading_space,
        byte_ids=_byte_ids(texts, literal_ids) if spelling == "spaces" else {},
    )


def read_control_tokens(files: TokenizerFiles) -> frozenset[str]:
    """Texts of the control tokens, without building a tokenizer."""
    added = _read_tree(files).get("added_tokens") or ()
    return frozenset(token["content"] for token in added if token.get("content") and _is_control(token))


def looks_like_control(text: str) -> bool:
    """Whether a token is a control token by its look, as llama.cpp's converter has it: some turn marks have no flag."""
    return _CONTROL_LOOK.fullmatch(text) is not None


def _is_control(token: Mapping[str, Any]) -> bool:
    return bool(token.get("special")) or looks_like_control(token["content"])


def token_text_of(entry: object) -> str | None:
    """A special token of tokenizer_config.json: a text, or a dict that holds it."""
    if isinstance(entry, Mapping):
        entry = entry.get("content")
    return entry if isinstance(entry, str) and entry else None


def _read_tree(files: TokenizerFiles) -> dict[str, Any]:
    try:
        tree = json.loads(files.tokenizer_json.read_bytes())
    except (OSError, ValueError, RecursionError) as problem:
        raise CorruptCheckpoint(f"{files.tokenizer_json.name} cannot be read: {problem}") from problem
    if not isinstance(tree, dict) or not isinstance(tree.get("model"), dict):
        raise CorruptCheckpoint(f"{files.tokenizer_json.name} is no tokenizer: it has no model")
    kind = tree["model"].get("type", "BPE")
    if kind not in _MODELS:
        raise UnsupportedModel(f"the tokenizer's model is {str(kind)[:50]}; Headway reads {', '.join(_MODELS)}")
    _check_parts(files, tree)
    # A tokenizer that cuts or pads on its own would change a prompt without a word.
    tree["truncation"] = tree["padding"] = None
    return tree


def _check_parts(files: TokenizerFiles, tree: Mapping[str, Any]) -> None:
    """What is read here before the library has seen it. Raises CorruptCheckpoint."""
    name = files.tokenizer_json.name
    added = tree.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise CorruptCheckpoint(f"{name}: added_tokens is not a list of objects")
    for token in added:
        token_id, content = token.get("id"), token.get("content")
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS or not isinstance(content, str):
            raise CorruptCheckpoint(f"{name}: added_tokens has {str(token)[:200]}, which is no token")
    for part, inner in _PARTS.items():
        _check_stages(tree.get(part), inner, f"{name}: {part}")


def _check_stages(part: Any, inner: str, where: str, depth: int = 0) -> None:
    if part is None:
        return
    if depth > _MAX_DEPTH or not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise CorruptCheckpoint(f"{where} is not an object with a type, or nested over {_MAX_DEPTH} levels deep")
    stages = part.get(inner) or []
    if not isinstance(stages, list):
        raise CorruptCheckpoint(f"{where} has {inner} that are no list")
    for stage in stages:
        _check_stages(stage, inner, where, depth + 1)


def _make_engine(files: TokenizerFiles, tree: dict[str, Any]) -> Engine:
    """The library's tokenizer, told to take control tokens in a text as text."""
    added = [{**token, "special": _is_control(token)} for token in tree.get("added_tokens") or ()]
    try:
        engine = Engine.from_str(json.dumps({**tree, "added_tokens": added}))
    except BaseException as problem:  # The library raises nothing narrower.
        if not is_library_failure(problem):
            raise
        raise CorruptCheckpoint(f"{files.tokenizer_json.name} cannot be read: {problem}") from problem
    engine.encode_special_tokens = True
    return engine


def _stages(part: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    """A normalizer, pre-tokenizer or decoder, or the parts of a sequence of them."""
    if part is None:
        return
    if part.get("type") == "Sequence":
        for stage in part.get(inner) or ():
            yield from _stages(stage, inner)
    else:
        yield part


def _decoder(tree: Mapping[str, Any]) -> tuple[Spelling, bool]:
    """How tokens are spelt, and whether decoding takes a leading space away."""
    stages = list(_stages(tree.get("decoder"), "decoders"))
    kinds = {stage.get("type") for stage in stages}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return "bytes", False
    if kinds == {"WordPiece"}:
        return "spaces", True
    replaces = [stage for stage in stages if stage.get("type") == "Replace"]
    is_plain = all(stage.get("pattern") == {"String": "▁"} and stage.get("content") == " " for stage in replaces)
    if (replaces or "Metaspace" in kinds) and is_plain and kinds <= {
        "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace",
    }:  # fmt: skip
        strips = any(stage.get("type") == "Strip" and stage.get("start", 0) > 0 for stage in stages)
        prepends = any(
            stage.get("type") == "Metaspace" and stage.get("prepend_scheme", "always") != "never" for stage in stages
        )
        return "spaces", strips or prepends
    raise UnsupportedModel(
        f"the tokenizer's decoder is {' + '.join(str(stage.get('type')) for stage in stages) or 'missing'}; Headway "
        "reads ByteLevel, WordPiece, and Metaspace or Replace with ByteFallback"
    )


def _without_first_space(tree: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tokenizer for text behind a control token, where only the prompt's very first word gets a space."""
    if not any(
        stage.get("type") == "Metaspace" and stage.get("prepend_scheme") == "first"
        for stage in _stages(tree.get("pre_tokenizer"), "pretokenizers")
    ):
        return None
    later: dict[str, Any] = copy.deepcopy(dict(tree))
    for stage in _stages(later["pre_tokenizer"], "pretokenizers"):
        if stage.get("type") == "Metaspace":
            stage["prepend_scheme"] = "never"  # type: ignore[index]
    return later


def _texts(engine: Engine) -> list[str | None]:
    vocabulary: dict[str, int] = engine.get_vocab(with_added_tokens=True)
    num_texts = max(vocabulary.values(), default=-1) + 1
    if num_texts > MAX_TOKENS:
        raise CorruptCheckpoint(f"tokenizer.json has the token id {num_texts - 1}; ids up to {MAX_TOKENS - 1} are read")
    texts: list[str | None] = [None] * num_texts
    for text, token_id in vocabulary.items():
        texts[token_id] = text
    return texts


def _as_spaces(texts: Sequence[str | None], literal_ids: frozenset[int], prefix: str) -> list[str | None]:
    """WordPiece's tokens spelt as SentencePiece does: ▁ begins a word, and what continues one has no mark."""
    return [
        text
        if text is None or token_id in literal_ids
        else text.removeprefix(prefix)
        if text.startswith(prefix)
        else f"▁{text}"
        for token_id, text in enumerate(texts)
    ]


def _byte_ids(texts: Sequence[str | None], literal_ids: frozenset[int]) -> dict[int, int]:
    found = {}
    for token_id, text in enumerate(texts):
        if text is not None and token_id not in literal_ids and (match := _BYTE_TOKEN.fullmatch(text)):
            found[token_id] = int(match[1], 16)
    return found


def _around(engine: Engine) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the post-processor puts before and behind a text."""
    encoding = engine.encode("a", add_special_tokens=True)
    own = [place for place, mask in enumerate(encoding.special_tokens_mask) if not mask]
    if not own:
        return tuple(encoding.ids), ()
    return tuple(encoding.ids[: own[0]]), tuple(encoding.ids[own[-1] + 1 :])


def _pair_frame(engine: Engine) -> PairFrame | None:
    """What the post-processor puts around and between two texts; None where it puts nothing between them."""
    encoding = engine.encode("a", "a", add_special_tokens=True)
    places = [[at for at, of in enumerate(encoding.sequence_ids) if of == number] for number in (0, 1)]
    if not all(places) or any(encoding.special_tokens_mask[at] for own in places for at in own):
        return None
    (first, *_), (second, *_) = places
    end, ids = places[0][-1] + 1, encoding.ids
    if end == second:
        return None
    middle, suffix = tuple(ids[end:second]), tuple(ids[places[1][-1] + 1 :])
    return PairFrame(tuple(ids[:first]), middle, suffix, encoding.type_ids[second])


def _wanted(around: tuple[int, ...], token_id: int | None, is_wanted: object) -> tuple[int, ...]:
    """tokenizer_config.json's add_bos_token or add_eos_token has the last word on its token, if it says anything."""
    if token_id is None or not isinstance(is_wanted, bool):
        return around
    if is_wanted:
        return around if token_id in around else (token_id, *around)
    return tuple(other for other in around if other != token_id)


def _config_token_id(engine: Engine, config: Mapping[str, Any], name: str) -> int | None:
    text = token_text_of(config.get(name))
    found: int | None = None if text is None else engine.token_to_id(text)
    return found
