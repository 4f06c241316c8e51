"""DeepSeek-V3 and R1: DeepSeek-AI 2024; config.json's DeepseekV3ForCausalLM, GGUF's deepseek2 with sigmoids."""

from headway.model.builder import Builder
from headway.model.deepseek_v2 import make_deepseek_v2
from headway.model.program import Program


def make_deepseek_v3(builder: Builder) -> Program:
    """As V2; the shape says that experts are chosen by sigmoids and a bias. The layers that predict further tokens are
    left out."""
    return make_deepseek_v2(builder)
