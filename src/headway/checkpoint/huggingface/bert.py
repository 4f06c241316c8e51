"""BERT, RoBERTa and XLM-RoBERTa: encoders for embeddings, and with a head of one label for scores of pairs."""

from collections.abc import Iterable, Mapping

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface.keys import num_layers, read_activation, read_dtype, refuse, share_of_heads
from headway.checkpoint.huggingface.tensors import TensorNames
from headway.checkpoint.shape import EncoderShape, ModelShape

_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "embed.weight",
    "embeddings.position_embeddings.weight": "positions.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "embed_norm.weight",
    "embeddings.LayerNorm.bias": "embed_norm.bias",
}
_PARTS = {
    "attention.self.query": "attn.q",
    "attention.self.key": "attn.k",
    "attention.self.value": "attn.v",
    "attention.output.dense": "attn.o",
    "attention.output.LayerNorm": "attn_norm",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
    "output.LayerNorm": "mlp_norm",
}


def _names(prefix: str, head: Mapping[str, str], derived: str) -> TensorNames:
    """Names with and without the prefix: a bare encoder is saved without one. `head`: layers of the head."""
    outside = {f"{start}{name}": canonical for start in (f"{prefix}.", "") for name, canonical in _EMBEDDINGS.items()}
    outside |= {f"{name}.{kind}": f"{ours}.{kind}" for name, ours in head.items() for kind in ("weight", "bias")}
    return TensorNames(
        outside=outside,
        layers=rf"(?:{prefix}\.)?encoder\.layer",
        parts=_PARTS,
        derived=rf"(.*\.)?embeddings\.(position_ids|token_type_ids)|{derived}",
    )


# Without a head the pooler, made for another task, and the language model's head are not used.
_UNUSED = r"(.*\.)?pooler\.dense\.(weight|bias)|(cls|lm_head)\..*"
NAMES = _names("bert", {}, _UNUSED)
ROBERTA_NAMES = _names("roberta", {}, _UNUSED)
RERANKER_NAMES = _names("bert", {"bert.pooler.dense": "pooler", "classifier": "classifier"}, "(?!)")
ROBERTA_RERANKER_NAMES = _names(
    "roberta", {"classifier.dense": "pooler", "classifier.out_proj": "classifier"}, r"roberta\.pooler\..*"
)
MAX_SHOWN_LABELS = 10
ONE_LABEL = (
    "/v1/score and /v1/rerank need one score of a pair, as a cross-encoder with 1 label gives it: serve such a one"
)
_ACTIVATIONS_OF_SCORES = {
    "torch.nn.modules.activation.Sigmoid": True,
    "torch.nn.modules.linear.Identity": False,
}


def read_encoder(config: Fields) -> ModelShape:
    """BertModel, RobertaModel, XLMRobertaModel, and the same saved with the head that they were trained with."""
    return _read(config, reads_pairs=False)


def read_reranker(config: Fields) -> ModelShape:
    """BertForSequenceClassification and its kin, of one label."""
    check_one_label(config)
    return _read(config, reads_pairs=True)


def check_one_label(config: Fields) -> None:
    """Raises UnsupportedModel, with the labels, for a classifier of several: it gives a pair no one score."""
    labels = config.mapping("id2label")
    num_labels = len(labels) if labels else config.integer("num_labels", 2)
    if num_labels != 1:
        refuse(config, f"is a classifier of {num_labels} labels{name_labels(labels.values())}; {ONE_LABEL}")


def name_labels(labels: Iterable[object]) -> str:
    """The first of them, for an error."""
    shown = [repr(str(label)[:50]) for label in labels]
    more = ", ..." if len(shown) > MAX_SHOWN_LABELS else ""
    return f" ({', '.join(shown[:MAX_SHOWN_LABELS])}{more})" if shown else ""


def _read(config: Fields, *, reads_pairs: bool) -> ModelShape:
    if config.boolean("is_decoder", False):
        refuse(config, "has is_decoder, which is not supported")
    kind = config.string("position_embedding_type", "absolute")
    if kind != "absolute":
        refuse(config, f"has {kind[:50]!r} positions; absolute ones are supported")
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    is_roberta = "roberta" in config.string("model_type")
    name, offset = ("roberta", config.integer("pad_token_id", 1, low=0) + 1) if is_roberta else ("bert", 0)
    num_positions = config.integer("max_position_embeddings", low=offset + 1)
    return ModelShape(
        architecture=f"{name}_reranker" if reads_pairs else name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers(config),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=share_of_heads(config, hidden_size, num_heads, "hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        max_position=num_positions - offset,
        norm_eps=config.number("layer_norm_eps", 1e-12),
        rope=None,
        activation=read_activation(config, "hidden_act", "gelu"),
        has_qkv_bias=True,
        has_o_bias=True,
        has_mlp_bias=True,
        is_post_norm=True,
        encoder=EncoderShape(
            num_token_types=config.integer("type_vocab_size", 1 if is_roberta else 2),
            position_offset=offset,
            num_labels=1 if reads_pairs else None,
            has_sigmoid=reads_pairs and has_sigmoid(config),
            dimensions=read_dimensions(config, hidden_size),
            any_dimension=read_matryoshka(config),
        ),
        dtype=read_dtype(config),
    )


def has_sigmoid(config: Fields) -> bool:
    """Whether a score is between 0 and 1: what sentence-transformers' CrossEncoder makes of it, and wrote there."""
    own = Fields(config.mapping("sentence_transformers"), f"{config.where}: sentence_transformers")
    older = config.string("sbert_ce_default_activation_function", "torch.nn.modules.activation.Sigmoid")
    name = own.string("activation_fn", older)
    if name not in _ACTIVATIONS_OF_SCORES:
        refuse(config, f"has scores through {name[:100]!r}; there are {', '.join(_ACTIVATIONS_OF_SCORES)}")
    return _ACTIVATIONS_OF_SCORES[name]


def read_matryoshka(config: Fields) -> bool:
    """Whether a vector may be cut to any length."""
    return "matryoshka_dimensions" not in config.values and config.boolean("is_matryoshka", False)


def read_dimensions(config: Fields, hidden_size: int) -> tuple[int, ...]:
    """matryoshka_dimensions: lengths that a vector may be cut to."""
    given = config.values.get("matryoshka_dimensions") or []
    if not isinstance(given, list) or any(type(size) is not int or not 0 < size <= hidden_size for size in given):
        config.fail("matryoshka_dimensions", f"is not a list of numbers of at most {hidden_size}")
    return tuple(sorted(set(given)))
