"""Phi-3 and Phi-4: fused q, k and v, fused gate and up, longrope."""

from typing import Any

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface import llama
from headway.checkpoint.huggingface.keys import Defaults, read_decoder
from headway.checkpoint.huggingface.tensors import TensorNames
from headway.checkpoint.pieces import stacked_gate_up, stacked_qkv
from headway.checkpoint.shape import ModelShape

NAMES = TensorNames(
    outside=llama.OUTSIDE,
    parts={
        "input_layernorm": "attn_norm",
        "self_attn.qkv_proj": stacked_qkv,
        "self_attn.o_proj": "attn.o",
        "post_attention_layernorm": "mlp_norm",
        "mlp.gate_up_proj": stacked_gate_up,
        "mlp.down_proj": "mlp.down",
    },
)
_PHI3 = Defaults(name="phi3", norm_eps=1e-5, qkv_bias=False)
_OLDER_NAMES = ("su", "yarn")


def read_phi3(config: Fields) -> ModelShape:
    """Phi3ForCausalLM. Older files call longrope su or yarn."""
    values: dict[str, Any] = {"original_max_position_embeddings": 4096, **config.values}
    for key in ("rope_scaling", "rope_parameters"):
        given = dict(config.mapping(key))
        kind = given.get("rope_type", given.get("type"))
        if kind in _OLDER_NAMES:
            values[key] = given | {"rope_type": "longrope"}
    return read_decoder(Fields(values, config.where), _PHI3)
