"""BERT's family as llama.cpp's converter writes it: BERT, RoBERTa, XLM-RoBERTa and DistilBERT are all `bert`.

What the file does not say is what transformers, sentence-transformers and llama.cpp take: the activation is the exact
gelu, a file without a pooling has the mean, vectors have length 1, a score is between 0 and 1.
"""

from collections.abc import Mapping
from dataclasses import replace

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models.decoder import LAYER_EPS, read_decoder
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.gguf_models.tensors import OUTSIDE, PARTS, GgufNames
from headway.checkpoint.huggingface.bert import ONE_LABEL, name_labels
from headway.checkpoint.shape import EncoderShape, ModelShape, Pooling
from headway.errors import CorruptCheckpoint, UnsupportedModel

NAMES = GgufNames(
    outside={
        **OUTSIDE,
        "token_types": "token_types",
        "token_embd_norm": "embed_norm",
        "cls": "pooler",
        "cls.output": "classifier",
    },
    parts={**PARTS, "attn_output_norm": "attn_norm", "layer_output_norm": "mlp_norm"},
)
_NONE, _RANK = 0, 4
_POOLINGS: Mapping[int, Pooling] = {_NONE: "mean", 1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's numbers; whoever asks for vectors of texts means one a text."""


def read_bert(file: GgufFile, keys: Keys) -> ModelShape:
    """bert. The table of positions begins at position 0: the converter has cut off the rows before it."""
    if keys.fields.boolean(keys.name("attention.causal"), True):
        raise UnsupportedModel(f"{keys.where} is a bert with causal attention, which is not supported")
    positions = file.tensors.get("position_embd.weight")
    if positions is None or len(positions.shape) != 2:
        raise CorruptCheckpoint(f"{keys.where} has no table of positions (position_embd.weight)")
    reads_pairs = "cls.output.weight" in file.tensors
    shape = read_decoder(file, keys, "bert_reranker" if reads_pairs else "bert", has_rope=False, eps_key=LAYER_EPS)
    return replace(
        shape,
        max_position=positions.shape[0],
        activation="gelu",
        is_post_norm=True,
        is_tied=False,
        encoder=_encoder(file, keys, reads_pairs=reads_pairs),
    )


def _encoder(file: GgufFile, keys: Keys, *, reads_pairs: bool) -> EncoderShape:
    types = file.tensors.get("token_types.weight")
    num_token_types = 0 if types is None else types.shape[0]
    pooling = keys.integer("pooling_type", _NONE, low=0)
    if reads_pairs:
        _check_head(file, keys)
        return EncoderShape(
            num_token_types=num_token_types,
            num_labels=1,
            has_sigmoid=True,
            # DistilBERT alone has no token types, and its head's hidden layer is another.
            head_activation="tanh" if num_token_types else "relu",
        )
    if pooling not in _POOLINGS:
        what = "rank, and no head (cls.output.weight)" if pooling == _RANK else str(pooling)
        raise UnsupportedModel(f"{keys.where} has the pooling {what}; there are mean (1), cls (2) and last (3)")
    return EncoderShape(num_token_types=num_token_types, pooling=_POOLINGS[pooling], is_normalised=True)


def _check_head(file: GgufFile, keys: Keys) -> None:
    """One label, and the hidden layer before it."""
    num_labels = file.tensors["cls.output.weight"].shape[0]
    if num_labels != 1:
        labels = keys.fields.values.get(keys.name("classifier.output_labels"))
        named = name_labels(labels) if isinstance(labels, list) else ""
        raise UnsupportedModel(f"{keys.where} is a classifier of {num_labels} labels{named}; {ONE_LABEL}")
    if "cls.weight" not in file.tensors:
        raise UnsupportedModel(
            f"{keys.where} has a head without its hidden layer (cls.weight): the converter leaves BERT's pooler out, "
            "and the scores would be wrong; serve the model's Hugging Face folder"
        )
