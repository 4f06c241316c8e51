"""Phi-3 and Phi-4: fused q, k and v, gate and up in one tensor called up."""

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models.decoder import read_decoder
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.gguf_models.tensors import GgufNames
from headway.checkpoint.pieces import stacked_gate_up, stacked_qkv
from headway.checkpoint.shape import ModelShape

NAMES = GgufNames(splits={"attn_qkv": stacked_qkv, "ffn_up": stacked_gate_up})


def read_phi3(file: GgufFile, keys: Keys) -> ModelShape:
    """phi3."""
    return read_decoder(file, keys, "phi3")
