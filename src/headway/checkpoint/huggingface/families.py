"""The table of config.json's architectures, and what makes a shape and views of a folder by it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface import bert, deepseek, distilbert, experts, gemma, gpt, llama, olmo, phi
from headway.checkpoint.huggingface.keys import refuse
from headway.checkpoint.huggingface.quantised import refuse_quantised
from headway.checkpoint.huggingface.tensors import TensorNames, views_by_name
from headway.checkpoint.safetensors import SafetensorsFile
from headway.checkpoint.shape import ModelShape
from headway.checkpoint.weights import WeightView


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture of transformers."""

    name: str
    """Ours, which shapes have."""
    model_type: str
    """What config.json says where it names no architecture."""
    read: Callable[[Fields], ModelShape]
    names: TensorNames
    ignores_code: bool = False
    """An auto_map is no reason to refuse: transformers has taken the code over, and so have we."""


_FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family("llama", "llama", llama.read_llama, llama.NAMES),
    "MistralForCausalLM": Family("mistral", "mistral", llama.read_mistral, llama.NAMES),
    "Qwen2ForCausalLM": Family("qwen2", "qwen2", llama.read_qwen2, llama.NAMES),
    "Qwen3ForCausalLM": Family("qwen3", "qwen3", llama.read_qwen3, llama.NAMES),
    "SmolLM3ForCausalLM": Family("smollm3", "smollm3", llama.read_smollm3, llama.NAMES),
    "GraniteForCausalLM": Family("granite", "granite", llama.read_granite, llama.NAMES),
    "OPTForCausalLM": Family("opt", "opt", gpt.read_opt, gpt.OPT_NAMES),
    "GPT2LMHeadModel": Family("gpt2", "gpt2", gpt.read_gpt2, gpt.GPT2_NAMES),
    "GPTNeoXForCausalLM": Family("gpt_neox", "gpt_neox", gpt.read_gpt_neox, gpt.NEOX_NAMES),
    "Gemma2ForCausalLM": Family("gemma2", "gemma2", gemma.read_gemma2, gemma.NAMES),
    "Gemma3ForCausalLM": Family("gemma3", "gemma3_text", gemma.read_gemma3, gemma.NAMES),
    "Phi3ForCausalLM": Family("phi3", "phi3", phi.read_phi3, phi.NAMES, ignores_code=True),
    "Olmo2ForCausalLM": Family("olmo2", "olmo2", olmo.read_olmo2, olmo.NAMES),
    "BertModel": Family("bert", "bert", bert.read_encoder, bert.NAMES),
    "BertForMaskedLM": Family("bert", "bert", bert.read_encoder, bert.NAMES),
    "BertForSequenceClassification": Family("bert_reranker", "bert", bert.read_reranker, bert.RERANKER_NAMES),
    "RobertaModel": Family("roberta", "roberta", bert.read_encoder, bert.ROBERTA_NAMES),
    "RobertaForMaskedLM": Family("roberta", "roberta", bert.read_encoder, bert.ROBERTA_NAMES),
    "RobertaForSequenceClassification": Family(
        "roberta_reranker", "roberta", bert.read_reranker, bert.ROBERTA_RERANKER_NAMES
    ),
    "XLMRobertaModel": Family("roberta", "xlm-roberta", bert.read_encoder, bert.ROBERTA_NAMES),
    "XLMRobertaForSequenceClassification": Family(
        "roberta_reranker", "xlm-roberta", bert.read_reranker, bert.ROBERTA_RERANKER_NAMES
    ),
    "DistilBertModel": Family("distilbert", "distilbert", distilbert.read_encoder, distilbert.NAMES),
    "DistilBertForMaskedLM": Family("distilbert", "distilbert", distilbert.read_encoder, distilbert.NAMES),
    "DistilBertForSequenceClassification": Family(
        "distilbert_reranker", "distilbert", distilbert.read_reranker, distilbert.NAMES
    ),
    "MixtralForCausalLM": Family("mixtral", "mixtral", experts.read_mixtral, experts.MIXTRAL_NAMES),
    "Qwen2MoeForCausalLM": Family("qwen2_moe", "qwen2_moe", experts.read_qwen2_moe, experts.QWEN_NAMES),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", "qwen3_moe", experts.read_qwen3_moe, experts.QWEN_NAMES),
    "DeepseekV2ForCausalLM": Family("deepseek_v2", "deepseek_v2", deepseek.read_v2, deepseek.NAMES),
    "DeepseekV3ForCausalLM": Family("deepseek_v3", "deepseek_v3", deepseek.read_v3, deepseek.NAMES),
}
HF_ARCHITECTURES = tuple(_FAMILIES)


def read_shape(config: Fields) -> ModelShape:
    """The architecture's numbers.

    Raises UnsupportedModel for an architecture, or a use of one, that is not there; CorruptCheckpoint for wrong values.
    """
    family = _family(config)
    _check_features(config, family)
    return family.read(config)


def folder_views(files: Sequence[SafetensorsFile], shape: ModelShape) -> dict[str, WeightView]:
    """Each canonical tensor of a folder whose shape was read here; one without such a name keeps its own.

    Raises CorruptCheckpoint where one is there twice or has another size; UnsupportedModel for a dtype.
    """
    names = next(family.names for family in _FAMILIES.values() if family.name == shape.architecture)
    return views_by_name(files, shape, names)


def _family(config: Fields) -> Family:
    named = config.values.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str):
        if family := _FAMILIES.get(named[0]):
            return family
        refuse(config, f"has the architecture {named[0][:100]!r}; there are {', '.join(HF_ARCHITECTURES)}")
    if named not in (None, []):
        config.fail("architectures", "is not a list of names")
    model_type = config.string("model_type")
    by_type: dict[str, Family] = {}
    for family in _FAMILIES.values():
        by_type.setdefault(family.model_type, family)
    if model_type not in by_type:
        refuse(config, f"has the model_type {model_type[:100]!r}; there are {', '.join(by_type)}")
    return by_type[model_type]


def _check_features(config: Fields, family: Family) -> None:
    if config.has("auto_map") and not family.ignores_code:
        refuse(config, "has an auto_map: it asks for Python code of its own, which Headway never runs")
    refuse_quantised(config)
    if config.values.get("is_decoder") is False and config.values.get("is_causal") is False:
        refuse(config, "has bidirectional attention, which is not supported yet")
