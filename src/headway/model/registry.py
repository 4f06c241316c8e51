"""The architectures that Headway has, by name: make_program is the one way from a ModelShape to a Program."""

from collections.abc import Callable

from headway.checkpoint.shape import ModelShape
from headway.errors import UnsupportedModel
from headway.model.bert import make_bert
from headway.model.builder import Builder
from headway.model.deepseek_v2 import make_deepseek_v2
from headway.model.deepseek_v3 import make_deepseek_v3
from headway.model.gemma2 import make_gemma2
from headway.model.gemma3 import make_gemma3
from headway.model.gpt2 import make_gpt2
from headway.model.gpt_neox import make_gpt_neox
from headway.model.granite import make_granite
from headway.model.llama import make_llama
from headway.model.mistral import make_mistral
from headway.model.mixtral import make_mixtral
from headway.model.olmo2 import make_olmo2
from headway.model.opt import make_opt
from headway.model.phi3 import make_phi3
from headway.model.program import Program
from headway.model.qwen2 import make_qwen2
from headway.model.qwen2_moe import make_qwen2_moe
from headway.model.qwen3 import make_qwen3
from headway.model.qwen3_moe import make_qwen3_moe
from headway.model.smollm3 import make_smollm3

ARCHITECTURES: dict[str, Callable[[Builder], Program]] = {
    "bert": make_bert,
    "bert_reranker": make_bert,
    "deepseek_v2": make_deepseek_v2,
    "deepseek_v3": make_deepseek_v3,
    "distilbert": make_bert,
    "distilbert_reranker": make_bert,
    "gemma2": make_gemma2,
    "gemma3": make_gemma3,
    "gpt2": make_gpt2,
    "gpt_neox": make_gpt_neox,
    "granite": make_granite,
    "llama": make_llama,
    "mistral": make_mistral,
    "mixtral": make_mixtral,
    "olmo2": make_olmo2,
    "opt": make_opt,
    "phi3": make_phi3,
    "qwen2": make_qwen2,
    "qwen2_moe": make_qwen2_moe,
    "qwen3": make_qwen3,
    "qwen3_moe": make_qwen3_moe,
    "roberta": make_bert,
    "roberta_reranker": make_bert,
    "smollm3": make_smollm3,
}


def make_program(shape: ModelShape, *, max_model_len: int | None = None) -> Program:
    """The checked Program of a shape.

    Args:
        shape: what checkpoint/ read.
        max_model_len: the longest sequence to come, None for the model's own; chooses among rope frequencies where
            these depend on it, and limits nothing.

    Raises:
        UnsupportedModel: the architecture, or a part of it, is not one of ours; names it and those there are.
    """
    make = ARCHITECTURES.get(shape.architecture)
    if make is None:
        raise UnsupportedModel(
            f"architecture {shape.architecture!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    return make(Builder(shape, max_model_len or shape.max_position))
