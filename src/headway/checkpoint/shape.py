"""ModelShape: an architecture's numbers, the same whether they were read from config.json or from GGUF metadata.

It has what differs between checkpoints of one architecture; what an architecture always does stands in its file of
model/. Canonical names of weights, which every format is mapped onto (i is the layer, from 0); a layer norm has a
.bias as well:

    embed.weight                    [vocab_size, embedding_size or hidden_size]
    positions.weight                [positions and the offset before them, hidden_size], where they are learned
    embed_in.weight                 [hidden_size, embedding_size], where the two differ (OPT 350M)
    layers.i.attn_norm.weight       [hidden_size]
    layers.i.attn.q.weight          [num_heads * head_dim, hidden_size]      .bias [num_heads * head_dim]
    layers.i.attn.k.weight          [num_kv_heads * head_dim, hidden_size]   .bias
    layers.i.attn.v.weight          [num_kv_heads * head_dim, hidden_size]   .bias
    layers.i.attn.o.weight          [hidden_size, num_heads * head_dim]      .bias
    layers.i.attn.q_norm.weight     [head_dim], or [num_heads * head_dim] over all heads (OLMo 2)
    layers.i.attn.k_norm.weight     [head_dim], or [num_kv_heads * head_dim]
    layers.i.attn_out_norm.weight   [hidden_size], of what attention adds (Gemma, OLMo 2)
    layers.i.mlp_norm.weight        [hidden_size]
    layers.i.mlp.gate.weight        [intermediate_size, hidden_size]         .bias
    layers.i.mlp.up.weight          [intermediate_size, hidden_size]         .bias
    layers.i.mlp.down.weight        [hidden_size, intermediate_size]         .bias
    layers.i.mlp_out_norm.weight    [hidden_size], of what the MLP adds
    layers.i.mlp.router.weight      [experts, hidden_size]; with it the experts, e from 0, and what all tokens go to:
    layers.i.mlp.choice.bias        [experts], where the choice has one
    layers.i.mlp.experts.e.gate.weight, .up.weight, .down.weight
    layers.i.mlp.shared.gate.weight, .up.weight, .down.weight
    layers.i.mlp.shared_gate.weight [1, hidden_size]
    layers.i.attn.q_a.weight        [q_rank, hidden_size]                    .bias  latent attention: LatentShape
    layers.i.attn.q_a_norm.weight   [q_rank]
    layers.i.attn.q_b.weight        [num_heads * (nope_dim + rope_dim), q_rank]; without a q_rank attn.q
    layers.i.attn.latent.weight     [kv_rank, hidden_size]                   .bias
    layers.i.attn.latent_norm.weight [kv_rank]
    layers.i.attn.k_rope.weight     [rope_dim, hidden_size]                  .bias
    layers.i.attn.k_up.weight       [num_heads, kv_rank, nope_dim]: a query times it meets the latent itself
    layers.i.attn.v_up.weight       [num_heads, v_dim, kv_rank]
    final_norm.weight               [hidden_size]
    embed_out.weight                [embedding_size, hidden_size]
    lm_head.weight                  [vocab_size, hidden_size], absent where it is tied to embed.weight

Of encoders also:

    token_types.weight              [num_token_types, hidden_size]
    embed_norm.weight               [hidden_size], of the sum of all embeddings
    pooler.weight                   [hidden_size, hidden_size], where there is a head             .bias
    classifier.weight               [num_labels, hidden_size], where there is a head              .bias

Rows of q and k stand as Hugging Face has them (rotated in halves); a format that permutes them is undone when read.
Norms that multiply by 1 + w (Gemma) are w.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Activation = Literal["silu", "relu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeShape:
    """Rotary positions. `scaling` is config.json's dict (rope_type and its numbers), empty for none."""

    theta: float = 10000.0
    dims: int
    """How many of head_dim are rotated."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    frequency_factors: tuple[float, ...] = ()
    """GGUF's rope_freqs: each frequency is divided by its factor."""
    skipped_layers: frozenset[int] = frozenset()
    """Layers without positions (SmolLM3)."""


Pooling = Literal["cls", "mean", "max", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    """What an encoder (BERT's family) has beside ModelShape's numbers: how one vector, or one score, is made of a text.

    Of sentence-transformers' files beside config.json: modules.json, 1_Pooling/config.json, sentence_bert_config.json,
    config_sentence_transformers.json.
    """

    num_token_types: int
    """0: it knows none (DistilBERT)."""
    position_offset: int = 0
    """Rows of the table of positions before position 0 (RoBERTa)."""
    num_labels: int | None = None
    """Of a head that scores pairs of texts; None: it has none, and makes embeddings."""
    has_sigmoid: bool = False
    """The head's score goes through a sigmoid."""
    head_activation: Literal["tanh", "relu"] = "tanh"
    """Of the head's hidden layer."""
    pooling: Pooling = "cls"
    is_normalised: bool = False
    max_tokens: int | None = None
    """The longest text that it was trained for, special tokens included; None: max_position."""
    dimensions: tuple[int, ...] = ()
    """Lengths that a vector may be cut to (Matryoshka), ascending; empty: none of its own."""
    any_dimension: bool = False
    """... or any length."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """What is put before a text, by what the text is for (query, document, ...)."""
    default_prompt: str = ""
    """... where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """A mixture of experts in the place of the MLP. How experts are chosen: model.ops.Route."""

    num_experts: int
    top_k: int
    width: int
    """Of each expert."""
    layers: frozenset[int]
    """Layers that have experts; the others have an MLP of intermediate_size."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    has_choice_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_score: Literal["largest", "two_largest"] = "largest"
    normalise: bool = False
    scale: float = 1.0
    shared_width: int = 0
    """Of the expert that all tokens go to; 0: there is none."""
    has_shared_gate: bool = False
    """What it adds is multiplied by a sigmoid of its own (Qwen2-MoE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads come from one narrow latent."""

    q_rank: int | None
    """Queries come from a latent, too; None: from the hidden state."""
    kv_rank: int
    nope_dim: int
    """Columns of a head's key that come from the latent."""
    rope_dim: int
    """Columns of a key with positions, the same for all heads."""
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Everything that an architecture file needs to write a Program; no file, no array."""

    architecture: str
    """Our name, one of model.registry's."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    """The longest context that the model was made for."""
    norm_eps: float
    rope: RopeShape | None
    """None: positions are learned, rows of a table."""
    local_rope: RopeShape | None = None
    """Of the layers with a window, where theirs is another (Gemma 3)."""
    experts: ExpertsShape | None = None
    latent: LatentShape | None = None
    """head_dim is then nope_dim + rope_dim."""
    activation: Activation = "silu"
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    is_tied: bool = False
    """lm_head is embed.weight."""
    is_parallel: bool = False
    """Attention and MLP read the same hidden state (GPT-NeoX)."""
    is_post_norm: bool = False
    """Norms stand behind the residual and not before the block, and there is no final one (OPT 350M)."""
    embedding_size: int | None = None
    """Width of the embedding, where it is not hidden_size (OPT 350M)."""
    sliding_window: int | None = None
    """How many tokens a layer sees, itself included."""
    full_layers: frozenset[int] = frozenset()
    """Layers that see all tokens although there is a window."""
    attention_scale: float | None = None
    """None: 1 / sqrt(head_dim)."""
    attention_soft_cap: float | None = None
    """Scores become cap * tanh(score / cap) (Gemma 2)."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """What attention and MLP add is multiplied by it (Granite)."""
    logits_scale: float = 1.0
    """Logits are multiplied by it (Granite: 1 / logits_scaling)."""
    logits_soft_cap: float | None = None
    """Logits become cap * tanh(logit / cap) (Gemma 2)."""
    encoder: EncoderShape | None = None
    """None: a language model."""
    dtype: str = "float32"
    """What the file's weights were computed with: float32, bfloat16 or float16."""

    def window(self, layer: int) -> int | None:
        """How many tokens this layer sees; None: all."""
        return None if layer in self.full_layers else self.sliding_window
