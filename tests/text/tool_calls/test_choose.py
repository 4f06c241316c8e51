"""Which dialect and which style of reasoning the real chat templates have, as one reads them."""

from collections.abc import Callable

import pytest

from headway.errors import InvalidConfig
from headway.text.reasoning import choose_reasoning
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls import choose_dialect
from headway.text.tool_calls.mistral import MistralListForm, MistralNameForm
from oracles import llama_cpp_sources

MakeTokenizer = Callable[..., Tokenizer]

READ = {
    # Those that Headway has a dialect for.
    "Bielik-11B-v3.0-Instruct": ("hermes", "qwen3"),
    "MiMo-VL": ("hermes", None),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-QwQ-32B": ("hermes", "qwen3"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "qwen3"),
    "Reka-Edge": ("hermes", "qwen3"),
    "ibm-granite-granite-4.0": ("hermes", None),
    "ibm-granite-granite-4.1": ("hermes", None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3_json", None),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", None),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", None),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen3_coder", "qwen3"),
    "Qwen3-Coder": ("qwen3_coder", None),
    "Qwen3.5-4B": ("qwen3_coder", "qwen3"),
    "StepFun3.5-Flash": ("qwen3_coder", "qwen3"),
    "LFM2.5-8B-A1B": ("pythonic", "qwen3"),
    # Those whose vocabulary has to tell (see below).
    "LFM2-8B-A1B": ("plain_json", None),
    "LFM2.5-Instruct": ("plain_json", "qwen3"),
    # Those that have another form, or tags of their own: arg_key and arg_value, [{"name": arguments}], TypeScript, ...
    "Apertus-8B-Instruct": ("plain_json", None),
    "Apriel-1.6-15b-Thinker-fixed": ("plain_json", None),
    "ByteDance-Seed-OSS": ("plain_json", None),
    "Cohere2MoE": ("plain_json", None),
    "CohereForAI-c4ai-command-r-plus-tool_use": ("plain_json", None),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("plain_json", None),
    "GLM-4.6": ("plain_json", "qwen3"),
    "GLM-4.7-Flash": ("plain_json", "qwen3"),
    "GigaChat3-10B-A1.8B": ("plain_json", None),
    "GigaChat3.1-10B-A1.8B": ("plain_json", None),
    "Kimi-K2-Instruct": ("plain_json", None),
    "Kimi-K2-Thinking": ("plain_json", "qwen3"),
    "Kimi-K3": ("plain_json", None),
    "MiniMax-M1": ("plain_json", None),
    "MiniMax-M2": ("plain_json", "qwen3"),
    "MiniMax-M3": ("plain_json", None),
    "NVIDIA-Nemotron-Nano-v2": ("plain_json", "qwen3"),
    "Spark2.5": ("plain_json", "qwen3"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("plain_json", "deepseek_r1"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("plain_json", "deepseek_r1"),
    "deepseek-ai-DeepSeek-V3.1": ("plain_json", "deepseek_r1"),
    "deepseek-ai-DeepSeek-V3.2": ("plain_json", "deepseek_r1"),
    "deepseek-ai-DeepSeek-V4": ("plain_json", "deepseek_r1"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("plain_json", "deepseek_r1"),
    "fireworks-ai-llama-3-firefunction-v2": ("plain_json", None),
    "google-gemma-4-31B-it": ("plain_json", None),
    "google-gemma-4-31B-it-interleaved": ("plain_json", None),
    "ibm-granite-granite-3.3-2B-Instruct": ("plain_json", "qwen3"),
    "inclusionai-ling-3.0-flash": ("plain_json", "qwen3"),
    "llama-cpp-deepseek-r1": ("plain_json", "deepseek_r1"),
    "meetkai-functionary-medium-v3.1": ("plain_json", None),
    "meetkai-functionary-medium-v3.2": ("plain_json", None),
    "moonshotai-Kimi-K2": ("plain_json", None),
    "muse-glimmer": ("plain_json", None),
    "openai-gpt-oss-120b": ("plain_json", None),
    "openbmb-MiniCPM5-1B": ("plain_json", "qwen3"),
    "poolside-Laguna-S-2.1": ("plain_json", "qwen3"),
    "poolside-Laguna-XS-2.1": ("plain_json", "qwen3"),
    "poolside-Laguna-XS.2": ("plain_json", "qwen3"),
    "tencent-Hy3": ("plain_json", None),
    "unsloth-Apriel-1.5": ("plain_json", None),
    "upstage-Solar-Open-100B": ("plain_json", None),
    # Those that know no tools.
    "HuggingFaceTB-SmolLM3-3B": ("plain_json", "qwen3"),
    "google-gemma-2-2b-it": ("plain_json", None),
    "llama-cpp-rwkv-world": ("plain_json", "qwen3"),
    "microsoft-Phi-3.5-mini-instruct": ("plain_json", None),
}


def template_of(name: str) -> str:
    return (llama_cpp_sources() / "models" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def test_every_template_is_in_the_table() -> None:
    there = (llama_cpp_sources() / "models" / "templates").glob("*.jinja")
    assert {path.stem for path in there} == READ.keys()


@pytest.mark.parametrize("name", READ)
def test_template_tells_dialect_and_reasoning(byte_tokenizer: MakeTokenizer, name: str) -> None:
    template, tokenizer = template_of(name), byte_tokenizer()
    reasoning = choose_reasoning(template, tokenizer)
    assert (choose_dialect(template, tokenizer).name, reasoning and reasoning.name) == READ[name]


@pytest.mark.parametrize("name", ["LFM2-8B-A1B", "LFM2.5-Instruct"])
def test_vocabulary_tells_a_dialect_that_the_template_does_not(byte_tokenizer: MakeTokenizer, name: str) -> None:
    tokenizer = byte_tokenizer("<|tool_call_start|>", "<|tool_call_end|>")
    dialect = choose_dialect(template_of(name), tokenizer)
    assert dialect.name == "pythonic"
    assert dialect.trigger([{"function": {"name": "f"}}]) == r"<\|tool_call_start\|>"


def test_llama_4_is_told_by_the_form_that_its_template_asks_for(byte_tokenizer: MakeTokenizer) -> None:
    template = (
        'tools ... "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]\\n"'
    )
    assert choose_dialect(template, byte_tokenizer()).name == "pythonic"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("[TOOL_CALLS][", MistralListForm("[TOOL_CALLS][")),
        ("[TOOL_CALLS] [", MistralListForm("[TOOL_CALLS] [")),
        ("[TOOL_CALLS]' + name + '[ARGS]", MistralNameForm(has_id=False)),
        ("[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]", MistralNameForm(has_id=True)),
    ],
)
def test_mistrals_three_forms_are_told_apart(byte_tokenizer: MakeTokenizer, template: str, form: object) -> None:
    assert choose_dialect(template, byte_tokenizer()).form == form


def test_a_name_overrides_what_the_template_tells(byte_tokenizer: MakeTokenizer) -> None:
    tokenizer = byte_tokenizer()
    assert choose_dialect(template_of("Qwen3-Coder"), tokenizer, "llama3_json").name == "llama3_json"
    style = choose_reasoning("no tags", tokenizer, "qwen3")
    assert style is not None
    assert style.name == "qwen3"
    assert choose_reasoning(template_of("Qwen-Qwen3-0.6B"), tokenizer, "none") is None


def test_an_unknown_name_is_refused_with_those_that_there_are(byte_tokenizer: MakeTokenizer) -> None:
    with pytest.raises(InvalidConfig, match="'hermse'; it must be one of hermes, llama3_json, mistral"):
        choose_dialect("", byte_tokenizer(), "hermse")
    with pytest.raises(InvalidConfig, match="'qwen4'; it must be one of qwen3, deepseek_r1, none"):
        choose_reasoning("", byte_tokenizer(), "qwen4")


@pytest.mark.parametrize(
    ("name", "is_needed"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", False),
        ("GLM-4.6", False),
        ("google-gemma-2-2b-it", True),
        ("microsoft-Phi-3.5-mini-instruct", True),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", True),
    ],
)
def test_instructions_are_needed_where_the_template_shows_no_tools(
    byte_tokenizer: MakeTokenizer, name: str, is_needed: bool
) -> None:
    assert choose_dialect(template_of(name), byte_tokenizer()).needs_instructions == is_needed


def test_markers_are_those_of_the_forms_texts_that_are_special_tokens(byte_tokenizer: MakeTokenizer) -> None:
    template = template_of("Mistral-Small-3.2-24B-Instruct-2506")
    assert choose_dialect(template, byte_tokenizer()).markers == frozenset()
    assert choose_dialect(template, byte_tokenizer("[TOOL_CALLS]", "[ARGS]")).markers == {"[TOOL_CALLS]", "[ARGS]"}
    style = choose_reasoning(template_of("Qwen-Qwen3-0.6B"), byte_tokenizer("<think>"))
    assert style is not None
    assert style.markers == {"<think>"}
