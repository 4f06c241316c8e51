"""A Hugging Face folder's tokenizer, generation and template files as TextSource."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.checkpoint.fields import Fields, read_json
from headway.checkpoint.huggingface_vocabulary import read_vocabulary
from headway.errors import CorruptCheckpoint, UnsupportedModel
from headway.text.source import GgufVocabulary, TextSource, TokenizerFiles

MAX_TOKENIZER_BYTES = 256 * 1024 * 1024
MAX_TEMPLATE_BYTES = 1024 * 1024
_NOT_READ = ("tekken.json", "sentencepiece.bpe.model", "spiece.model", "tiktoken.model", "vocab.json")


def read_text(folder: Path, config: Fields, vocab_size: int) -> TextSource:
    """The tokenizer, the union of all end tokens, the chat template and the sampling defaults.

    Raises UnsupportedModel where there is no tokenizer that is read, or it is code of the checkpoint's own.
    """
    tokenizer_config = _optional(folder / "tokenizer_config.json")
    if tokenizer_config.has("auto_map"):
        raise UnsupportedModel(f"{tokenizer_config.where} has an auto_map: Headway never runs a checkpoint's code")
    vocabulary = _vocabulary(folder, tokenizer_config, vocab_size)
    generation = _optional(folder / "generation_config.json")
    _check_sampling(generation)
    ends = config.token_ids("eos_token_id") | generation.token_ids("eos_token_id")
    if isinstance(vocabulary, TokenizerFiles):
        ends |= _end_by_text(vocabulary.tokenizer_json, tokenizer_config)
    else:
        ends |= vocabulary.end_token_ids
    if outside := [number for number in ends if number >= vocab_size]:
        config.fail("eos_token_id", f"has {outside[0]}, of {vocab_size} tokens")
    return TextSource(
        vocabulary=vocabulary,
        vocab_size=vocab_size,
        end_token_ids=ends,
        chat_template=_chat_template(folder, tokenizer_config),
        generation_defaults=generation.values,
    )


def _vocabulary(folder: Path, tokenizer_config: Fields, vocab_size: int) -> TokenizerFiles | GgufVocabulary:
    """tokenizer.json where it is there; else what the older files say."""
    tokenizer_json = folder / "tokenizer.json"
    if tokenizer_json.is_file():
        if tokenizer_json.stat().st_size > MAX_TOKENIZER_BYTES:
            raise CorruptCheckpoint(f"{tokenizer_json} has over {MAX_TOKENIZER_BYTES} bytes")
        return TokenizerFiles(tokenizer_json, tokenizer_config.values)
    vocabulary = read_vocabulary(folder, tokenizer_config, vocab_size)
    if vocabulary is None:
        others = [name for name in _NOT_READ if (folder / name).is_file()]
        hint = f": {others[0]} is not read, save the tokenizer again with transformers" if others else ""
        raise UnsupportedModel(
            f"{folder} has no tokenizer.json, tokenizer.model, vocab.txt, or vocab.json with merges.txt{hint}"
        )
    return vocabulary


def _optional(path: Path) -> Fields:
    return Fields.of_json(path) if path.is_file() else Fields({}, str(path))


def _check_sampling(generation: Fields) -> None:
    """What requests take as defaults must be numbers."""
    for key in ("temperature", "top_p", "min_p", "repetition_penalty"):
        if generation.has(key):
            generation.number(key, positive=False)
    if generation.has("top_k"):
        generation.integer("top_k", low=-1)


def _end_by_text(tokenizer_json: Path, tokenizer_config: Fields) -> frozenset[int]:
    """The id of tokenizer_config's eos_token, which may be a text or an object with it."""
    eos = tokenizer_config.values.get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    if text is None:
        return frozenset()
    if not isinstance(text, str):
        tokenizer_config.fail("eos_token", "is neither a string nor an object with content")
    found = {number for number, content in _added_tokens(tokenizer_json, tokenizer_config) if content == text}
    return frozenset(found)


def _added_tokens(tokenizer_json: Path, tokenizer_config: Fields) -> list[tuple[int, Any]]:
    """(id, text) of the tokens beside the vocabulary, from both files; end tokens are always among them."""
    found = []
    for key, entry in tokenizer_config.mapping("added_tokens_decoder").items():
        if not key.isdecimal() or len(key) > 9 or not isinstance(entry, dict):
            tokenizer_config.fail("added_tokens_decoder", f"has the entry {key[:50]!r}, not an id with an object")
        found.append((int(key), entry.get("content")))
    if found:
        return found
    tokenizer = read_json(tokenizer_json, max_bytes=MAX_TOKENIZER_BYTES)
    added = tokenizer.get("added_tokens", []) if isinstance(tokenizer, dict) else None
    if not isinstance(added, list):
        raise CorruptCheckpoint(f"{tokenizer_json}: added_tokens is not a list")
    for entry in added:
        fields = Fields(entry if isinstance(entry, dict) else {}, f"{tokenizer_json}: added_tokens")
        found.append((fields.integer("id", low=0), fields.string("content")))
    return found


def _chat_template(folder: Path, tokenizer_config: Fields) -> str | None:
    """In order: chat_template.jinja, chat_template.json, tokenizer_config.json. Of named ones the one named default."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            if jinja.stat().st_size > MAX_TEMPLATE_BYTES:
                raise CorruptCheckpoint(f"{jinja} has over {MAX_TEMPLATE_BYTES} bytes")
            return jinja.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CorruptCheckpoint(f"{jinja} cannot be read: {error}") from error
    beside = folder / "chat_template.json"
    if beside.is_file():
        return _template_of(Fields.of_json(beside))
    return _template_of(tokenizer_config)


def _template_of(fields: Fields) -> str | None:
    value = fields.values.get("chat_template")
    if isinstance(value, list):
        value = _named(fields, value).get("default")
    if value is not None and not isinstance(value, str):
        fields.fail("chat_template", "is neither a string nor a list of named ones")
    if value is not None and len(value) > MAX_TEMPLATE_BYTES:
        fields.fail("chat_template", f"has over {MAX_TEMPLATE_BYTES} characters")
    return value


def _named(fields: Fields, entries: list[Any]) -> Mapping[str, Any]:
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            fields.fail("chat_template", "is a list with an entry that has no name")
    return {entry["name"]: entry.get("template") for entry in entries}
