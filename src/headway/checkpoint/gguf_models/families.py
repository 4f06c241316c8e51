"""The table of GGUF's architectures, and what makes a shape and views of a file by it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headway.checkpoint.fields import Fields
from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models import bert, deepseek, experts, gemma, gpt, llama, olmo, phi
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.gguf_models.tensors import GgufNames, views_by_name
from headway.checkpoint.shape import ModelShape
from headway.checkpoint.weights import WeightView
from headway.errors import CorruptCheckpoint, UnsupportedModel


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """One architecture of llama.cpp."""

    read: Callable[[GgufFile, Keys], ModelShape]
    names: GgufNames


_FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(experts.read_llama, experts.IN_PAIRS),
    "granite": GgufFamily(llama.read_granite, llama.IN_PAIRS),
    "smollm3": GgufFamily(llama.read_smollm3, llama.IN_PAIRS),
    "qwen2": GgufFamily(llama.read_qwen2, llama.IN_HALVES),
    "qwen3": GgufFamily(llama.read_qwen3, llama.IN_HALVES),
    "gpt2": GgufFamily(gpt.read_gpt2, llama.IN_HALVES),
    "gptneox": GgufFamily(gpt.read_gpt_neox, llama.IN_HALVES),
    "gemma2": GgufFamily(gemma.read_gemma2, gemma.NAMES),
    "gemma3": GgufFamily(gemma.read_gemma3, gemma.NAMES),
    "phi3": GgufFamily(phi.read_phi3, phi.NAMES),
    "olmo2": GgufFamily(olmo.read_olmo2, llama.IN_HALVES),
    "qwen2moe": GgufFamily(experts.read_qwen2_moe, experts.IN_HALVES),
    "qwen3moe": GgufFamily(experts.read_qwen3_moe, experts.IN_HALVES),
    "deepseek2": GgufFamily(deepseek.read_deepseek2, deepseek.NAMES),
    "bert": GgufFamily(bert.read_bert, bert.NAMES),
}
GGUF_ARCHITECTURES = tuple(_FAMILIES)
GGUF_ENCODERS = frozenset({"bert"})


def read_shape(file: GgufFile) -> ModelShape:
    """The architecture's numbers.

    Raises UnsupportedModel for an architecture, or a use of one, that is not there; CorruptCheckpoint for wrong values.
    """
    fields = Fields(file.metadata, str(file.file.path))
    keys = Keys(fields, _check_kind(file, fields))
    _check_features(keys)
    return _FAMILIES[keys.architecture].read(file, keys)


def canonical_views(file: GgufFile, shape: ModelShape) -> dict[str, WeightView]:
    """Each tensor under its canonical name; one without keeps its own. Raises CorruptCheckpoint: views_by_name."""
    return views_by_name(file, shape, _FAMILIES[str(file.metadata["general.architecture"])].names)


def _check_kind(file: GgufFile, fields: Fields) -> str:
    architecture = fields.string("general.architecture")
    kind = fields.string("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{fields.where} is a GGUF file of type {kind!r}, not a model")
    if architecture not in GGUF_ARCHITECTURES:
        raise UnsupportedModel(
            f"{fields.where} has the architecture {architecture!r}; there are {', '.join(GGUF_ARCHITECTURES)}"
        )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise UnsupportedModel(f"{fields.where} has no tensor token_embd.weight: it is a vocabulary or an adapter")
    if len(embedding.shape) != 2:
        raise CorruptCheckpoint(
            f"{fields.where}: token_embd.weight has the shape {embedding.shape}, not two dimensions"
        )
    return architecture


def _check_features(keys: Keys) -> None:
    if keys.integer("expert_count", 0, low=0) and _FAMILIES[keys.architecture].names.splits.keys().isdisjoint(
        experts.EXPERT_SPLITS
    ):
        raise UnsupportedModel(f"{keys.where} is a mixture of experts in the architecture {keys.architecture!r}")
    if keys.architecture not in GGUF_ENCODERS and not keys.fields.boolean(keys.name("attention.causal"), True):
        raise UnsupportedModel(f"{keys.where} has bidirectional attention, which is not supported yet")
