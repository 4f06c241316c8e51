"""DistilBERT: BERT without token types, under names of its own."""

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface.bert import (
    check_one_label,
    has_sigmoid,
    read_dimensions,
    read_matryoshka,
)
from headway.checkpoint.huggingface.keys import num_layers, read_activation, read_dtype, share_of_heads
from headway.checkpoint.huggingface.tensors import TensorNames
from headway.checkpoint.shape import EncoderShape, ModelShape

_NORM_EPS = 1e-12
"""In transformers' code, not in the configuration."""
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "embed.weight",
    "embeddings.position_embeddings.weight": "positions.weight",
    "embeddings.LayerNorm.weight": "embed_norm.weight",
    "embeddings.LayerNorm.bias": "embed_norm.bias",
}
_HEAD = {"pre_classifier": "pooler", "classifier": "classifier"}
_PARTS = {
    "attention.q_lin": "attn.q",
    "attention.k_lin": "attn.k",
    "attention.v_lin": "attn.v",
    "attention.out_lin": "attn.o",
    "sa_layer_norm": "attn_norm",
    "ffn.lin1": "mlp.up",
    "ffn.lin2": "mlp.down",
    "output_layer_norm": "mlp_norm",
}
NAMES = TensorNames(
    outside={f"{start}{name}": ours for start in ("distilbert.", "") for name, ours in _EMBEDDINGS.items()}
    | {f"{name}.{kind}": f"{ours}.{kind}" for name, ours in _HEAD.items() for kind in ("weight", "bias")},
    layers=r"(?:distilbert\.)?transformer\.layer",
    parts=_PARTS,
    derived=r"(.*\.)?embeddings\.position_ids|vocab_(transform|layer_norm|projector)\..*",
)


def read_encoder(config: Fields) -> ModelShape:
    """DistilBertModel, and the same saved with the head that it was trained with."""
    return _read(config, reads_pairs=False)


def read_reranker(config: Fields) -> ModelShape:
    """DistilBertForSequenceClassification of one label."""
    check_one_label(config)
    return _read(config, reads_pairs=True)


def _read(config: Fields, *, reads_pairs: bool) -> ModelShape:
    hidden_size, num_heads = config.integer("dim"), config.integer("n_heads")
    return ModelShape(
        architecture="distilbert_reranker" if reads_pairs else "distilbert",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers(config, "n_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=share_of_heads(config, hidden_size, num_heads, "dim"),
        intermediate_size=config.integer("hidden_dim"),
        max_position=config.integer("max_position_embeddings"),
        norm_eps=_NORM_EPS,
        rope=None,
        activation=read_activation(config, "activation", "gelu"),
        has_qkv_bias=True,
        has_o_bias=True,
        has_mlp_bias=True,
        is_post_norm=True,
        encoder=EncoderShape(
            num_token_types=0,
            num_labels=1 if reads_pairs else None,
            has_sigmoid=reads_pairs and has_sigmoid(config),
            head_activation="relu",
            dimensions=read_dimensions(config, hidden_size),
            any_dimension=read_matryoshka(config),
        ),
        dtype=read_dtype(config),
    )
