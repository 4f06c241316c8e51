"""OLMo 2. Files of OLMo 3 say olmo2, too, and are told by their window."""

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models.decoder import read_decoder
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.shape import ModelShape
from headway.errors import UnsupportedModel


def read_olmo2(file: GgufFile, keys: Keys) -> ModelShape:
    """olmo2."""
    shape = read_decoder(file, keys, "olmo2")
    if shape.sliding_window is not None:
        raise UnsupportedModel(f"{keys.where} is an OLMo 3 (it has a sliding window), which is not supported")
    return shape
