"""A model of transformers and its tokenizer, from a folder, and the logits of texts or pairs of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from headway.predictors.options import invalid_config, num_threads, unsupported_model
from headway.predictors.torch_runner import find_device, find_dtype, set_threads
from headway_wire import PredictorError

_MAX_LISTED = 10


class TransformersOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model of the framework transformers."""

    type: str = "text-classification"
    """text-classification, token-classification, zero-shot-classification."""
    device: str = "auto"
    """auto, cpu, cuda:N."""
    dtype: str | None = None
    """What it is computed in: float32, bfloat16, float16; null: as the file has it."""
    threads: int | None = None
    """null: the cores that the process may use."""
    max_length: int | None = None
    """Tokens of a text; what is behind them is cut off. null: what the model has places for."""
    batch_size: int = 32
    """Texts that are computed at once at most."""
    aggregation: Literal["none", "simple", "first", "average", "max"] = "simple"
    """Of token-classification: how tokens become entities, in transformers' words (aggregation_strategy)."""
    candidate_labels: list[str] = []
    """Of zero-shot-classification: those of a request that names none."""
    hypothesis_template: str = "This example is {}."
    """Of zero-shot-classification: what a label is put into."""
    multi_label: bool = False
    """Of zero-shot-classification: each label is scored alone, and several may be right."""


class TransformersModel:
    """A loaded model; one thread calls it."""

    def __init__(self, model: Any, tokenizer: Any, options: TransformersOptions) -> None:
        import torch

        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.config = model.config
        self._threads = num_threads(options.threads)
        self._max_length = options.max_length or _num_places(model.config, tokenizer)
        # Without a token to pad with, texts of other lengths can not be computed together.
        self.batch_size = options.batch_size if tokenizer.pad_token is not None else 1
        self._torch = torch

    def logits(self, pairs: Sequence[tuple[str, str | None]]) -> Any:
        """[num_pairs, num_labels] in float32, on the CPU. Of a pair that is too long its first text is cut.

        Texts of about one length are computed together, so that little is padding.
        """
        order = sorted(range(len(pairs)), key=lambda place: sum(map(len, filter(None, pairs[place]))))
        rows: list[Any] = [None] * len(pairs)
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            for place, row in zip(places, self._logits_of([pairs[place] for place in places]), strict=True):
                rows[place] = row
        return self._torch.stack(rows) if rows else self._torch.zeros(0, self.config.num_labels)

    def facts(self) -> dict[str, Any]:
        """For people."""
        return {
            "architecture": type(self.model).__name__,
            "device": str(self.model.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "threads": self._threads,
            "num_parameters": self.model.num_parameters(),
            "max_length": self._max_length,
        }

    def _logits_of(self, pairs: Sequence[tuple[str, str | None]]) -> Any:
        has_second = any(second is not None for _, second in pairs)
        encoded = self.tokenizer(
            [first for first, _ in pairs],
            [second or "" for _, second in pairs] if has_second else None,
            padding=len(pairs) > 1,
            truncation="only_first" if has_second else True,
            max_length=self._max_length,
            return_tensors="pt",
        ).to(self.model.device)
        with self._torch.inference_mode():
            return self.model(**encoded).logits.float().cpu()


def load_model(folder: Path, auto_class: str, options: TransformersOptions) -> TransformersModel:
    """The model of the folder as transformers' `auto_class` makes it. Raises PredictorError.

    A head that the file has no weights for is an error: transformers would draw it at random.
    """
    check_folder(folder)
    if options.batch_size < 1:
        raise invalid_config(f"batch_size is {options.batch_size}; it must be 1 or more", "batch_size")
    set_threads(num_threads(options.threads))
    device, dtype = find_device(options.device), "auto" if options.dtype is None else find_dtype(options.dtype)
    model, tokenizer = from_pretrained(folder, auto_class, dtype)
    return TransformersModel(model.to(device), tokenizer, options)


def check_folder(folder: Path) -> None:
    """Raises PredictorError for what is no folder with a config and safetensors."""
    if not (folder / "config.json").is_file():
        raise unsupported_model(
            f"{folder} is no folder with a config.json, as save_pretrained() of transformers writes"
        )
    if not any(folder.glob("*.safetensors")):
        raise unsupported_model(
            f"{folder} has no safetensors, and other files of weights are not read: save_pretrained() writes them"
        )


def from_pretrained(folder: Path, auto_class: str, dtype: Any, *, needs_tokenizer: bool = True) -> tuple[Any, Any]:
    """Model and tokenizer (or None), read from the folder alone. Raises PredictorError with transformers' own words."""
    import transformers

    logs: Any = transformers.utils.logging
    logs.disable_progress_bar()  # nobody sees it, and a log is full of it
    own = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **own) if needs_tokenizer else None
        model, info = getattr(transformers, auto_class).from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **own
        )
    except Exception as error:  # of configs, tokenizers, safetensors and shapes, each of its own class
        words = " ".join(str(error).split())[:600]
        raise unsupported_model(f"{folder} can not be loaded as {auto_class}: {words}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        raise PredictorError(
            "TensorMismatch",
            f"{folder} has no weights for {', '.join(missing[:_MAX_LISTED])}{more} of {type(model).__name__}: it was"
            " made for another task",
        )
    return model, tokenizer


def _num_places(config: Any, tokenizer: Any) -> int:
    """Tokens of a text: as the tokenizer says, and not more than the model has positions."""
    places = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
    # RoBERTa's positions begin behind its padding index.
    offset = (getattr(config, "pad_token_id", None) or 0) + 1 if "roberta" in str(config.model_type) else 0
    return int(min(places - offset, tokenizer.model_max_length))
