"""A Hugging Face folder: config.json as ModelShape, and the folder's tensors under canonical names.

keys.py and rope.py read what most configurations say alike, tensors.py maps names; each file of a family says what is
its own, and families.py is the table of them. Code beside the weights is never imported.
"""

from headway.checkpoint.huggingface.families import HF_ARCHITECTURES, folder_views, read_shape
from headway.checkpoint.huggingface.pooling import with_pooling
from headway.checkpoint.huggingface.quantised import refuse_quantised_tensors

__all__ = ["HF_ARCHITECTURES", "folder_views", "read_shape", "refuse_quantised_tensors", "with_pooling"]
