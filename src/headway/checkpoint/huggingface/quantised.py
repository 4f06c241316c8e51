"""Folders whose weights are quantised in a way that is not read: refused by name, with what to take instead."""

from collections.abc import Iterable, Mapping
from typing import Any

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface.keys import refuse

_CONFIG_KEYS = ("quantization_config", "compression_config")
"""The second is what older compressed-tensors files say."""
_INT4 = "take the model unquantised and serve it with --quantization int4, or take a GGUF file of it (Q4_K_M)"
_INT8 = "take the model in bfloat16 and serve it with --quantization int8, or take a GGUF file of it (Q8_0)"
_NAMES: Mapping[str, tuple[str, str]] = {
    "gptq": ("GPTQ weights", _INT4),
    "gptq_v2": ("GPTQ weights", _INT4),
    "awq": ("AWQ weights", _INT4),
    "fp8": ("FP8 weights", _INT8),
    "fbgemm_fp8": ("FP8 weights (fbgemm)", _INT8),
    "compressed-tensors": ("compressed-tensors weights", _INT4),
    "bitsandbytes": ("bitsandbytes weights", _INT4),
}
_OTHER = "take the model unquantised, or a GGUF file of it"
_TENSORS = {
    ".qweight": ("GPTQ or AWQ weights", _INT4),
    ".weight_packed": _NAMES["compressed-tensors"],
    ".weight_scale_inv": _NAMES["fp8"],
    ".weight.absmax": _NAMES["bitsandbytes"],
    ".SCB": _NAMES["bitsandbytes"],
}
"""What gives away a folder whose config.json does not say it."""


def refuse_quantised(config: Fields) -> None:
    """Raises UnsupportedModel where config.json says that the weights are quantised."""
    key = next((key for key in _CONFIG_KEYS if config.has(key)), None)
    if key is None:
        return
    quantisation = config.mapping(key)
    method = str(quantisation.get("quant_method") or _guessed(quantisation))
    kind, instead = _NAMES.get(method, (f"weights quantised by {method[:50]!r}", _OTHER))
    kind, instead = _detailed(kind, instead, quantisation)
    refuse(config, f"says that the folder holds {kind}, which Headway does not read: {instead}")


def refuse_quantised_tensors(config: Fields, names: Iterable[str]) -> None:
    """Raises UnsupportedModel where the names of the folder's tensors show it, whatever config.json says."""
    for name in names:
        for suffix, (kind, instead) in _TENSORS.items():
            if name.endswith(suffix):
                refuse(config, f"stands beside {kind} ({name!r}), which Headway does not read: {instead}")


def _guessed(quantisation: Mapping[str, Any]) -> str:
    """The method of files that name none, from the keys that only it has."""
    if "load_in_4bit" in quantisation or "load_in_8bit" in quantisation:
        return "bitsandbytes"
    return "compressed-tensors" if "config_groups" in quantisation else "unnamed"


def _detailed(kind: str, instead: str, quantisation: Mapping[str, Any]) -> tuple[str, str]:
    """With how many bits where the file says, and the advice that fits them."""
    bits = quantisation.get("bits", quantisation.get("w_bit"))
    if quantisation.get("load_in_8bit") is True:
        bits = 8
    elif quantisation.get("load_in_4bit") is True:
        bits = 4
    groups = quantisation.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if isinstance(weights, dict):
        bits = weights.get("num_bits", bits)
        if weights.get("type") == "float" and bits == 8:
            return "FP8 weights (compressed-tensors)", _INT8
    if type(bits) is not int:
        return kind, instead
    return f"{kind} ({bits} bits)", _INT8 if bits > 4 and instead == _INT4 else instead
