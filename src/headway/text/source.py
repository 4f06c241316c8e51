"""Where a tokenizer comes from: filled by checkpoint/, read by tokenizer.py. Data only, no file formats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """tokenizer.ggml.* of a GGUF file, or what a SentencePiece file says in its words."""

    model: str
    """gpt2 (byte-level BPE), llama (SentencePiece's BPE), t5 (its Unigram), bert (WordPiece), gemma4."""
    pre: str
    """Name of the pre-tokenizer; "default" where the file has none."""
    tokens: Sequence[str]
    token_types: Sequence[int]
    """1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte."""
    merges: Sequence[str]
    scores: Sequence[float] = ()
    bos_token_id: int | None = None
    unknown_token_id: int | None = None
    padding_token_id: int | None = None
    add_bos_token: bool | None = None
    """None: the file does not say."""
    add_eos_token: bool | None = None
    add_space_prefix: bool | None = None
    end_token_ids: frozenset[int] = frozenset()
    """eos, eot and eom, as far as the file names them."""
    eos_token_id: int | None = None
    """The one that a template's eos_token is, and that add_eos_token adds."""
    separator_token_id: int | None = None
    """Behind a text (bert), and between two of a pair."""
    add_separator_token: bool | None = None
    """A pair has the separator between its texts beside the end of the first; None: the file does not say."""
    remove_extra_whitespaces: bool | None = None
    """Of several spaces one is left, at the ends none."""
    precompiled_charsmap: bytes = b""
    """SentencePiece's rules of normalisation; empty: none."""
    lowercase: bool = True
    """A text is read in lower case (bert)."""
    strip_accents: bool | None = None
    """None: as lowercase."""
    takes_space_after_control: bool = False
    """White space behind a control token belongs to it (Phi-3)."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A Hugging Face folder's tokenizer files."""

    tokenizer_json: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    """tokenizer_config.json, or empty."""


@dataclass(frozen=True, slots=True)
class TextSource:
    """All that a model's text needs."""

    vocabulary: GgufVocabulary | TokenizerFiles
    vocab_size: int
    """Width of the logits; may be over the number of tokens that have a text."""
    end_token_ids: frozenset[int]
    """Union of config, generation_config and the file's eos, eot and eom."""
    chat_template: str | None = None
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)
    """generation_config.json (temperature, top_p, top_k, repetition_penalty, ...), or empty."""
