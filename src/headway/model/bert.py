"""BERT, RoBERTa, XLM-RoBERTa and DistilBERT as encoders: Devlin et al. 2019, Liu et al. 2019, Conneau et al. 2020,
Sanh et al. 2019."""

from headway.checkpoint.shape import EncoderShape
from headway.errors import UnsupportedModel
from headway.model import parts
from headway.model.builder import Builder
from headway.model.ops import Activation, Add, Embed, Linear, Pool
from headway.model.parts import LAYER
from headway.model.program import Program


def make_bert(builder: Builder) -> Program:
    """Learned positions and token types, norms behind the residuals, attention to the whole text. Each text becomes a
    vector, or by the head a score."""
    encoder = builder.shape.encoder
    if encoder is None:
        raise UnsupportedModel(f"{builder.shape.architecture} without the numbers of an encoder cannot be run")
    hidden = _embeddings(builder, encoder)
    for layer in range(builder.shape.num_layers):
        at = f"layers.{layer}"
        update = parts.attention(builder, layer, hidden, rope=None, is_causal=False)
        hidden = parts.norm(builder, f"{at}.attn_norm", parts.residual(builder, f"{at}.attn", hidden, update), LAYER)
        update = parts.plain_mlp(builder, layer, hidden)
        hidden = parts.norm(builder, f"{at}.mlp_norm", parts.residual(builder, f"{at}.mlp", hidden, update), LAYER)
    if encoder.num_labels is None:
        builder.add(Pool(out="pooled", input=hidden, kind=encoder.pooling, normalise=encoder.is_normalised))
    else:
        _head(builder, hidden, encoder)
    return builder.build()


def _embeddings(builder: Builder, encoder: EncoderShape) -> str:
    words = parts.learned_positions(builder, parts.embedding(builder), offset=encoder.position_offset)
    if not encoder.num_token_types:
        return parts.norm(builder, "embed_norm", words, LAYER)
    table = builder.weight("token_types.weight", encoder.num_token_types, builder.shape.hidden_size)
    types = builder.add(Embed(out="token_types", table=table, index="token_type"))
    return parts.norm(builder, "embed_norm", builder.add(Add(out="embedded", left=words, right=types)), LAYER)


def _head(builder: Builder, hidden: str, encoder: EncoderShape) -> None:
    """The first token through a hidden layer of its own, then a score a label."""
    size, num_labels = builder.shape.hidden_size, encoder.num_labels or 1
    first = builder.add(Pool(out="pooled", input=hidden, kind="cls"))
    pooler = builder.weight("pooler.weight", size, size)
    dense = builder.add(Linear(out="pooler", input=first, weight=pooler, bias=builder.weight("pooler.bias", size)))
    active = builder.add(Activation(out="pooler.active", input=dense, kind=encoder.head_activation))
    weight, bias = builder.weight("classifier.weight", num_labels, size), builder.weight("classifier.bias", num_labels)
    score = builder.add(Linear(out="score", input=active, weight=weight, bias=bias))
    if encoder.has_sigmoid:
        builder.add(Activation(out="score.sigmoid", input=score, kind="sigmoid"))
