"""A GGUF file's metadata as ModelShape, its tensors under canonical names.

keys.py and rope.py read what architectures say alike, tensors.py maps names; families.py is the table of what each
architecture of llama.cpp has of its own.
"""

from headway.checkpoint.gguf_models.families import GGUF_ARCHITECTURES, GGUF_ENCODERS, canonical_views, read_shape

__all__ = ["GGUF_ARCHITECTURES", "GGUF_ENCODERS", "canonical_views", "read_shape"]
