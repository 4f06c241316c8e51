"""Texts into token ids by a tokenizer.json, as models of texts want them: cut to a length, padded to the longest."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headway.predictors.options import file_inside, invalid_config, invalid_input, unsupported_model

COLUMNS: Mapping[str, str] = {
    "input_ids": "ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "type_ids",
}
"""What a text becomes, and what the tokenizers library calls it."""


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a text becomes input_ids, attention_mask and token_type_ids, each [num_texts, num_tokens] of INT64."""

    tokenizer: str = "tokenizer.json"
    """Its file in the model's folder."""
    max_length: int | None = 512
    """Tokens of a text, special ones included; what is behind them is cut off. None: all."""
    pads_to_max_length: bool = False
    """Every batch is max_length long; else as long as its longest text."""
    pad_id: int | None = None
    """None: what the file says, else 0."""


class TextEncoder:
    """A tokenizer, set up once; one thread calls it."""

    def __init__(self, folder: Path, options: TextOptions) -> None:
        """Raises PredictorError for a tokenizer that is not there or can not be read, and for bad lengths."""
        if options.max_length is not None and options.max_length < 1:
            raise invalid_config(f"text.max_length is {options.max_length}; it must be 1 or more", "text.max_length")
        if options.pads_to_max_length and options.max_length is None:
            raise invalid_config("text.pads_to_max_length needs text.max_length", "text.pads_to_max_length")
        self._tokenizer = _read_tokenizer(file_inside(folder, options.tokenizer, "text.tokenizer"))
        padding = self._tokenizer.padding or {}
        pad_id = options.pad_id if options.pad_id is not None else padding.get("pad_id", 0)
        self._tokenizer.no_truncation()
        if options.max_length is not None:
            self._tokenizer.enable_truncation(options.max_length)
        self._tokenizer.enable_padding(
            pad_id=pad_id,
            pad_token=self._tokenizer.id_to_token(pad_id) or "[PAD]",
            direction=padding.get("direction", "right"),
            length=options.max_length if options.pads_to_max_length else None,
        )

    def encode(
        self, texts: Sequence[str | tuple[str, str]], names: Collection[str] = tuple(COLUMNS)
    ) -> dict[str, np.ndarray]:
        """Those of COLUMNS that are named, of texts or pairs of texts."""
        # Not encode_batch: that tells where each token stands in its text, too.
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        return {
            name: np.array([getattr(encoding, attribute) for encoding in encodings], dtype=np.int64)
            for name, attribute in COLUMNS.items()
            if name in names
        }


def texts_of_value(value: Any) -> list[str]:
    """The texts of what /predict was given: one, or a list of them. Raises PredictorError for anything else."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not texts:
        raise invalid_input(f"the input is {_kind(value)}; it must be a text or a list of texts", "input_data")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise invalid_input(f"item {place} of the input is {_kind(text)}; it must be a text", "input_data")
    return list(texts)


def texts_of_array(array: np.ndarray, name: str) -> list[str]:
    """The texts of a BYTES tensor. Raises PredictorError for what is no UTF-8."""
    texts = []
    for place, item in enumerate(array.reshape(-1).tolist()):
        try:
            texts.append(item.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise invalid_input(f"element {place} of {name} is no UTF-8: {error}", name) from error
    return texts


def _kind(value: Any) -> str:
    return "an empty list" if isinstance(value, (list, tuple)) and not value else f"a {type(value).__name__}"


def _read_tokenizer(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise unsupported_model(
            "texts are read by tokenizers, which is not installed: pip install tokenizers"
        ) from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise unsupported_model(f"{path} is no tokenizer.json: {str(error)[:300]}") from error
