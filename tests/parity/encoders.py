"""Small random encoders as transformers saves them, every weight noisy, with sentence-transformers' files beside."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = (
    "the a cat dog sat on mat ran to store and bought milk stock markets fell today reset password login help kitten "
    "small is playing ##s ##ing ##ed ##er ##ly un ##able . , ! ? hello world"
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = 160
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
ARCHITECTURES = {
    "bert": ("BertModel", {}),
    "bert-mlm": ("BertForMaskedLM", {"hidden_act": "gelu_new", "type_vocab_size": 3}),
    "roberta": ("RobertaModel", {"pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRobertaModel", {"pad_token_id": 0, "type_vocab_size": 1}),
    "distilbert": ("DistilBertModel", {}),
    "distilbert-mlm": ("DistilBertForMaskedLM", {"activation": "relu"}),
    "bert-reranker": ("BertForSequenceClassification", {"num_labels": 1}),
    "roberta-reranker": ("RobertaForSequenceClassification", {"pad_token_id": 1, "num_labels": 1}),
    "xlm-roberta-reranker": ("XLMRobertaForSequenceClassification", {"pad_token_id": 1, "num_labels": 1}),
    "distilbert-reranker": ("DistilBertForSequenceClassification", {"num_labels": 1}),
}


_DISTILBERT_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_position_embeddings",
}


def make_model(name: str, **config: Any) -> torch.nn.Module:
    """transformers' model of ARCHITECTURES, in float32."""
    class_name, own = ARCHITECTURES[name]
    prefix = class_name.partition("Model")[0].partition("For")[0]
    sizes = {_DISTILBERT_NAMES[key]: size for key, size in SIZES.items()} if "distil" in name else SIZES
    model_config = getattr(transformers, f"{prefix}Config")(**{**sizes, **own, **config})
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(model_config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def make_tokenizer(*, is_roberta: bool = False) -> Tokenizer:
    """WordPiece over WORDS and letters, framed as BERT frames texts and pairs, or as RoBERTa does."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = [*SPECIAL, *WORDS.split(), *letters, *(f"##{letter}" for letter in letters)]
    ids = {token: number for number, token in enumerate(dict.fromkeys(vocabulary))}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    pair = "[CLS] $A [SEP] [SEP] $B [SEP]" if is_roberta else "[CLS] $A [SEP] $B:1 [SEP]:1"
    special = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, special)
    return tokenizer


def save_encoder(
    folder: Path,
    name: str = "bert",
    *,
    pooling: str | None = "mean_tokens",
    is_normalised: bool = True,
    max_seq_length: int | None = None,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
    more: dict[str, Any] | None = None,
    **config: Any,
) -> torch.nn.Module:
    """Writes the model of ARCHITECTURES into folder as sentence-transformers does; returns it.

    Args:
        pooling: sentence-transformers' name of the mode; None: no modules.json.
        more: what is added to config.json.
        config: of transformers' configuration.
    """
    model = make_model(name, **config)
    model.save_pretrained(folder)
    make_tokenizer(is_roberta="roberta" in name).save(str(folder / "tokenizer.json"))
    _change_json(folder / "config.json", more or {})
    if max_seq_length is not None:
        _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    if prompts is not None:
        texts = {"prompts": prompts, "default_prompt_name": default_prompt}
        _write_json(folder / "config_sentence_transformers.json", texts)
    if pooling is not None:
        _write_modules(folder, pooling, is_normalised)
    return model


def _write_modules(folder: Path, pooling: str, is_normalised: bool) -> None:
    package = "sentence_transformers.models."
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{package}Pooling"},
    ]
    if is_normalised:
        modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{package}Normalize"})
    _write_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {
        f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": SIZES["hidden_size"], **modes})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _change_json(path: Path, changes: dict[str, Any]) -> None:
    values = {**json.loads(path.read_text()), **changes}
    _write_json(path, {key: value for key, value in values.items() if value != "left out"})


def reference_vector(
    model: torch.nn.Module, ids: Sequence[int], pooling: str = "mean", *, is_normalised: bool = True
) -> np.ndarray:
    """The vector of one text by transformers, alone and unpadded, pooled by hand in float64."""
    base = getattr(model, "base_model", model)
    with torch.inference_mode():
        states = base(torch.tensor([list(ids)])).last_hidden_state[0].double().numpy()
    ways = {
        "cls": lambda: states[0],
        "last": lambda: states[-1],
        "mean": lambda: states.mean(0),
        "max": lambda: states.max(0),
    }
    vector = ways[pooling]()
    return vector / np.linalg.norm(vector) if is_normalised else vector


def reference_score(
    model: torch.nn.Module, ids: Sequence[int], types: Sequence[int], *, has_sigmoid: bool = True
) -> float:
    """A cross-encoder's score of one pair by transformers, alone and unpadded."""
    typed = {"token_type_ids": torch.tensor([list(types)])} if any(types) else {}
    with torch.inference_mode():
        logits = model(torch.tensor([list(ids)]), **typed).logits
    return float((torch.sigmoid(logits) if has_sigmoid else logits)[0, 0])
