"""Gemma 2 and 3. What their files do not say stands in llama.cpp's loaders: windows by layer, scales of attention."""

from dataclasses import replace

from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models.decoder import read_decoder
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.gguf_models.tensors import GgufNames
from headway.checkpoint.shape import ModelShape, RopeShape

NAMES = GgufNames(norm_shift=-1.0)
_SCALED_BY_HIDDEN = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose scores are scaled by hidden_size / num_heads and not by head_dim."""
_LOCAL_THETA = 10000.0


def read_gemma2(file: GgufFile, keys: Keys) -> ModelShape:
    """gemma2: every second layer has a window, beginning with the first."""
    shape = _scaled(keys, read_decoder(file, keys, "gemma2"))
    return replace(
        _windowed(keys, shape, window=4096, pattern=2),
        attention_soft_cap=keys.number("attn_logit_softcapping", 50.0),
        logits_soft_cap=keys.number("final_logit_softcapping", 30.0),
    )


def read_gemma3(file: GgufFile, keys: Keys) -> ModelShape:
    """gemma3: all layers but each sixth have a window, and frequencies without scaling."""
    shape = _scaled(keys, read_decoder(file, keys, "gemma3"))
    cap = "final_logit_softcapping"
    local = RopeShape(theta=keys.number("rope.freq_base_swa", _LOCAL_THETA), dims=shape.head_dim)
    return replace(
        _windowed(keys, shape, window=None, pattern=6),
        local_rope=local,
        logits_soft_cap=keys.number(cap) if keys.has(cap) else None,
    )


def _scaled(keys: Keys, shape: ModelShape) -> ModelShape:
    is_27b = shape.num_layers == _SCALED_BY_HIDDEN[keys.architecture]
    scaled_by = shape.hidden_size / shape.num_heads if is_27b else shape.head_dim
    return replace(
        shape,
        activation="gelu_tanh",
        embedding_scale=shape.hidden_size**0.5,
        attention_scale=scaled_by**-0.5,
    )


def _windowed(keys: Keys, shape: ModelShape, *, window: int | None, pattern: int) -> ModelShape:
    """Each pattern-th layer sees everything, where the file has no list of its own."""
    window = shape.sliding_window or window
    has_window = keys.flags("attention.sliding_window_pattern", shape.num_layers)
    if has_window is None:
        has_window = [(layer + 1) % pattern != 0 for layer in range(shape.num_layers)]
    if window is None or not any(has_window):
        return replace(shape, sliding_window=None)
    full = frozenset(layer for layer, windowed in enumerate(has_window) if not windowed)
    return replace(shape, sliding_window=window, full_layers=full)
