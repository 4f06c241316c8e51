"""A GGUF file's tokenizer.* metadata as TextSource."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headway.checkpoint.fields import Fields
from headway.checkpoint.gguf import GgufFile
from headway.errors import CorruptCheckpoint, UnsupportedModel
from headway.text.source import GgufVocabulary, TextSource

_CONTROL, _USER_DEFINED = 3, 4
_END_TEXTS = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    ]
)
"""Control tokens that end a turn in the models that have them: llama.cpp's list (llama-vocab.cpp), in use because the
metadata of many files names only one of two."""
_HARMONY = (frozenset({"<|call|>", "<|calls|>"}), frozenset({"<|return|>", "<|flush|>"}))
"""In vocabularies with one of each, <|end|> ends a message inside a turn, not the turn."""
_PLAIN_S = frozenset({"<|tool_response>", "<|plamo:eos|>"})
"""Vocabularies in which </s> is an ordinary word."""
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ID_KEYS = (*_END_KEYS, "bos_token_id", "cls_token_id", "unknown_token_id", "padding_token_id", "seperator_token_id")
"""With the format's own spelling of separator."""
_DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0},
    "t5": {"eos_token_id": 1, "unknown_token_id": 2, "padding_token_id": 0},
    "bert": {"bos_token_id": 101, "unknown_token_id": 100, "seperator_token_id": 102, "padding_token_id": 0},
}
"""By the tokenizer's model: what llama.cpp takes where the file does not say."""
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""general.sampling.* in the words of generation_config.json."""


def read_vocabulary_file(path: Path) -> TextSource:
    """The text of a GGUF file that need not have weights."""
    return read_text(GgufFile(path))


def read_text(file: GgufFile, vocab_size: int | None = None) -> TextSource:
    """The tokenizer's data, end tokens, chat template and sampling defaults.

    `vocab_size` is the width of the logits; None: the number of tokens. Raises UnsupportedModel where the file has no
    tokenizer, CorruptCheckpoint where its parts do not belong together.
    """
    fields = Fields(file.metadata, str(file.file.path))
    if not fields.has("tokenizer.ggml.tokens"):
        raise UnsupportedModel(f"{fields.where} has no tokenizer (tokenizer.ggml.tokens)")
    vocabulary = _vocabulary(fields)
    num_tokens = len(vocabulary.tokens)
    if vocab_size is not None and num_tokens > vocab_size:
        raise CorruptCheckpoint(f"{fields.where} has {num_tokens} tokens, but token_embd.weight only {vocab_size} rows")
    return TextSource(
        vocabulary=vocabulary,
        vocab_size=num_tokens if vocab_size is None else vocab_size,
        end_token_ids=vocabulary.end_token_ids | _ends_by_text(vocabulary.tokens, vocabulary.token_types),
        chat_template=fields.string("tokenizer.chat_template") if fields.has("tokenizer.chat_template") else None,
        generation_defaults=_sampling_defaults(fields),
    )


def _vocabulary(fields: Fields) -> GgufVocabulary:
    tokens = _strings(fields, "tokens")
    num_tokens = len(tokens)
    token_types = _numbers(fields, "token_type", num_tokens) or [1] * num_tokens
    model = fields.string("tokenizer.ggml.model")
    ids = {key: _token_id(fields, key, num_tokens, _DEFAULT_IDS.get(model, {}).get(key)) for key in _ID_KEYS}
    return GgufVocabulary(
        model=model,
        pre=fields.string("tokenizer.ggml.pre", "default"),
        tokens=tokens,
        token_types=token_types,
        merges=_strings(fields, "merges"),
        scores=_numbers(fields, "scores", num_tokens),
        bos_token_id=ids["bos_token_id"] if ids["cls_token_id"] is None else ids["cls_token_id"],
        eos_token_id=ids["eos_token_id"],
        unknown_token_id=ids["unknown_token_id"],
        padding_token_id=ids["padding_token_id"],
        separator_token_id=ids["seperator_token_id"],
        add_separator_token=_flag(fields, "add_sep_token"),
        add_bos_token=_flag(fields, "add_bos_token"),
        add_eos_token=_flag(fields, "add_eos_token"),
        add_space_prefix=_flag(fields, "add_space_prefix"),
        remove_extra_whitespaces=_flag(fields, "remove_extra_whitespaces"),
        precompiled_charsmap=_charsmap(fields),
        lowercase=_flag(fields, "normalizer.lowercase") is not False,
        strip_accents=_flag(fields, "normalizer.strip_accents"),
        takes_space_after_control=any(word in fields.string("general.name", "").lower() for word in ("phi-3", "phi3")),
        end_token_ids=frozenset(end for key in _END_KEYS if (end := ids[key]) is not None),
    )


def _charsmap(fields: Fields) -> bytes:
    key = "tokenizer.ggml.precompiled_charsmap"
    value = fields.values.get(key)
    if value is None:
        return b""
    if not isinstance(value, np.ndarray) or value.dtype.itemsize != 1:
        fields.fail(key, "is not an array of bytes")
    return value.tobytes()


def _strings(fields: Fields, key: str) -> Sequence[str]:
    value = fields.values.get(f"tokenizer.ggml.{key}", [])
    if isinstance(value, np.ndarray) and value.size == 0:
        return []
    if not isinstance(value, list):
        fields.fail(f"tokenizer.ggml.{key}", "is not an array of strings")
    strings: list[str] = value
    return strings


def _numbers(fields: Fields, key: str, count: int) -> list[Any]:
    """The array's numbers, of which there must be `count`; empty where the key is not there."""
    value = fields.values.get(f"tokenizer.ggml.{key}")
    if value is None:
        return []
    if not isinstance(value, np.ndarray) or len(value) != count:
        fields.fail(f"tokenizer.ggml.{key}", f"is not an array of {count} numbers, one for each token")
    numbers: list[Any] = value.tolist()
    return numbers


def _token_id(fields: Fields, key: str, num_tokens: int, default: int | None) -> int | None:
    name = f"tokenizer.ggml.{key}"
    if not fields.has(name):
        return default if default is not None and default < num_tokens else None
    number = fields.integer(name, low=-1, high=(1 << 32) - 1)
    if number in (-1, (1 << 32) - 1):  # how files say: none
        return None
    if number >= num_tokens:
        fields.fail(name, f"is {number}, of {num_tokens} tokens")
    return number


def _flag(fields: Fields, key: str) -> bool | None:
    name = f"tokenizer.ggml.{key}"
    return fields.boolean(name) if fields.has(name) else None


def _ends_by_text(tokens: Sequence[str], token_types: Sequence[int]) -> frozenset[int]:
    found = {
        text: number
        for number, (text, kind) in enumerate(zip(tokens, token_types, strict=True))
        if text in _END_TEXTS and kind in (_CONTROL, _USER_DEFINED)
    }
    if all(marks & found.keys() for marks in _HARMONY):
        found.pop("<|end|>", None)
    if _PLAIN_S & set(tokens):
        found.pop("</s>", None)
    return frozenset(found.values())


def _sampling_defaults(fields: Fields) -> Mapping[str, float]:
    found = {}
    for key, word in _SAMPLING.items():
        name = f"general.sampling.{key}"
        if fields.has(name):
            value = fields.number(name, positive=False)
            found[word] = int(value) if word == "top_k" else value
    return found
