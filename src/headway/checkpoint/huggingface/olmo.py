"""OLMo 2: norms behind attention and MLP, and over all heads of q and of k at once."""

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface import llama
from headway.checkpoint.huggingface.keys import Defaults, read_decoder
from headway.checkpoint.huggingface.tensors import TensorNames
from headway.checkpoint.shape import ModelShape

NAMES = TensorNames(
    outside=llama.OUTSIDE,
    parts=llama.PARTS | {"post_attention_layernorm": "attn_out_norm", "post_feedforward_layernorm": "mlp_out_norm"},
)
_OLMO2 = Defaults(name="olmo2", norm_eps=1e-5, has_qk_norm=True)


def read_olmo2(config: Fields) -> ModelShape:
    """Olmo2ForCausalLM."""
    return read_decoder(config, _OLMO2)
