"""GPT-2 and GPT-NeoX. Their files do not say the activation: it is what the models were made with."""

from dataclasses import replace

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models.decoder import LAYER_EPS, read_decoder
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.shape import ModelShape


def read_gpt2(file: GgufFile, keys: Keys) -> ModelShape:
    """gpt2."""
    shape = read_decoder(file, keys, "gpt2", has_rope=False, eps_key=LAYER_EPS)
    return replace(shape, activation="gelu_tanh")


def read_gpt_neox(file: GgufFile, keys: Keys) -> ModelShape:
    """gptneox; the converter has put q, k and v one under another."""
    shape = read_decoder(file, keys, "gpt_neox", eps_key=LAYER_EPS)
    is_parallel = keys.fields.boolean(keys.name("use_parallel_residual"), True)
    return replace(shape, activation="gelu", is_parallel=is_parallel)
