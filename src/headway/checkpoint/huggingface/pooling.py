"""What sentence-transformers writes beside an encoder: how its tokens become one vector, and what texts it takes.

modules.json lists the modules; a folder without one is read as sentence-transformers reads it: the mean of all tokens,
not normalised.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.checkpoint.fields import Fields, read_json
from headway.checkpoint.huggingface.keys import refuse
from headway.checkpoint.shape import EncoderShape, ModelShape, Pooling

_POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_BY_NAME: Mapping[str, Pooling] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_UNSUPPORTED = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_MAX_MODULES = 16


def with_pooling(folder: Path, shape: ModelShape) -> ModelShape:
    """The shape with what the folder says beside config.json; others than encoders stay as they are.

    Raises UnsupportedModel for a module or pooling that Headway does not have, CorruptCheckpoint for wrong values.
    """
    if shape.encoder is None:
        return shape
    encoder = _with_texts(folder, shape.encoder)
    modules = _modules(folder)
    if shape.encoder.num_labels is None:
        encoder = _with_modules(folder, modules, encoder, shape.hidden_size)
    limit = _max_tokens(folder, modules)
    return replace(
        shape, encoder=replace(encoder, max_tokens=None if limit is None else min(limit, shape.max_position))
    )


def _modules(folder: Path) -> list[Fields]:
    path = folder / "modules.json"
    if not path.is_file():
        return []
    listed = read_json(path)
    where = Fields({}, str(path))
    if not isinstance(listed, list) or len(listed) > _MAX_MODULES:
        where.fail("the file", f"is not a list of at most {_MAX_MODULES} modules")
    return [Fields(each if isinstance(each, dict) else {}, str(path)) for each in listed]


def _with_modules(folder: Path, modules: list[Fields], encoder: EncoderShape, hidden_size: int) -> EncoderShape:
    encoder = replace(encoder, pooling="mean", is_normalised=False)
    for module in modules:
        match module.string("type").rpartition(".")[2]:
            case "Transformer":
                pass
            case "Pooling":
                config = Fields.of_json(_inside(folder, module) / "config.json")
                encoder = replace(encoder, pooling=_pooling(config, hidden_size))
            case "Normalize":
                encoder = replace(encoder, is_normalised=True)
            case other:
                refuse(module, f"has the module {other[:50]!r}; there are Transformer, Pooling and Normalize")
    return encoder


def _inside(folder: Path, module: Fields) -> Path:
    """The module's own folder: a plain name inside of ours, or ours."""
    name = module.string("path", "")
    if name and (Path(name).name != name or name in (".", "..") or "\\" in name):
        module.fail("path", f"is {name[:100]!r}, not a folder beside the file")
    return folder / name


def _pooling(config: Fields, hidden_size: int) -> Pooling:
    """The one mode that is on."""
    size = config.integer("word_embedding_dimension", config.integer("embedding_dimension", hidden_size))
    if size != hidden_size:
        config.fail("word_embedding_dimension", f"is {size}, and the model's hidden_size {hidden_size}")
    if config.has("pooling_mode"):
        name = config.string("pooling_mode")
        if name not in _BY_NAME:
            refuse(config, f"has the pooling {name[:50]!r}; there are {', '.join(_BY_NAME)}")
        return _BY_NAME[name]
    modes = [key for key in (*_POOLINGS, *_UNSUPPORTED) if config.boolean(key, False)]
    if len(modes) != 1 or modes[0] in _UNSUPPORTED:
        refuse(config, f"has the poolings {', '.join(modes) or 'none'}; one of {', '.join(_POOLINGS)} must be on")
    return _POOLINGS[modes[0]]


def _max_tokens(folder: Path, modules: list[Fields]) -> int | None:
    """sentence_bert_config.json's limit; of the module Transformer, where that has a folder of its own."""
    first = next((_inside(folder, each) for each in modules if each.string("type").endswith("Transformer")), folder)
    for name in ("sentence_bert_config.json", "sentence_xlm-roberta_config.json", "sentence_roberta_config.json"):
        if (first / name).is_file():
            config = Fields.of_json(first / name)
            if config.boolean("do_lower_case", False):
                refuse(config, "has do_lower_case: save the model with a tokenizer that lowers the case itself")
            return config.integer("max_seq_length") if config.has("max_seq_length") else None
    return None


def _with_texts(folder: Path, encoder: EncoderShape) -> EncoderShape:
    """Prompts, and which of them is put before a text that nothing is said of."""
    path = folder / "config_sentence_transformers.json"
    if not path.is_file():
        return encoder
    config = Fields.of_json(path)
    prompts = config.mapping("prompts")
    for name, prompt in prompts.items():
        if not isinstance(prompt, str):
            config.fail("prompts", f"has {name[:50]!r}, which is no text")
    return replace(encoder, prompts=prompts, default_prompt=_default_prompt(config, prompts))


def _default_prompt(config: Fields, prompts: Mapping[str, Any]) -> str:
    if not config.has("default_prompt_name"):
        return ""
    name = config.string("default_prompt_name")
    if name not in prompts:
        config.fail("default_prompt_name", f"is {name[:50]!r}, which is none of its prompts")
    return str(prompts[name])
