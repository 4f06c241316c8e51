"""The vocabulary of a Hugging Face folder that has no tokenizer.json, in the words of a GGUF file's.

Read are, in this order: tokenizer.model (SentencePiece: Llama, Gemma, T5), vocab.json with merges.txt (GPT-2, OPT) and
vocab.txt (BERT). Special tokens are those that tokenizer_config.json, special_tokens_map.json and added_tokens.json
name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from headway.checkpoint.fields import Fields, read_file, read_json
from headway.checkpoint.sentencepiece_file import read_sentencepiece
from headway.errors import CorruptCheckpoint
from headway.text.json_vocabulary import looks_like_control
from headway.text.source import GgufVocabulary

MAX_BYTES = 64 * 1024 * 1024
MAX_TOKENS = 1 << 24
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
_BERT = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_SPACE = "▁"
_FLAGS = ("add_bos_token", "add_eos_token")


def read_vocabulary(folder: Path, tokenizer_config: Fields, vocab_size: int) -> GgufVocabulary | None:
    """The folder's vocabulary without tokens whose ids are not under vocab_size; None where it has no such file.

    Raises CorruptCheckpoint for a file that is not what its name says, UnsupportedModel for a kind that is not read.
    """
    special = _special_texts(folder, tokenizer_config)
    if (folder / "tokenizer.model").is_file():
        found = _sentencepiece(folder / "tokenizer.model", special)
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        found = _byte_pairs(folder, special)
    elif (folder / "vocab.txt").is_file():
        found = _word_pieces(folder / "vocab.txt", _BERT | special, tokenizer_config)
    else:
        return None
    found = _with_added(found, folder, tokenizer_config, vocab_size)
    eos_token_id = _id_of(found.tokens, special.get("eos"))  # which may be one that was added
    if eos_token_id is None:
        eos_token_id = found.eos_token_id
    flags = {key: tokenizer_config.boolean(key) for key in _FLAGS if tokenizer_config.has(key)}
    return replace(
        found,
        add_bos_token=flags.get("add_bos_token", found.add_bos_token),
        add_eos_token=flags.get("add_eos_token", found.add_eos_token),
        eos_token_id=eos_token_id,
        end_token_ids=frozenset() if eos_token_id is None else frozenset({eos_token_id}),
    )


def _special_texts(folder: Path, tokenizer_config: Fields) -> dict[str, str]:
    """The texts of special tokens by their role (bos, eos, ...)."""
    found: dict[str, str] = {}
    beside = folder / "special_tokens_map.json"
    for fields in ([Fields.of_json(beside)] if beside.is_file() else []) + [tokenizer_config]:
        for role in _ROLES:
            value = fields.values.get(f"{role}_token")
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and text:
                found[role] = text
    return found


def _sentencepiece(path: Path, special: dict[str, str]) -> GgufVocabulary:
    file = read_sentencepiece(path)
    # What a user defined stands in texts as it is: with spaces.
    tokens = [
        text.replace(_SPACE, " ") if kind == _USER_DEFINED else text
        for text, kind in zip(file.pieces, file.types, strict=True)
    ]
    ids = {role: _id_of(tokens, special.get(role)) for role in ("bos", "eos", "unk", "pad")}
    ids = {role: file.ids[role] if found is None and file.ids[role] >= 0 else found for role, found in ids.items()}
    return GgufVocabulary(
        model="t5" if file.is_unigram else "llama",
        pre="default",
        tokens=tokens,
        token_types=file.types,
        merges=[],
        scores=file.scores,
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        unknown_token_id=ids["unk"],
        padding_token_id=ids["pad"],
        add_space_prefix=file.adds_space,
        remove_extra_whitespaces=file.removes_spaces,
        precompiled_charsmap=file.charsmap,
    )


def _byte_pairs(folder: Path, special: dict[str, str]) -> GgufVocabulary:
    path = folder / "vocab.json"
    tokens = _by_id(read_json(path, max_bytes=MAX_BYTES), path)
    lines = _lines(folder / "merges.txt")
    merges = [line for line in lines[1 if lines and lines[0].startswith("#version") else 0 :] if line]
    return GgufVocabulary(
        model="gpt2",
        pre="gpt-2",
        tokens=tokens,
        token_types=[_CONTROL if text in special.values() else _NORMAL if text else _UNUSED for text in tokens],
        merges=merges,
        bos_token_id=_id_of(tokens, special.get("bos")),
        eos_token_id=_id_of(tokens, special.get("eos")),
        unknown_token_id=_id_of(tokens, special.get("unk")),
        padding_token_id=_id_of(tokens, special.get("pad")),
    )


def _word_pieces(path: Path, special: dict[str, str], tokenizer_config: Fields) -> GgufVocabulary:
    lines = _lines(path)
    marks = set(special.values())
    strips = tokenizer_config.values.get("strip_accents")
    return GgufVocabulary(
        model="bert",
        pre="default",
        tokens=[
            text if text in marks or not text else text.removeprefix("##") if text.startswith("##") else _SPACE + text
            for text in lines
        ],
        token_types=[_CONTROL if text in marks else _NORMAL if text else _UNUSED for text in lines],
        merges=[],
        bos_token_id=_id_of(lines, special["cls"]),
        separator_token_id=_id_of(lines, special["sep"]),
        unknown_token_id=_id_of(lines, special["unk"]),
        padding_token_id=_id_of(lines, special["pad"]),
        lowercase=tokenizer_config.boolean("do_lower_case", True),
        strip_accents=strips if isinstance(strips, bool) else None,
    )


def _with_added(found: GgufVocabulary, folder: Path, tokenizer_config: Fields, vocab_size: int) -> GgufVocabulary:
    """The vocabulary with the tokens that were added to it, without those that the model has no row for."""
    tokens, types = list(found.tokens)[:vocab_size], list(found.token_types)[:vocab_size]
    for token_id, text, is_special in _added(folder, tokenizer_config):
        if token_id >= vocab_size:
            continue
        missing = token_id + 1 - len(tokens)
        tokens += [""] * missing
        types += [_UNUSED] * missing
        if types[token_id] not in (_CONTROL, _UNKNOWN):
            types[token_id] = _CONTROL if is_special or looks_like_control(text) else _USER_DEFINED
        tokens[token_id] = text
    scores = [*found.scores, *[0.0] * (len(tokens) - len(found.scores))][: len(tokens)] if found.scores else ()
    return replace(found, tokens=tokens, token_types=types, scores=scores)


def _added(folder: Path, tokenizer_config: Fields) -> Iterator[tuple[int, str, bool]]:
    """(id, text, whether it is special) of added tokens."""
    path = folder / "added_tokens.json"
    for text, token_id in (Fields.of_json(path).values if path.is_file() else {}).items():
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
            raise CorruptCheckpoint(f"{path} has {text[:50]!r}: {str(token_id)[:50]}, which is no id")
        yield token_id, text, False
    for key, entry in tokenizer_config.mapping("added_tokens_decoder").items():
        if not key.isdecimal() or len(key) > 8 or not isinstance(entry, dict):
            tokenizer_config.fail("added_tokens_decoder", f"has the entry {key[:50]!r}, not an id with an object")
        content = entry.get("content")
        if isinstance(content, str) and content and int(key) < MAX_TOKENS:
            yield int(key), content, entry.get("special") is True


def _by_id(vocabulary: object, path: Path) -> list[str]:
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise CorruptCheckpoint(f"{path} holds no object of ids by token")
    for text, token_id in vocabulary.items():
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
            raise CorruptCheckpoint(f"{path} has {text[:50]!r}: {str(token_id)[:50]}, which is no id")
    tokens = [""] * (max(vocabulary.values()) + 1)
    for text, token_id in vocabulary.items():
        tokens[token_id] = text
    return tokens


def _lines(path: Path) -> list[str]:
    try:
        return read_file(path, max_bytes=MAX_BYTES).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path} is not UTF-8: {error}") from error


def _id_of(tokens: Sequence[str], text: str | None) -> int | None:
    return tokens.index(text) if text is not None and text in tokens else None
